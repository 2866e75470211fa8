"""A rebuilt index equals the fold of the log, replaces only an equal one, and is taken over by a running indexer."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from pydantic import SecretStr

from events.codec import decode_audit, decode_dead
from events.fold.digest import index_digest
from events.topic import AUDIT, DEAD, EVENTS
from indexer.postgres_store import PostgresStore
from indexer.rebuild import Progress
from indexer.rebuild_schema import FRESH
from kvledger.command.rebuild import run_rebuild
from kvledger.settings import Settings
from migrations.run import run_migrations
from tests.migration.test_migration import alembic
from tests.support.indexer_log import IndexerLog, indexer_log
from tests.support.store_contract import comparable, usage_of


@pytest.fixture
async def log(kafka: str, topic_prefix: str, tmp_path: Path) -> AsyncIterator[IndexerLog]:
    async with indexer_log(kafka, topic_prefix, tmp_path / "home") as log:
        yield log


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait(10)


def settings_of(log: IndexerLog, database: str) -> Settings:
    return Settings(
        home=log.home,
        kafka=log.connection.bootstrap,
        database_url=SecretStr(database),
        topic_prefix=log.connection.names.prefix,
        partitions=log.partitions,
    )


async def rebuild(log: IndexerLog, database: str, *, accept: bool = False) -> Any:
    return await run_rebuild(settings_of(log, database), database, accept=accept, progress=lambda _: None)


async def until(database: str, log: IndexerLog, *, timeout_s: float = 60.0) -> None:
    """Waits until the index stands at the log's end."""
    store = PostgresStore(database)
    begun = time.monotonic()
    wanted = {number: log.counts.get(number, 0) for number in range(log.partitions)}
    try:
        while (await store.digest_at(await log.registry(), log.connection.topic(EVENTS)))[1] != wanted:
            assert time.monotonic() - begun < timeout_s
            await asyncio.sleep(0.1)
    finally:
        await store.close()


async def equals_the_fold(database: str, log: IndexerLog) -> None:
    registry, states = await log.registry(), await log.fold()
    store = PostgresStore(database)
    try:
        assert await store.digest(registry) == index_digest(states, registry)
        assert await store.usage() == usage_of(states)
        stored = (await store.snapshot(log.connection.topic(EVENTS))).states
        assert comparable(state for _, state in stored) == comparable(states)
    finally:
        await store.close()


async def history(database: str) -> list[str]:
    """All spans and live copies by name, as compliance would tell them."""
    connection = await asyncpg.connect(database)
    try:
        rows = await connection.fetch(
            """SELECT s.worker, s.epoch, h.name, x.group_index, x.block, t.alias, t.state, x.from_offset,
                      x.to_offset, x.reason, x.request
               FROM (SELECT holder_id, group_index, block, attribute_id, from_offset, to_offset, reason, request
                     FROM copy_span
                     UNION ALL SELECT holder_id, group_index, block, attribute_id, since_offset, -1, '', NULL
                     FROM copy) x
               JOIN holder h ON h.id = x.holder_id JOIN stream s ON s.id = h.stream_id
               JOIN copy_attribute t ON t.id = x.attribute_id AND t.stream_id = s.id"""
        )
    finally:
        await connection.close()
    return sorted(repr(tuple(row)) for row in rows)


