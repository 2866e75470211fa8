"""Roles with least privilege, row-level security by tenant, and the documented views of schema `compliance`.

A migration must not break the previous release: it may still be running on this schema.
"""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

ROLES = ("kvledger_indexer", "kvledger_lookup", "kvledger_compliance", "kvledger_auditor", "kvledger_tenant")
SECURED = ("domain", "deletion_request", "quota_limit", "tenant_quota", "quota_change")

CREATE_ROLE = """
DO $$ BEGIN
    CREATE ROLE {role} NOLOGIN;
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
END $$
"""

GRANTS = """
GRANT kvledger_compliance TO CURRENT_USER;
GRANT USAGE ON SCHEMA public TO kvledger_indexer, kvledger_lookup, kvledger_compliance;
GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA public TO kvledger_indexer;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO kvledger_indexer;
REVOKE INSERT, UPDATE, DELETE, TRUNCATE ON alembic_version, sql_principal FROM kvledger_indexer;
GRANT SELECT ON ALL TABLES IN SCHEMA public TO kvledger_lookup, kvledger_compliance;
CREATE SCHEMA compliance AUTHORIZATION kvledger_compliance;
GRANT USAGE ON SCHEMA compliance TO kvledger_auditor, kvledger_tenant;
"""

# The views are owned by kvledger_compliance, which is bound by these policies; current_user is who asks.
POLICIES = """
ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;
CREATE POLICY indexer_writes ON {table} TO kvledger_indexer USING (true) WITH CHECK (true);
CREATE POLICY lookup_reads ON {table} FOR SELECT TO kvledger_lookup USING (true);
CREATE POLICY tenant_reads ON {table} FOR SELECT TO kvledger_compliance USING (
    pg_has_role(current_user, 'kvledger_auditor', 'MEMBER')
    OR tenant IN (SELECT p.tenant FROM public.sql_principal p WHERE p.role_name = current_user)
);
"""

FUNCTIONS = """
CREATE FUNCTION compliance.time_of(of_partition int, of_offset bigint) RETURNS timestamptz
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public AS $$
    SELECT appended_at FROM partition_time
    WHERE partition = of_partition AND next_offset > of_offset
    ORDER BY next_offset LIMIT 1
$$;
COMMENT ON FUNCTION compliance.time_of IS
'When the record at an offset of a partition was appended, exact to about a second.';
"""

