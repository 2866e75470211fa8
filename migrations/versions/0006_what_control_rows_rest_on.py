"""The running hash of `kv.control` beside the offset up to which its rows are folded.

A log that was cut and written on ends behind that offset again; only the hash tells that the rows are of records
which are gone. Empty until the indexer writes the row again. The previous release neither reads nor writes it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "partition_progress",
        sa.Column("control_hash", sa.LargeBinary(), server_default=sa.text("'\\x'"), nullable=False),
    )


def downgrade() -> None:
    op.drop_column("partition_progress", "control_hash")
