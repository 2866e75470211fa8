"""`compliance.rollout_leftover`, and `compliance.data_history` that names the request which a clear has served.

A clear names no request: it ends whatever a holder had. The previous release reads neither.
"""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

HISTORY = """
CREATE OR REPLACE VIEW compliance.data_history WITH (security_barrier) AS
SELECT d.tenant, d.name AS domain, s.worker, s.rank, s.epoch, h.tier, h.name AS holder,
       x.block, compliance.time_of(s.partition, x.from_offset) AS from_at,
       compliance.time_of(s.partition, x.to_offset) AS to_at, x.reason, {request} AS request
FROM domain d
JOIN stream_alias a ON a.domain = d.name
JOIN stream s ON s.id = a.stream_id
JOIN holder h ON h.stream_id = s.id
JOIN copy_attribute t ON t.stream_id = a.stream_id AND t.alias = a.alias
JOIN copy_span x ON x.holder_id = h.id AND x.attribute_id = t.id
{served}
UNION ALL
SELECT d.tenant, d.name, s.worker, s.rank, s.epoch, h.tier, h.name,
       c.block, compliance.time_of(s.partition, c.since_offset), NULL, NULL, NULL
FROM domain d
JOIN stream_alias a ON a.domain = d.name
JOIN stream s ON s.id = a.stream_id
JOIN holder h ON h.stream_id = s.id
JOIN copy_attribute t ON t.stream_id = a.stream_id AND t.alias = a.alias
JOIN copy c ON c.holder_id = h.id AND c.attribute_id = t.id
"""
SERVED = """
LEFT JOIN profile p ON p.stream_id = s.id AND p.alias = a.alias AND p.number = t.profile
LEFT JOIN LATERAL (
    SELECT min(r.number) AS number
    FROM deletion_request r
    JOIN deletion_ack k ON k.request = r.number AND k.stream_id = s.id AND k.alias = a.alias
    WHERE x.reason = 'cleared' AND x.request IS NULL AND k.old_left = 0 AND k.refused IS NULL
    AND (t.admitted_after < r.number OR (
        t.admitted_after IS NULL
        AND r.requested_at >= coalesce(compliance.time_of(s.partition, x.from_offset), x.ended_at) - interval '1 second'
    ))
    AND r.requested_at <= x.ended_at + interval '1 second'
    AND CASE r.scope_type
        WHEN 'tenant' THEN d.tenant = r.tenant
        WHEN 'profile' THEN p.profile_id = r.scope ->> 'profile'
        ELSE d.name = r.domain
    END
) v ON true
"""
LEFTOVER = """
CREATE VIEW compliance.rollout_leftover WITH (security_barrier) AS
SELECT r.number AS request, r.requested_at, d.tenant, d.name AS domain, s.worker, s.rank, s.epoch, h.tier,
       h.name AS holder, p.profile_id AS profile, p.content ->> 'model' AS model, p.content ->> 'revision' AS revision,
       t.state AS copy_state, CASE WHEN t.admitted_after IS NULL THEN 'unknown' ELSE 'older' END AS provenance,
       coalesce(k.old_left = 0 AND k.refused IS NULL, false) AS discharged, k.refused,
       count(*) AS blocks, sum(coalesce(p.block_bytes[c.group_index + 1], 0)) AS bytes,
       compliance.time_of(s.partition, min(c.since_offset)) AS oldest_at
FROM deletion_request r
JOIN domain d ON CASE r.scope_type
    WHEN 'tenant' THEN d.tenant = r.tenant
    WHEN 'profile' THEN true
    ELSE d.name = r.domain
END
JOIN stream_alias a ON a.domain = d.name
JOIN stream s ON s.id = a.stream_id
JOIN copy_attribute t ON t.stream_id = a.stream_id AND t.alias = a.alias
    AND (t.admitted_after IS NULL OR t.admitted_after < r.number)
JOIN holder h ON h.stream_id = s.id
JOIN copy c ON c.holder_id = h.id AND c.attribute_id = t.id
LEFT JOIN profile p ON p.stream_id = s.id AND p.alias = a.alias AND p.number = t.profile
LEFT JOIN registration g ON (g.worker, g.rank, g.epoch) = (s.worker, s.rank, s.epoch)
LEFT JOIN deletion_ack k ON k.request = r.number AND k.stream_id = s.id AND k.alias = a.alias
WHERE (r.scope_type = 'profile' OR r.reason = 'model_rollout')
AND (h.durable_id IS NOT NULL OR NOT (coalesce(g.superseded, false) OR coalesce(g.exit_attested, false)))
AND CASE r.scope_type
    WHEN 'profile' THEN p.profile_id = r.scope ->> 'profile'
    WHEN 'prefix' THEN {below}
    WHEN 'ids' THEN {below}
    ELSE true
END
GROUP BY r.number, r.requested_at, d.tenant, d.name, s.id, h.id, p.profile_id, p.content, t.state,
         t.admitted_after IS NULL, k.old_left, k.refused
"""
# As in held_after_ack: descendants, and what can't be traced to a root.
BELOW = """EXISTS (
        WITH RECURSIVE up AS (
            SELECT c.block, c.parent
            UNION
            SELECT b.block, b.parent FROM copy b JOIN up ON b.block = up.parent
            WHERE b.holder_id = c.holder_id AND b.group_index = c.group_index
        )
        SELECT FROM up
        WHERE up.block = ANY (r.scope_ids) OR up.parent = ANY (r.scope_ids)
        OR (up.parent <> decode(repeat('00', 16), 'hex') AND NOT EXISTS (
            SELECT FROM copy b
            WHERE b.holder_id = c.holder_id AND b.group_index = c.group_index AND b.block = up.parent
        ))
    )"""
COMMENT = (
    "COMMENT ON VIEW compliance.rollout_leftover IS 'Copies that an order of a model rollout, or one for a profile,"
    " covers and that are still held: older than the order, or of unknown provenance.'"
)


def upgrade() -> None:
    op.execute(HISTORY.format(request="coalesce(x.request, v.number)", served=SERVED))
    op.execute(LEFTOVER.format(below=BELOW))
    op.execute("ALTER VIEW compliance.rollout_leftover OWNER TO kvledger_compliance")
    op.execute(COMMENT)
    op.execute("GRANT SELECT ON compliance.rollout_leftover TO kvledger_auditor, kvledger_tenant")


def downgrade() -> None:
    op.execute("DROP VIEW compliance.rollout_leftover")
    op.execute(HISTORY.format(request="x.request", served=""))
