"""Who owns a durable store, and `compliance.usage_now` that counts its copies with the owner alone.

The table is filled by the indexer when it begins to lead; until then no store has an owner and its copies count with
nobody. The previous release neither reads nor writes it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

VIEW = """
CREATE OR REPLACE VIEW compliance.usage_now WITH (security_barrier) AS
SELECT d.tenant, d.name AS domain, u.tier, sum(u.blocks)::bigint AS blocks, sum(u.bytes) AS bytes
FROM domain d
JOIN stream_alias a ON a.domain = d.name
JOIN tenant_usage u ON u.stream_id = a.stream_id AND u.alias = a.alias
JOIN stream s ON s.id = u.stream_id
LEFT JOIN registration g ON (g.worker, g.rank, g.epoch) = (s.worker, s.rank, s.epoch)
{store}
WHERE {counts}
GROUP BY d.tenant, d.name, u.tier
"""
STORE = """
CROSS JOIN LATERAL (
    SELECT coalesce(bool_and(h.durable_id IS NOT NULL), false) AS durable,
           coalesce(bool_or(o.owner = s.worker AND NOT o.destroyed), false) AS owned
    FROM holder h LEFT JOIN durable_holder o ON o.durable_id = h.durable_id
    WHERE h.stream_id = s.id AND h.tier = u.tier
) k
"""
VOLATILE = "NOT (coalesce(g.superseded, false) OR coalesce(g.exit_attested, false))"
COUNTS = f"CASE WHEN k.durable THEN k.owned AND NOT coalesce(g.superseded, true) ELSE {VOLATILE} END"
MEANING = (
    "COMMENT ON VIEW compliance.usage_now IS 'Blocks and bytes of each domain by tier, superseded epochs and"
    " attested dead engines left out{stores}.'"
)
STORES = "; a durable store counts with its owner''s newest epoch alone, until it is destroyed"


def upgrade() -> None:
    op.create_table(
        "durable_holder",
        sa.Column("durable_id", sa.Text(), nullable=False),
        sa.Column("tier", sa.Text(), nullable=True),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("destroyed", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.PrimaryKeyConstraint("durable_id", name=op.f("pk_durable_holder")),
    )
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON durable_holder TO kvledger_indexer")
    op.execute("GRANT SELECT ON durable_holder TO kvledger_lookup, kvledger_compliance")
    op.execute(VIEW.format(store=STORE, counts=COUNTS))
    op.execute(MEANING.format(stores=STORES))


def downgrade() -> None:
    op.execute(VIEW.format(store="", counts=VOLATILE))
    op.execute(MEANING.format(stores=""))
    op.drop_table("durable_holder")
