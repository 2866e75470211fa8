"""`compliance.usage_now` leaves out engines whose exit is attested, as quotas and the service's usage do."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
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
WHERE NOT ({left_out})
GROUP BY d.tenant, d.name, u.tier
"""
MEANING = (
    "COMMENT ON VIEW compliance.usage_now IS 'Blocks and bytes of each domain by tier, {without} left out.'"
)


def upgrade() -> None:
    op.execute(VIEW.format(left_out="coalesce(g.superseded, false) OR coalesce(g.exit_attested, false)"))
    op.execute(MEANING.format(without="superseded epochs and attested dead engines"))


def downgrade() -> None:
    op.execute(VIEW.format(left_out="coalesce(g.superseded, false)"))
    op.execute(MEANING.format(without="superseded epochs"))
