"""Views that follow a scope into a subject's domain and a model's other profiles, and see an engine's end.

A subject's leaves lie in a domain that isn't its own, and an order of a model names several profiles: the views looked
for neither. A clear named requests that did not cover the copy. Only views change; the previous release reads the same
columns.
"""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

VIEW = "CREATE OR REPLACE VIEW compliance.{name} WITH (security_barrier) AS {query}"
HELD = """
SELECT r.number AS request, r.tenant, a.domain, s.worker, s.rank, s.epoch, h.tier, h.name AS holder,
       c.block, t.state AS copy_state,
       CASE WHEN t.admitted_after IS NULL THEN 'unknown' ELSE 'older' END AS provenance,
       compliance.time_of(s.partition, c.since_offset) AS since_at, k.updated_at AS acked_at
FROM deletion_request r
JOIN deletion_ack k ON k.request = r.number AND k.old_left = 0 AND k.refused IS NULL
JOIN stream_alias a ON a.stream_id = k.stream_id AND a.alias = k.alias
JOIN domain d ON d.name = a.domain
JOIN stream s ON s.id = k.stream_id
JOIN copy_attribute t ON t.stream_id = k.stream_id AND t.alias = k.alias
    AND (t.admitted_after IS NULL OR t.admitted_after < r.number)
JOIN holder h ON h.stream_id = s.id
JOIN copy c ON c.holder_id = h.id AND c.attribute_id = t.id
LEFT JOIN profile p ON p.stream_id = s.id AND p.alias = a.alias AND p.number = t.profile
LEFT JOIN registration g ON (g.worker, g.rank, g.epoch) = (s.worker, s.rank, s.epoch)
WHERE (h.durable_id IS NOT NULL OR NOT (coalesce(g.superseded, false) OR coalesce(g.exit_attested, false)))
AND CASE r.scope_type
{cases}
END
"""
OWES = """
SELECT r.number AS request, d.tenant, d.name AS domain, g.worker, g.rank, g.epoch, g.engine_life,
       g.fenced, k.old_left, k.refused, s.status AS stream_status,
       now() - r.requested_at AS waiting
FROM deletion_request r
JOIN domain d ON {reaches}
CROSS JOIN registration g
LEFT JOIN stream s ON (s.worker, s.rank, s.epoch) = (g.worker, g.rank, g.epoch)
LEFT JOIN stream_alias a ON a.stream_id = s.id AND a.domain = d.name
LEFT JOIN deletion_ack k ON k.stream_id = s.id AND k.alias = a.alias AND k.request = r.number
WHERE NOT g.exit_attested
AND NOT (coalesce(s.status, '') = 'closed' AND coalesce(s.engine_ended, false))
AND NOT EXISTS (
    SELECT FROM registration n
    WHERE n.worker = g.worker AND n.rank = g.rank AND n.engine_life = g.engine_life
    AND n.epoch_no > g.epoch_no
)
AND NOT (k.request IS NOT NULL AND k.old_left = 0 AND k.refused IS NULL)
AND NOT (g.worker = 'kvledger.canary' AND NOT EXISTS (
    SELECT FROM registration e
    JOIN stream x ON (x.worker, x.rank, x.epoch) = (e.worker, e.rank, e.epoch)
    JOIN profile p ON p.stream_id = x.id
    WHERE (e.worker, e.rank, e.engine_life) = (g.worker, g.rank, g.engine_life)
))
"""
LEFTOVER = """
SELECT r.number AS request, r.requested_at, d.tenant, d.name AS domain, s.worker, s.rank, s.epoch, h.tier,
       h.name AS holder, p.profile_id AS profile, p.content ->> 'model' AS model, p.content ->> 'revision' AS revision,
       t.state AS copy_state, CASE WHEN t.admitted_after IS NULL THEN 'unknown' ELSE 'older' END AS provenance,
       coalesce(k.old_left = 0 AND k.refused IS NULL, false) AS discharged, k.refused,
       count(*) AS blocks, sum(coalesce(p.block_bytes[c.group_index + 1], 0)) AS bytes,
       compliance.time_of(s.partition, min(c.since_offset)) AS oldest_at
FROM deletion_request r
JOIN domain d ON {reaches}
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
{cases}
END
GROUP BY r.number, r.requested_at, d.tenant, d.name, s.id, h.id, p.profile_id, p.content, t.state,
         t.admitted_after IS NULL, k.old_left, k.refused
"""
HISTORY = """
SELECT d.tenant, d.name AS domain, s.worker, s.rank, s.epoch, h.tier, h.name AS holder,
       x.block, compliance.time_of(s.partition, x.from_offset) AS from_at,
       compliance.time_of(s.partition, x.to_offset) AS to_at, x.reason, coalesce(x.request, v.number) AS request
FROM domain d
JOIN stream_alias a ON a.domain = d.name
JOIN stream s ON s.id = a.stream_id
JOIN holder h ON h.stream_id = s.id
JOIN copy_attribute t ON t.stream_id = a.stream_id AND t.alias = a.alias
JOIN copy_span x ON x.holder_id = h.id AND x.attribute_id = t.id
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
    AND {covered}
) v ON true
UNION ALL
SELECT d.tenant, d.name, s.worker, s.rank, s.epoch, h.tier, h.name,
       c.block, compliance.time_of(s.partition, c.since_offset), NULL, {ended}, NULL
FROM domain d
JOIN stream_alias a ON a.domain = d.name
JOIN stream s ON s.id = a.stream_id
JOIN holder h ON h.stream_id = s.id
JOIN copy_attribute t ON t.stream_id = a.stream_id AND t.alias = a.alias
JOIN copy c ON c.holder_id = h.id AND c.attribute_id = t.id
{registered}
"""
# Descendants, and what can't be traced to a root.
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

