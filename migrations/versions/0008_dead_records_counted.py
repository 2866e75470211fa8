"""How many keys of dead records were given up by age or number: their rows are bounded, their count stays.

The previous release neither reads nor writes it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "dead_record_pruned",
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("records", sa.BigInteger(), nullable=False),
        sa.Column("foreign_streams", sa.BigInteger(), nullable=False),
        sa.Column("newest_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("topic", "partition", name=op.f("pk_dead_record_pruned")),
    )
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON dead_record_pruned TO kvledger_indexer")
    op.execute("GRANT SELECT ON dead_record_pruned TO kvledger_lookup, kvledger_compliance")


def downgrade() -> None:
    op.drop_table("dead_record_pruned")
