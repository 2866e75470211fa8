"""Whoever reads several tables of the index at once reads all before a switch or all after it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import asyncpg
import pytest

from events.fold.registry import Registry
from events.kafka.connection import RawRecord
from events.keyring import KeyRing
from events.signing import verify
from indexer.census import take_census
from indexer.postgres_store import PostgresStore
from indexer.time_travel import LogPosition, Wanted, places_from_history
from tests.support.log import StreamBuilder, block, declared, opened, stored
from tests.support.store_contract import TOPIC, start


async def dead_records(database: str) -> int:
    return (await take_census(database, TOPIC)).dead_records


async def places(database: str) -> int:
    position = LogPosition({0: 1}, 0, {0: 0})
    found = await places_from_history(database, TOPIC, Registry(verify), KeyRing({}), position, Wanted())
    assert found is not None
    return len(found)


READERS: dict[Callable[[str], Awaitable[int]], str] = {
    dead_records: "DELETE FROM dead_record",
    places: "DELETE FROM copy",
}
WAITING = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.mark.parametrize("read", READERS)
async def test_a_reader_that_waits_for_a_switch_reads_nothing_from_before_it(
    database: str, read: Callable[[str], Awaitable[int]]
) -> None:
    store = PostgresStore(database)
    lease, projection = await start(store)
    value = StreamBuilder().seal(opened(), events=[declared(), stored([block(1)])]).value
    delta = projection.fold([RawRecord(TOPIC, 0, 0, None, value, None, 0)])
    assert delta is not None
    await store.write(lease, delta)
    await store.close()
    switch, watch = await asyncpg.connect(database), await asyncpg.connect(database)
    try:
        await switch.execute("UPDATE partition_progress SET log_id = ''; DELETE FROM partition_time")
        await switch.execute("INSERT INTO dead_record VALUES ($1, 0, 7, 'why', now())", TOPIC)
        assert await read(database) == 1
        async with switch.transaction():
            await switch.execute("LOCK TABLE stream, copy, dead_record IN ACCESS EXCLUSIVE MODE")
            await switch.execute(READERS[read])
            reading = asyncio.ensure_future(read(database))
            begun = time.monotonic()
            while not await watch.fetch(WAITING):
                assert time.monotonic() - begun < 20
                await asyncio.sleep(0.05)
        assert await reading == 0
    finally:
        await switch.close()
        await watch.close()