SUBJECT_DOMAIN = """
    r.scope_type = 'subject' AND d.name = r.scope ->> 'domain' AND r.scope ->> 'leaves' IS NOT NULL
"""
REACHES = f"""CASE r.scope_type
    WHEN 'tenant' THEN d.tenant = r.tenant
    WHEN 'profile' THEN true
    ELSE d.name = r.domain OR ({SUBJECT_DOMAIN})
END"""
OF_PROFILE = "(p.profile_id = r.scope ->> 'profile' OR r.scope -> 'others' ? p.profile_id)"
HELD_CASES = f"""
    WHEN 'tenant' THEN d.tenant = r.tenant
    WHEN 'profile' THEN {OF_PROFILE}
    WHEN 'domain' THEN d.name = r.domain
    WHEN 'subject' THEN d.name = r.domain OR ({SUBJECT_DOMAIN} AND {BELOW})
    ELSE d.name = r.domain AND {BELOW}
"""
LEFTOVER_CASES = f"""
    WHEN 'profile' THEN {OF_PROFILE}
    WHEN 'prefix' THEN {BELOW}
    WHEN 'ids' THEN {BELOW}
    WHEN 'subject' THEN d.name = r.domain OR {BELOW}
    ELSE true
"""
COVERED = f"""CASE r.scope_type
        WHEN 'tenant' THEN d.tenant = r.tenant
        WHEN 'profile' THEN {OF_PROFILE}
        WHEN 'domain' THEN d.name = r.domain
        WHEN 'subject' THEN d.name = r.domain OR ({SUBJECT_DOMAIN} AND x.block = ANY (r.scope_ids))
        ELSE d.name = r.domain AND x.block = ANY (r.scope_ids)
    END"""
ENDED = """CASE
           WHEN h.durable_id IS NOT NULL THEN NULL
           WHEN g.exit_attested THEN 'engine_ended'
           WHEN g.superseded THEN 'superseded'
       END"""
REGISTERED = "LEFT JOIN registration g ON (g.worker, g.rank, g.epoch) = (s.worker, s.rank, s.epoch)"

OLD_REACHES = """CASE r.scope_type
    WHEN 'tenant' THEN d.tenant = r.tenant
    WHEN 'profile' THEN true
    ELSE d.name = r.domain
END"""
OLD_HELD_CASES = f"""
    WHEN 'tenant' THEN d.tenant = r.tenant
    WHEN 'profile' THEN p.profile_id = r.scope ->> 'profile'
    WHEN 'domain' THEN a.domain = r.domain
    WHEN 'subject' THEN a.domain = r.domain
    ELSE a.domain = r.domain AND {BELOW}
"""
OLD_LEFTOVER_CASES = f"""
    WHEN 'profile' THEN p.profile_id = r.scope ->> 'profile'
    WHEN 'prefix' THEN {BELOW}
    WHEN 'ids' THEN {BELOW}
    ELSE true
"""
OLD_COVERED = """CASE r.scope_type
        WHEN 'tenant' THEN d.tenant = r.tenant
        WHEN 'profile' THEN p.profile_id = r.scope ->> 'profile'
        ELSE d.name = r.domain
    END"""
COMMENT = "COMMENT ON VIEW compliance.data_history IS '{meaning}'"
MEANING = (
    "Every copy of a tenant within the audit window, from when to when and why it ended. Null in both: still there. A"
    " reason without a time: with its engine, whose end is attested, or with a superseded epoch."
)
OLD_MEANING = (
    "Every copy of a tenant within the audit window, from when to when (null: still there) and why it ended."
)


def upgrade() -> None:
    _views(REACHES, HELD_CASES, LEFTOVER_CASES, COVERED, ENDED, REGISTERED)
    op.execute(COMMENT.format(meaning=MEANING))


def downgrade() -> None:
    _views(OLD_REACHES, OLD_HELD_CASES, OLD_LEFTOVER_CASES, OLD_COVERED, "NULL", "")
    op.execute(COMMENT.format(meaning=OLD_MEANING))


def _views(reaches: str, held: str, leftover: str, covered: str, ended: str, registered: str) -> None:
    queries = {
        "held_after_ack": HELD.format(cases=held),
        "owes_ack": OWES.format(reaches=reaches),
        "rollout_leftover": LEFTOVER.format(reaches=reaches, cases=leftover),
        "data_history": HISTORY.format(covered=covered, ended=ended, registered=registered),
    }
    for name, query in queries.items():
        op.execute(VIEW.format(name=name, query=query))
