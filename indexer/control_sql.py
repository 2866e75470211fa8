"""Statements of the control projection."""

from __future__ import annotations

from indexer.bulk import upsert

CLAIM = """
INSERT INTO partition_progress (topic, partition, term) VALUES ($1, 0, 1)
ON CONFLICT (topic, partition) DO UPDATE SET term = partition_progress.term + 1
RETURNING term, next_offset
"""
STORED = """
SELECT log_id, control_hash, last_record_sha256, next_offset FROM partition_progress
WHERE topic = $1 AND partition = 0
"""
ADVANCE = """
UPDATE partition_progress SET next_offset = $3, log_id = $4, control_hash = $5, last_record_sha256 = $6,
    updated_at = now()
WHERE topic = $1 AND partition = 0 AND term = $2 RETURNING next_offset
"""
REWIND = """
UPDATE partition_progress SET next_offset = 0, log_id = '', control_hash = '', last_record_sha256 = '',
    updated_at = now()
WHERE topic = $1 AND partition = 0 AND term = $2
"""
OF_CONTROL = "TRUNCATE domain, registration, deletion_request, quota_limit, durable_holder"
OF_AUDIT = "TRUNCATE verdict, checkpoint"
OF_QUOTA = "TRUNCATE tenant_quota, quota_change"

DOMAIN = upsert("domain", ("name", "tenant", "shared", "admitted", "created_at_offset"), key=("name",))
REGISTRATION = upsert(
    "registration",
    (
        "epoch_no",
        "worker",
        "rank",
        "epoch",
        "engine_life",
        "partition",
        "model",
        "superseded",
        "fenced",
        "exit_attested",
        "registered_at",
    ),
    key=("epoch_no",),
)
DELETION = upsert(
    "deletion_request",
    (
        "number",
        "kind",
        "scope_type",
        "scope",
        "tenant",
        "domain",
        "scope_ids",
        "requester",
        "reason",
        "deadline_s",
        "requested_at",
        "record_sha256",
    ),
    key=("number",),
)
# A domain may be created after somebody asked for its deletion.
NAME_OWNERS = """
UPDATE deletion_request r SET tenant = d.tenant FROM domain d
WHERE r.tenant IS NULL AND d.name = r.domain
"""
LIMIT = upsert(
    "quota_limit",
    ("tenant", "tier", "unit", "soft", "hard", "set_at_offset"),
    key=("tenant", "tier", "unit"),
)
DURABLE = upsert("durable_holder", ("durable_id", "tier", "owner", "destroyed"), key=("durable_id",))
VERDICT = upsert(
    "verdict",
    ("offset", "request", "verdict", "reasons", "frontier", "bundle_sha256", "given_at", "signer"),
    key=("offset",),
)
CHECKPOINT = upsert("checkpoint", ("offset", "positions", "control_hash", "signer"), key=("offset",))

# An older term's word never replaces a newer one's; `since` is kept while the level stays.
QUOTA = (
    upsert(
        "tenant_quota",
        ("tenant", "tier", "unit", "used", "soft", "hard", "level", "shares", "term", "offset", "since"),
        key=("tenant", "tier", "unit"),
    ).replace(
        '"since" = excluded."since"',
        '"since" = CASE WHEN tenant_quota.level = excluded.level THEN tenant_quota.since'
        " ELSE excluded.since END",
    )
    + " WHERE tenant_quota.term <= excluded.term"
)
QUOTA_HISTORY = upsert(
    "quota_change",
    ("offset", "tenant", "tier", "unit", "used", "soft", "hard", "level", "changed_at"),
    key=("offset",),
    keep=True,
)

UNRESOLVED = """
SELECT a.stream_id, a.alias, s.worker, s.rank, s.epoch_no
FROM stream_alias a JOIN stream s ON s.id = a.stream_id
WHERE a.domain IS NULL AND a.stream_id >= $1
ORDER BY a.stream_id LIMIT $2
"""
# No insert: the rows may have been rebuilt under other ids since they were read.
NAME_ALIAS = """
UPDATE stream_alias a SET domain = r.domain
FROM jsonb_to_recordset($1::jsonb) AS r(stream_id int8, alias bytea, domain text)
WHERE a.stream_id = r.stream_id AND a.alias = r.alias
"""

KEPT_DEAD_RECORDS = 100_000
"""Of each partition, besides those that a rebuild has to know: the records whose values PostgreSQL can't hold."""
PRUNE_DEAD = """
WITH gone AS (
    DELETE FROM dead_record d USING (
        SELECT topic, "partition", "offset", found_at,
               row_number() OVER (PARTITION BY topic, "partition" ORDER BY "offset" DESC) AS place
        FROM dead_record WHERE reason <> 'unstorable'
    ) r
    WHERE (d.topic, d."partition", d."offset") = (r.topic, r."partition", r."offset")
    AND (r.place > $2 OR r.found_at < now() - make_interval(days => $1))
    RETURNING d.topic, d."partition", d.reason, d.found_at
)
INSERT INTO dead_record_pruned AS p (topic, "partition", records, foreign_streams, newest_at)
SELECT topic, "partition", count(*), count(*) FILTER (WHERE reason = 'foreign_stream'), max(found_at)
FROM gone GROUP BY topic, "partition"
ON CONFLICT (topic, "partition") DO UPDATE SET records = p.records + excluded.records,
    foreign_streams = p.foreign_streams + excluded.foreign_streams,
    newest_at = greatest(p.newest_at, excluded.newest_at)
"""

# Superseded streams go with the last of their history, unless an ack of theirs still counts.
FORGET = (
    "SELECT maintain_copy_span($1)",
    "SELECT maintain_access_log($1)",
    "DELETE FROM partition_time WHERE appended_at < now() - make_interval(days => $1)",
    """
DELETE FROM stream s USING registration g
WHERE (g.worker, g.rank, g.epoch) = (s.worker, s.rank, s.epoch) AND g.superseded
AND s.updated_at < now() - make_interval(days => $1)
AND NOT EXISTS (SELECT FROM holder h JOIN copy c ON c.holder_id = h.id WHERE h.stream_id = s.id)
AND NOT EXISTS (SELECT FROM holder h JOIN copy_span x ON x.holder_id = h.id WHERE h.stream_id = s.id)
AND (
    g.exit_attested
    OR NOT EXISTS (SELECT FROM deletion_ack k WHERE k.stream_id = s.id)
    OR EXISTS (
        SELECT FROM registration n
        WHERE (n.worker, n.rank, n.engine_life) = (g.worker, g.rank, g.engine_life) AND n.epoch_no > g.epoch_no
    )
)
""",
)
