"""What PostgreSQL can't hold goes to the dead letters, and everything else into the index."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from events.fold.registry_state import Domain
from events.ids import StreamKey, StreamStatus
from events.model.part import HolderDeclared, Opened
from indexer import control_sql
from indexer.applier import UNSTORABLE, Applier
from indexer.bulk import insert
from indexer.control_row import domain_row
from indexer.delta import Delta
from indexer.postgres_store import PostgresStore
from indexer.store import StoreRefusedError
from tests.support.applier_world import ApplierWorld
from tests.support.log import StreamBuilder, block, declared, opened, stored
from tests.support.store_contract import TOPIC, comparable, start

GOOD, BAD = StreamKey("good", 0, "e1"), StreamKey("bad", 0, "e1")


def of_capacity(blocks: int) -> Opened:
    plain = opened()
    (holder,) = plain.holders
    grown = HolderDeclared(**{**holder.model_dump(), "groups": holder.groups, "capacity_blocks": blocks})
    return plain.model_copy(update={"holders": (grown,)})


@pytest.fixture
async def connection(database: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(database)
    yield connection
    await connection.close()


@pytest.fixture
async def store(database: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(database)
    yield store
    await store.close()


def states_of(applier: Applier) -> Any:
    return comparable(applier._owned[0].projection.streams.values())


async def test_refused_record_is_buried_whole_and_the_rest_is_indexed(
    connection: Any, store: PostgresStore
) -> None:
    await connection.execute("ALTER TABLE holder ALTER COLUMN capacity_blocks TYPE int4")
    good, bad = StreamBuilder("good"), StreamBuilder("bad")
    world = ApplierWorld(store)
    applier, _ = await world.start()
    values = [builder.seal(of_capacity(100), events=[declared()]).value for builder in (good, bad)]
    for number in range(3):
        values.append(good.seal(events=[stored([block(number)])]).value)
        values.append(b"garbage")
    values.append(bad.seal(events=[stored([block("before")])]).value)
    bad.snapshot([stored([block("after")])], start=of_capacity(1 << 40))
    values += [record.value for record in bad.sent[-3:]]
    values.append(good.seal(events=[stored([block("last")])]).value)
    await world.send(applier, values)

    refused = values.index(bad.sent[-3].value)
    assert {
        (letter.offset, letter.value) for letter in world.outbox.buried if letter.reason == UNSTORABLE
    } == {(refused, values[refused])}
    assert len(world.outbox.buried) == len({letter.offset for letter in world.outbox.buried}) == 4
    assert world.outbox.asked.keys() == {BAD}
    rows = await connection.fetch('SELECT "offset" FROM dead_record')
    assert {row["offset"] for row in rows} == {letter.offset for letter in world.outbox.buried}
    lease, projection = await start(store)
    assert lease.next_offset == len(values)
    assert projection.streams[GOOD].status is StreamStatus.LIVE
    assert projection.streams[GOOD].copy_count() == 4
    assert projection.streams[BAD].status is StreamStatus.QUARANTINED
    assert states_of(applier) == comparable(projection.streams.values())


async def test_stream_is_healed_by_its_next_snapshot(connection: Any, store: PostgresStore) -> None:
    await connection.execute("ALTER TABLE holder ALTER COLUMN capacity_blocks TYPE int4")
    world = ApplierWorld(store)
    applier, _ = await world.start()
    bad = StreamBuilder("bad")
    await world.send(
        applier,
        [
            bad.seal(of_capacity(1 << 40), events=[declared()]).value,
            bad.seal(events=[stored([block(1)])]).value,
        ],
    )
    bad.snapshot([])
    await world.send(applier, [record.value for record in bad.sent[-3:]])
    (state,) = (state for _, state in (await store.snapshot(TOPIC)).states)
    assert state.status is StreamStatus.LIVE


async def test_what_the_client_can_not_even_send_is_refused_too(store: PostgresStore) -> None:
    """Such a value never reaches the server: it must not be taken for a server that is away."""
    lease, _ = await start(store)
    with pytest.raises(StoreRefusedError):
        await store.write(lease, Delta(0, 1 << 63, b"", 0))
    await store.write(lease, Delta(0, 1, b"", 0))
    assert (await store.claim(TOPIC, 0)).next_offset == 1


async def test_control_row_that_can_not_be_held_stops_no_other(connection: Any) -> None:
    rows = [
        domain_row(Domain(name, "acme", False, offset))
        for offset, name in enumerate(["a", "b", "too-long", "c", "d"])
    ]
    await connection.execute("ALTER TABLE domain ADD CHECK (length(name) <= 3)")
    async with connection.transaction():
        await insert(connection, control_sql.DOMAIN, rows)
    names = [row["name"] for row in await connection.fetch("SELECT name FROM domain ORDER BY name")]
    assert names == ["a", "b", "c", "d"]
