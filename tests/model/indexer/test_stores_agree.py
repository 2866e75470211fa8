"""Whatever the log and however it is cut into batches, taken over and redelivered: both stores hold the fold."""

from __future__ import annotations

import asyncio
import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from events.fold.digest import index_digest
from events.kafka.connection import RawRecord
from indexer.memory_store import MemoryStore
from indexer.postgres_store import PostgresStore
from indexer.store import Store
from tests.support.random_log import RandomLog
from tests.support.store_contract import TOPIC, comparable, empty_registry, fold, start, usage_of

CUTS = st.lists(st.tuples(st.integers(1, 40), st.booleans(), st.integers(0, 10)), min_size=1, max_size=6)


async def project(store: Store, records: list[RawRecord], cuts: list[tuple[int, bool, int]]) -> None:
    """Batches of the given lengths; before some the partition is taken over, each repeats some of the last."""
    lease, projection = await start(store)
    lease = await store.reset(lease, log_id="log", start=0, rebuild_until=0)
    lease, projection = await start(store)
    at = 0
    for length, taken_over, repeated in cuts:
        if taken_over:
            lease, projection = await start(store)
        delta = projection.fold(records[max(0, at - repeated) : at + length])
        assert delta is not None
        await store.write(lease, delta)
        at += length


async def compare(database: str, seed: int, cuts: list[tuple[int, bool, int]]) -> None:
    records = list(RandomLog(random.Random(seed)).records(sum(length for length, _, _ in cuts)))
    states = fold(records).values()
    wanted = index_digest(states, empty_registry())
    memory, postgres = MemoryStore(), PostgresStore(database)
    try:
        for store in (memory, postgres):
            await project(store, records, cuts)
            assert await store.digest(empty_registry()) == wanted
            assert await store.usage() == usage_of(states)
            snapshot = await store.snapshot(TOPIC)
            assert comparable(state for _, state in snapshot.states) == comparable(states)
    finally:
        await postgres.close()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32), CUTS)
def test_both_stores_hold_the_fold(database: str, seed: int, cuts: list[tuple[int, bool, int]]) -> None:
    asyncio.run(compare(database, seed, cuts))