async def test_lost_database_is_filled_and_the_indexer_goes_on(
    log: IndexerLog, database: str, processes: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    logs = [await log.random(number, number) for number in (0, 1)]
    for one in logs:
        await log.send(one.partition, [record.value for record in one.records(400)])
    report = await rebuild(log, database)
    assert report.switched
    assert report.comparison.equal is None
    assert set(report.comparison.uncompared.values()) == {"no index"}
    assert report.positions == {0: 400, 1: 400}
    await equals_the_fold(database, log)
    assert await log.read(DEAD) == await log.read(AUDIT) == []
    processes.append(log.start("indexer", database, tmp_path / "indexer.log"))
    for one in logs:
        await log.send(one.partition, [record.value for record in one.records(50)])
    await until(database, log)
    await equals_the_fold(database, log)
    buried = [decode_dead(record.value) for record in await log.read(DEAD)]
    assert all(letter.offset >= 400 for letter in buried)


async def test_rebuild_beside_a_running_indexer_is_equal_and_taken_over(
    log: IndexerLog, database: str, processes: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    logs = [await log.random(20 + number, number) for number in (0, 1)]
    processes.append(log.start("indexer", database, tmp_path / "indexer.log"))

    async def load() -> None:
        for _ in range(12):
            for one in logs:
                await log.send(one.partition, [record.value for record in one.records(50)])
            await asyncio.sleep(0.1)

    loading = asyncio.create_task(load())
    await asyncio.sleep(0.5)
    report = await rebuild(log, database)
    assert report.switched
    assert report.comparison.equal in (True, None)
    await loading
    await until(database, log)
    report = await rebuild(log, database)
    assert (report.switched, report.comparison.equal) == (True, True)
    assert report.comparison.uncompared == {}
    for one in logs:
        await log.send(one.partition, [record.value for record in one.records(50)])
    begun = time.monotonic()
    await until(database, log)
    assert time.monotonic() - begun < 30
    await equals_the_fold(database, log)
    assert processes[0].poll() is None, (tmp_path / "indexer.log").read_text()


async def test_rebuilt_rows_are_those_the_indexer_writes(log: IndexerLog, database: str) -> None:
    """History, provenance, tables, views, grants: nobody can tell a rebuilt index by its rows."""
    one = await log.random(7, 0)
    await log.send(0, [record.value for record in one.records(600)])
    async with log.applying(database) as (applier, _):
        await applier.own([0, 1])
        await applier.apply(0, await log.read())
    before = await history(database)
    catalogue = await described(database)
    report = await rebuild(log, database)
    assert (report.switched, report.comparison.equal) == (True, True)
    assert await history(database) == before
    assert await described(database) == catalogue
    await equals_the_fold(database, log)
    await asyncio.to_thread(alembic, database, "check")
    await asyncio.to_thread(alembic, database, "downgrade", "base")
    await asyncio.to_thread(run_migrations, database)


async def described(database: str) -> list[str]:
    """Every table, view, index, constraint and grant of the index, by name."""
    connection = await asyncpg.connect(database)
    try:
        rows = await connection.fetch(
            """SELECT format('%s %s %s %s', n.nspname, c.relname, c.relkind,
                             (SELECT string_agg(a::text, ',' ORDER BY a::text) FROM aclexplode(c.relacl) a
                              WHERE a.grantee <> c.relowner)) AS line
               FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname IN ('public', 'compliance')
               UNION ALL SELECT conname || ' ' || conrelid::regclass FROM pg_constraint WHERE contype <> 'n'
               UNION ALL SELECT viewname || viewowner || definition FROM pg_views WHERE schemaname = 'compliance'
               UNION ALL SELECT obj_description(oid) FROM pg_class WHERE relkind = 'v' AND relowner > 16000
               UNION ALL SELECT nspname FROM pg_namespace"""
        )
        return sorted(str(row["line"]) for row in rows if "toast" not in str(row["line"]))
    finally:
        await connection.close()


async def test_different_index_is_shown_and_replaced_only_when_accepted(
    log: IndexerLog, database: str
) -> None:
    one = await log.random(8, 0)
    await log.send(0, [record.value for record in one.records(300)])
    assert (await rebuild(log, database)).switched
    connection = await asyncpg.connect(database)
    await connection.execute("DELETE FROM copy WHERE block IN (SELECT block FROM copy LIMIT 1)")
    await connection.execute("UPDATE stream SET next_seq = next_seq + 1 WHERE worker = 'w1-0'")
    refused = await rebuild(log, database)
    assert (refused.switched, refused.comparison.equal) == (False, False)
    found = refused.comparison.differences
    assert found.copies >= 1
    assert [
        (one.what, int(one.index or 0) - int(one.log or 0)) for one in found.shown if "/" not in one.what
    ] == [("next_seq", 1)]
    assert {one.index for one in found.shown if "/" in one.what} == {None}
    assert await connection.fetchval("SELECT count(*) FROM pg_namespace WHERE nspname = $1", FRESH) == 0
    assert await log.read(AUDIT) == []
    accepted = await rebuild(log, database, accept=True)
    assert accepted.switched
    await equals_the_fold(database, log)
    (record,) = await log.read(AUDIT)
    statement = json.loads(decode_audit(record.value).statement)
    assert statement["type"] == "index_accepted"
    assert statement["before"] == accepted.comparison.index
    assert statement["after"] == accepted.comparison.log
    assert (await rebuild(log, database)).comparison.equal
    await connection.close()


async def test_interrupted_rebuild_leaves_the_index_in_force(
    log: IndexerLog, database: str, processes: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    one = await log.random(9, 0)
    await log.send(0, [record.value for record in one.records(300)])
    assert (await rebuild(log, database)).switched
    before = await history(database)
    phases: list[str] = []

    class StopError(Exception):
        pass

    for stop in ("folding", "copying", "switching"):

        def end(progress: Progress, stop: str = stop) -> None:
            phases.append(progress.phase)
            if progress.phase == stop:
                raise StopError

        with pytest.raises(StopError):
            await run_rebuild(settings_of(log, database), database, accept=False, progress=end)
        assert await history(database) == before
    process = log.start("index", database, tmp_path / "rebuild.log", "rebuild", "--json")
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    assert await history(database) == before
    await equals_the_fold(database, log)
    assert (await rebuild(log, database)).comparison.equal
