"""The usage that auditors see falls with an epoch and with the attested end of an engine."""

from __future__ import annotations

import asyncpg

from indexer.controller import USAGE

ROWS = """
INSERT INTO domain (name, tenant, shared, created_at_offset) VALUES ('chat', 'acme', false, 1);
INSERT INTO registration (epoch_no, worker, rank, epoch, engine_life, partition, superseded, exit_attested,
                          registered_at)
VALUES (1, 'live', 0, 'e', 'l1', 0, false, false, now()), (2, 'old', 0, 'e', 'l2', 0, true, false, now()),
       (3, 'dead', 0, 'e', 'l3', 0, false, true, now());
INSERT INTO stream (partition, worker, rank, epoch, epoch_no, next_seq, prev, first_prev, last_header, status,
                    fault, sticky, draining, engine_ended, engine_life, engine, engine_version, removal,
                    admission_known, control_offset, control_hash, duplicates, unknown_events, nonces, transfers)
SELECT 0, worker, 0, 'e', epoch_no, 1, '', '', '', 'live', '', false, false, false, engine_life, '', '', 'none',
       true, 0, '', 0, 0, '{}', '{}'
FROM registration;
INSERT INTO stream_alias (stream_id, alias, domain) SELECT id, 'a', 'chat' FROM stream;
INSERT INTO tenant_usage (stream_id, alias, tier, blocks, bytes) SELECT id, 'a', 'gpu', 3, 300 FROM stream;
"""
HOLDERS = """
INSERT INTO holder (stream_id, name, tier, capacity_blocks, durable_id, groups, inventory, orphans, unassigned)
SELECT id, 'one', 'gpu', null, CASE worker WHEN 'live' THEN 'store-1' END, '[]', 'known', 0, 0 FROM stream;
"""


async def test_usage_of_a_dead_engine_and_of_an_old_epoch_is_nobodys(database: str) -> None:
    connection = await asyncpg.connect(database)
    try:
        await connection.execute(ROWS)
        await connection.execute("SET ROLE kvledger_auditor")
        rows = await connection.fetch("SELECT tenant, domain, tier, blocks, bytes FROM compliance.usage_now")
    finally:
        await connection.close()
    assert [tuple(row) for row in rows] == [("acme", "chat", "gpu", 3, 300)]


async def test_the_controller_is_told_which_tiers_are_durable(database: str) -> None:
    connection = await asyncpg.connect(database)
    try:
        await connection.execute(ROWS)
        await connection.execute(HOLDERS)
        rows = await connection.fetch(USAGE)
    finally:
        await connection.close()
    told = {row["worker"]: (row["tier"], row["blocks"], row["durable"]) for row in rows}
    assert told == {
        "live": ("gpu", 3, ["store-1"]),
        "old": ("gpu", 3, None),
        "dead": ("gpu", 3, None),
    }


CANARIES = """
INSERT INTO registration (epoch_no, worker, rank, epoch, engine_life, partition, registered_at)
VALUES (4, 'kvledger.canary', 0, 'e', 'c0', 0, now()), (5, 'kvledger.canary', 1, 'e', 'c1', 0, now());
INSERT INTO stream (partition, worker, rank, epoch, epoch_no, next_seq, prev, first_prev, last_header, status,
                    fault, sticky, draining, engine_ended, engine_life, engine, engine_version, removal,
                    admission_known, control_offset, control_hash, duplicates, unknown_events, nonces, transfers)
SELECT 0, worker, rank, 'e', epoch_no, 1, '', '', '', 'live', '', false, false, false, engine_life, '', '', 'none',
       true, 0, '', 0, 0, '{}', '{}'
FROM registration WHERE worker = 'kvledger.canary';
INSERT INTO deletion_request (number, kind, scope_type, scope, tenant, domain, scope_ids, requester, reason,
                              requested_at, record_sha256)
VALUES (9, 'deletion', 'domain', '{}', 'acme', 'chat', '{}', 'r', 'subject_request', now(), '');
"""
SPEAKS = """
INSERT INTO profile (stream_id, alias, number, profile_id, content, layout, block_bytes, missing, retired)
SELECT id, 'a', 0, 'p', '{}', '{}', '{}', '{}', false FROM stream WHERE worker = 'kvledger.canary' AND rank = 1
"""


async def test_canary_owes_no_ack_unless_it_ever_spoke_of_copies(database: str) -> None:
    connection = await asyncpg.connect(database)
    try:
        await connection.execute(ROWS)
        await connection.execute(CANARIES)
        rows = await connection.fetch("SELECT worker, rank FROM compliance.owes_ack ORDER BY worker")
        await connection.execute(SPEAKS)
        spoke = await connection.fetch("SELECT worker, rank FROM compliance.owes_ack ORDER BY worker")
    finally:
        await connection.close()
    assert [tuple(row) for row in rows] == [("live", 0), ("old", 0)]
    assert [tuple(row) for row in spoke] == [("kvledger.canary", 1), ("live", 0), ("old", 0)]
