"""Statements of the hot path: copies and their history, by arrays, never row by row."""

from __future__ import annotations

PUT = """
INSERT INTO copy (holder_id, group_index, block, parent, attribute_id, since_offset)
SELECT * FROM unnest($1::int8[], $2::int2[], $3::bytea[], $4::bytea[], $5::int8[], $6::int8[])
ON CONFLICT (holder_id, group_index, block)
DO UPDATE SET parent = excluded.parent, attribute_id = excluded.attribute_id
"""

# What only the table knows of the ended copies goes straight to history.
END = """
WITH gone AS (
    DELETE FROM copy c
    USING unnest($1::int8[], $2::int2[], $3::bytea[], $4::int8[], $5::text[], $6::int8[])
        AS e(holder_id, group_index, block, to_offset, reason, request)
    WHERE c.holder_id = e.holder_id AND c.group_index = e.group_index AND c.block = e.block
    RETURNING c.holder_id, c.group_index, c.block, c.attribute_id, c.since_offset,
              e.to_offset, e.reason, e.request
)
INSERT INTO copy_span (holder_id, group_index, block, attribute_id, from_offset, to_offset, reason, request)
SELECT * FROM gone
"""

# For ends of copies that the same batch had put: the table may hold an older begin, or nothing.
TAKE = """
DELETE FROM copy c
USING unnest($1::int8[], $2::int2[], $3::bytea[]) AS e(holder_id, group_index, block)
WHERE c.holder_id = e.holder_id AND c.group_index = e.group_index AND c.block = e.block
RETURNING c.holder_id, c.group_index, c.block, c.since_offset
"""

SPANS = """
INSERT INTO copy_span (holder_id, group_index, block, attribute_id, from_offset, to_offset, reason, request)
SELECT * FROM unnest($1::int8[], $2::int2[], $3::bytea[], $4::int8[], $5::int8[], $6::int8[], $7::text[], $8::int8[])
"""

ADVANCE = """
UPDATE partition_progress
SET next_offset = $5, last_record_sha256 = $6, updated_at = now()
WHERE topic = $1 AND partition = $2 AND term = $3 AND next_offset = $4
RETURNING next_offset
"""

STANDS_AT = """
SELECT term, next_offset, last_record_sha256, log_id, rebuild_until
FROM partition_progress WHERE topic = $1 AND partition = $2
"""

# Taken before the snapshot of a repeatable-read transaction: tables must not be switched below it.
HOLD_TABLES = """
LOCK TABLE stream, holder, profile, copy_attribute, stream_alias, tenant_usage, deletion_ack, copy, copy_span,
    dead_record, partition_time
IN ACCESS SHARE MODE
"""

# About one row a second, so that a position can be told as a time.
MARK_TIME = """
INSERT INTO partition_time (partition, next_offset, appended_at)
SELECT $1::int4, $2::int8, to_timestamp($3::float8)
WHERE NOT EXISTS (
    SELECT FROM partition_time
    WHERE partition = $1 AND appended_at > to_timestamp($3::float8) - interval '1 second'
)
ON CONFLICT DO NOTHING
"""

LOAD_COPIES = """
SELECT h.stream_id, h.name, c.group_index, c.block, c.parent, c.attribute_id
FROM copy c JOIN holder h ON h.id = c.holder_id JOIN stream s ON s.id = h.stream_id
WHERE s.partition = $1
"""

DIGEST_COPIES = """
SELECT h.stream_id, h.name, h.durable_id IS NOT NULL, c.group_index, c.block, a.state
FROM copy c JOIN holder h ON h.id = c.holder_id JOIN copy_attribute a ON a.id = c.attribute_id
"""

EMPTY_PARTITION = (
    """DELETE FROM copy_span USING holder h JOIN stream s ON s.id = h.stream_id
       WHERE copy_span.holder_id = h.id AND s.partition = $1""",
    """DELETE FROM copy USING holder h JOIN stream s ON s.id = h.stream_id
       WHERE copy.holder_id = h.id AND s.partition = $1""",
    "DELETE FROM stream WHERE partition = $1",
    "DELETE FROM partition_time WHERE partition = $1",
)

FORGET_STREAMS = """
WITH gone AS (
    SELECT id FROM stream WHERE partition = $1
    AND (worker, rank, epoch) IN (SELECT * FROM unnest($2::text[], $3::int4[], $4::text[]))
), spans AS (
    DELETE FROM copy_span USING holder h, gone WHERE copy_span.holder_id = h.id AND h.stream_id = gone.id
), copies AS (
    DELETE FROM copy USING holder h, gone WHERE copy.holder_id = h.id AND h.stream_id = gone.id
)
DELETE FROM stream USING gone WHERE stream.id = gone.id
"""