VIEWS = {
    "data_now": (
        """
SELECT d.tenant, d.name AS domain, s.worker, s.rank, s.epoch, h.tier, h.name AS holder, h.durable_id,
       t.state AS copy_state, count(*) AS blocks,
       sum(coalesce(p.block_bytes[c.group_index + 1], 0)) AS bytes,
       compliance.time_of(s.partition, min(c.since_offset)) AS oldest_at,
       compliance.time_of(s.partition, max(c.since_offset)) AS newest_at,
       now() - compliance.time_of(s.partition, min(c.since_offset)) AS oldest_age,
       s.status AS stream_status, g.epoch_no IS NOT NULL AS is_registered, g.fenced
FROM domain d
JOIN stream_alias a ON a.domain = d.name
JOIN copy_attribute t ON t.stream_id = a.stream_id AND t.alias = a.alias
JOIN stream s ON s.id = a.stream_id
JOIN holder h ON h.stream_id = s.id
JOIN copy c ON c.holder_id = h.id AND c.attribute_id = t.id
LEFT JOIN profile p ON p.stream_id = s.id AND p.alias = a.alias AND p.number = t.profile
LEFT JOIN registration g ON (g.worker, g.rank, g.epoch) = (s.worker, s.rank, s.epoch)
WHERE h.durable_id IS NOT NULL OR NOT (coalesce(g.superseded, false) OR coalesce(g.exit_attested, false))
GROUP BY d.tenant, d.name, s.id, h.id, t.state, g.epoch_no
""",
        "Where a tenant's data is now, by worker, rank, tier and state, with age. Volatile holders of"
        " superseded epochs and of attested dead engines don't count.",
    ),
    "data_history": (
        """
SELECT d.tenant, d.name AS domain, s.worker, s.rank, s.epoch, h.tier, h.name AS holder,
       x.block, compliance.time_of(s.partition, x.from_offset) AS from_at,
       compliance.time_of(s.partition, x.to_offset) AS to_at, x.reason, x.request
FROM domain d
JOIN stream_alias a ON a.domain = d.name
JOIN stream s ON s.id = a.stream_id
JOIN holder h ON h.stream_id = s.id
JOIN copy_attribute t ON t.stream_id = a.stream_id AND t.alias = a.alias
JOIN copy_span x ON x.holder_id = h.id AND x.attribute_id = t.id
UNION ALL
SELECT d.tenant, d.name, s.worker, s.rank, s.epoch, h.tier, h.name,
       c.block, compliance.time_of(s.partition, c.since_offset), NULL, NULL, NULL
FROM domain d
JOIN stream_alias a ON a.domain = d.name
JOIN stream s ON s.id = a.stream_id
JOIN holder h ON h.stream_id = s.id
JOIN copy_attribute t ON t.stream_id = a.stream_id AND t.alias = a.alias
JOIN copy c ON c.holder_id = h.id AND c.attribute_id = t.id
""",
        "Every copy of a tenant within the audit window, from when to when (null: still there) and why it ended.",
    ),
    "deletion": (
        """
SELECT r.number, r.kind, r.tenant, r.domain, r.scope_type, r.requester, r.reason, r.requested_at,
       r.requested_at + make_interval(secs => r.deadline_s) AS deadline_at,
       coalesce(v.verdict, 'PENDING') AS verdict, coalesce(v.reasons, '[]') AS reasons,
       v.given_at AS verdict_at, w.proven_at, w.proven_at - r.requested_at AS time_to_proof,
       v.bundle_sha256
FROM deletion_request r
LEFT JOIN LATERAL (
    SELECT * FROM verdict WHERE verdict.request = r.number ORDER BY verdict."offset" DESC LIMIT 1
) v ON true
LEFT JOIN LATERAL (
    SELECT min(given_at) AS proven_at FROM verdict WHERE request = r.number AND verdict.verdict = 'PROVEN'
) w ON true
""",
        "Every deletion and invalidation request with its newest verdict, the reasons and the time to proof.",
    ),
    "held_after_ack": (
        """
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
    WHEN 'tenant' THEN d.tenant = r.tenant
    WHEN 'profile' THEN p.profile_id = r.scope ->> 'profile'
    WHEN 'domain' THEN a.domain = r.domain
    WHEN 'subject' THEN a.domain = r.domain
    ELSE a.domain = r.domain AND EXISTS (
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
    )
END
""",
        "Copies in a request's scope that are still held by a stream that has acknowledged it and whose"
        " provenance is older than the request or unknown.",
    ),
    "owes_ack": (
        """
SELECT r.number AS request, d.tenant, d.name AS domain, g.worker, g.rank, g.epoch, g.engine_life,
       g.fenced, k.old_left, k.refused, s.status AS stream_status,
       now() - r.requested_at AS waiting
FROM deletion_request r
JOIN domain d ON CASE r.scope_type
    WHEN 'tenant' THEN d.tenant = r.tenant
    WHEN 'profile' THEN true
    ELSE d.name = r.domain
END
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
""",
        "Registered streams that have not discharged a request, with how it stands there if they said so."
        " Fenced and superseded ones still owe until the end of their engine life is attested.",
    ),
    "quota_breach": (
        """
SELECT * FROM (
    SELECT tenant, tier, unit, level, used, soft, hard, changed_at AS from_at,
           lead(changed_at) OVER (PARTITION BY tenant, tier, unit ORDER BY "offset") AS to_at
    FROM quota_change
) q WHERE level <> 'within'
""",
        "Every time a tenant was over a limit, from when to when (null: still).",
    ),
    "usage_now": (
        """
SELECT d.tenant, d.name AS domain, u.tier, sum(u.blocks)::bigint AS blocks, sum(u.bytes) AS bytes
FROM domain d
JOIN stream_alias a ON a.domain = d.name
JOIN tenant_usage u ON u.stream_id = a.stream_id AND u.alias = a.alias
JOIN stream s ON s.id = u.stream_id
LEFT JOIN registration g ON (g.worker, g.rank, g.epoch) = (s.worker, s.rank, s.epoch)
WHERE NOT coalesce(g.superseded, false)
GROUP BY d.tenant, d.name, u.tier
""",
        "Blocks and bytes of each domain by tier, superseded epochs left out.",
    ),
}


def upgrade() -> None:
    for role in ROLES:
        op.execute(CREATE_ROLE.format(role=role))
    for statement in _statements(GRANTS):
        op.execute(statement)
    for table in SECURED:
        for statement in _statements(POLICIES.format(table=table)):
            op.execute(statement)
    create, comment = (part.strip() for part in FUNCTIONS.strip().rsplit("$$;", 1))
    op.execute(create + " $$")
    op.execute(comment.rstrip(";"))
    for name, (query, meaning) in VIEWS.items():
        op.execute(f"CREATE VIEW compliance.{name} WITH (security_barrier) AS {query}")
        op.execute(f"ALTER VIEW compliance.{name} OWNER TO kvledger_compliance")
        op.execute(f"COMMENT ON VIEW compliance.{name} IS '{meaning.replace(chr(39), chr(39) * 2)}'")
        op.execute(f"GRANT SELECT ON compliance.{name} TO kvledger_auditor, kvledger_tenant")


def downgrade() -> None:
    op.execute("DROP SCHEMA compliance CASCADE")
    for table in SECURED:
        for policy in ("indexer_writes", "lookup_reads", "tenant_reads"):
            op.execute(f"DROP POLICY {policy} ON {table}")
        op.execute(f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY")
    op.execute("DROP OWNED BY kvledger_indexer, kvledger_lookup, kvledger_compliance")


def _statements(script: str) -> list[str]:
    """A script's statements, for drivers that take one at a time."""
    return [statement.strip() for statement in script.split(";") if statement.strip()]
