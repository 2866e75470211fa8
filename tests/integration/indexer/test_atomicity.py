"""Rows and watermark are one: killed between them nothing is written, and what was stored of another log, or of
an earlier state, is never gone on from."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from aiokafka.admin import AIOKafkaAdminClient

from events.fold.digest import index_digest
from events.kafka.connection import RawRecord
from events.kafka.topic_admin import TopicAdmin
from events.topic import EVENTS
from indexer.applier import Applier
from indexer.postgres_store import PostgresStore
from indexer.store import StoreUnavailableError
from tests.support.indexer_log import IndexerLog, indexer_log
from tests.support.random_log import RandomLog
from tests.support.stack import drop_database, with_database
from tests.support.store_contract import start, usage_of


@pytest.fixture
async def log(kafka: str, topic_prefix: str, tmp_path: Path) -> AsyncIterator[IndexerLog]:
    async with indexer_log(kafka, topic_prefix, tmp_path / "home", partitions=1) as log:
        yield log


async def everything(database: str) -> list[Any]:
    """Every row that a write changes, times and ids left out."""
    connection = await asyncpg.connect(database)
    try:
        return [
            sorted(map(repr, await connection.fetch(query)))
            for query in (
                "SELECT next_offset, last_record_sha256 FROM partition_progress",
                "SELECT worker, epoch, next_seq, prev, status FROM stream",
                "SELECT name, inventory FROM holder",
                "SELECT group_index, block, parent, since_offset FROM copy",
                "SELECT group_index, block, from_offset, to_offset, reason FROM copy_span",
                "SELECT alias, tier, blocks, bytes FROM tenant_usage",
                "SELECT request, removed, old_left FROM deletion_ack",
                'SELECT "offset", reason FROM dead_record',
            )
        ]
    finally:
        await connection.close()


@pytest.mark.parametrize("before", ["stream", "copy", "tenant_usage", "partition_time"])
async def test_killed_between_rows_and_watermark_leaves_neither_and_repeats_once(
    database: str, before: str
) -> None:
    """The write stands before one of its tables, its watermark and earlier rows already sent, and is killed."""
    records = list(RandomLog(random.Random(3)).records(200))
    store, blocker = PostgresStore(database, name="victim"), await asyncpg.connect(database)
    lease, projection = await start(store)
    first = projection.fold(records[:100])
    assert first is not None
    await store.write(lease, first)
    stood = await everything(database)
    second = projection.fold(records[100:])
    assert second is not None
    async with blocker.transaction():
        await blocker.execute(f"LOCK TABLE {before} IN EXCLUSIVE MODE")
        writing = asyncio.create_task(store.write(lease, second))
        async with asyncio.timeout(20):
            while not (victims := await blocker.fetch(_WAITING)):
                await asyncio.sleep(0.02)
        await blocker.execute("SELECT pg_terminate_backend($1)", victims[0]["pid"])
        with pytest.raises(StoreUnavailableError):
            await writing
    assert await everything(database) == stood
    await store.write(lease, second)
    written = await everything(database)
    await store.write(lease, second)
    assert await everything(database) == written != stood
    states = list(projection.streams.values())
    assert await store.usage() == usage_of(states)
    await store.close()
    await blocker.close()


_WAITING = """
SELECT pid FROM pg_stat_activity WHERE application_name = 'victim' AND wait_event_type = 'Lock'
AND datname = current_database()
"""


async def follow(log: IndexerLog, database: str) -> Applier:
    """An applier that owned the partition and applied all that the log holds from where it stood."""
    async with log.applying(database) as (applier, store):
        (offset,) = (await applier.own([0])).values()
        fresh: Sequence[RawRecord] = [record for record in await log.read() if record.offset >= offset]
        await applier.apply(0, fresh)
        registry, states = await log.registry(), await log.fold()
        assert await store.digest(registry) == index_digest(states, registry)
        assert await store.usage() == usage_of(states)
    return applier


async def test_database_of_an_earlier_state_catches_up(log: IndexerLog, database: str, postgres: str) -> None:
    one = await log.random(4)
    await log.send(0, [record.value for record in one.records(150)])
    await follow(log, database)
    backup = with_database(postgres, f"backup_{time.monotonic_ns()}")
    admin = await asyncpg.connect(postgres)
    await admin.execute(
        f'CREATE DATABASE "{backup.rsplit("/", 1)[1]}" TEMPLATE "{database.rsplit("/", 1)[1]}"'
    )
    await log.send(0, [record.value for record in one.records(150)])
    await follow(log, database)
    applier = await follow(log, backup)
    assert applier.positions == {0: 300}
    assert await everything(backup) == await everything(database)
    await admin.close()
    await asyncio.to_thread(drop_database, postgres, backup)


async def test_log_truncated_below_the_position_is_folded_again(log: IndexerLog, database: str) -> None:
    """An unclean election: the log is shorter than what was stored, then longer with other records."""
    one = await log.random(5)
    values = [record.value for record in one.records(300)]
    await log.send(0, values)
    await follow(log, database)
    for kept, more in ((120, 0), (90, 400)):
        admin = AIOKafkaAdminClient(bootstrap_servers=log.connection.bootstrap)
        await admin.start()
        await admin.delete_topics([log.connection.topic(EVENTS)])
        async with asyncio.timeout(30):
            while log.connection.topic(EVENTS) in await admin.list_topics():
                await asyncio.sleep(0.1)
        await admin.close()
        await TopicAdmin(log.connection, partitions=1).ensure()
        other = [record.value for record in (await log.random(6 + kept)).records(more)]
        await log.send(0, values[:kept] + other)
        applier = await follow(log, database)
        assert applier.positions == {0: kept + more}
