"""What anybody writes under a registered name in another partition is nobody's: in the index, in a rebuild of it
and in the digests of both."""

from __future__ import annotations

import pytest

from events.fold.digest import index_digest
from events.fold.registry import Registry
from events.ids import StreamKey
from events.kafka.connection import RawRecord
from events.signing import verify
from indexer.memory_store import MemoryStore
from indexer.projection import PartitionProjection
from indexer.rebuild_fold import PartitionRebuild, RowIds
from indexer.stranger import StrangerCounts, StrangerLimits, Strangers
from tests.support.log import ControlLog, StreamBuilder, block, declared, opened, stored

TOPIC = "kv.events"
HOME, AWAY = 0, 5
LIMITS = StrangerLimits(max_letters=2)


def told(builder: StreamBuilder, *blocks: bytes) -> list[bytes]:
    return [
        builder.seal(opened(), events=[declared()]).value,
        builder.seal(events=[stored(list(blocks))]).value,
    ]


def records(partition: int, values: list[bytes]) -> list[RawRecord]:
    return [RawRecord(TOPIC, partition, at, None, value, None, 0) for at, value in enumerate(values)]


def read(log: ControlLog, registry: Registry | None = None) -> Registry:
    registry = registry or Registry(verify)
    for offset, (value, signature) in enumerate(log.records):
        registry.fold(offset, value, signature)
    return registry


def strangers(registry: Registry) -> Strangers:
    return Strangers(registry, LIMITS, StrangerCounts())


def test_a_registered_name_in_another_partition_is_not_folded_and_buried_once() -> None:
    log = ControlLog()
    number = log.register()
    found = strangers(read(log))
    projection = PartitionProjection(AWAY, 0, strangers=found)
    delta = projection.fold(records(AWAY, told(StreamBuilder(epoch_no=number), block(1))))
    assert delta is not None
    assert (projection.streams, found.held, delta.streams) == ({}, {}, {})
    assert [letter.reason for letter in delta.dead] == ["foreign_stream"]
    assert found.counts.foreign_records == 2
    home = PartitionProjection(HOME, 0, strangers=strangers(found.registry))
    home.fold(records(HOME, told(StreamBuilder(epoch_no=number), block(1))))
    assert home.streams.keys() == {StreamKey("w0", 0, "e1")}


@pytest.mark.parametrize("restored", [False, True])
async def test_a_name_taken_before_its_registration_pins_it_elsewhere_is_let_go(restored: bool) -> None:
    log, store = ControlLog(), MemoryStore()
    number = len(log.records)
    registry = read(log)
    lease = await store.claim(TOPIC, AWAY)
    projection = PartitionProjection(AWAY, 0, strangers=strangers(registry))
    delta = projection.fold(records(AWAY, told(StreamBuilder(epoch_no=number), block(1))))
    assert delta is not None
    await store.write(lease, delta)
    assert projection.streams.keys() == {StreamKey("w0", 0, "e1")}
    assert log.register() == number
    read(log, registry)
    nothing = index_digest([], registry)
    assert await store.digest(registry) == nothing
    if restored:
        states = await store.load(lease)
        projection = PartitionProjection.of(AWAY, 2, b"", states, strangers(registry))
    gone = projection.prune(registry)
    assert gone is not None
    assert gone.forgotten == [StreamKey("w0", 0, "e1")]
    assert (projection.streams, projection.prune(registry)) == ({}, None)
    await store.write(lease, gone)
    assert await store.load(lease) == []


async def test_index_and_rebuild_agree_whatever_is_written_elsewhere() -> None:
    log, store = ControlLog(), MemoryStore()
    registry, number = read(log), len(log.records)
    logs = {
        HOME: records(HOME, told(StreamBuilder(epoch_no=number), block(1), block(2))),
        AWAY: records(AWAY, told(StreamBuilder(epoch_no=number), block(3))),
    }
    projections = {p: PartitionProjection(p, 0, strangers=strangers(registry)) for p in logs}
    leases = {p: await store.claim(TOPIC, p) for p in logs}
    for at in range(2):
        for partition, projection in projections.items():
            delta = projection.fold(logs[partition][at : at + 1])
            assert delta is not None
            await store.write(leases[partition], delta)
        if at == 0:
            log.register()
            read(log, registry)
    rebuilt = {p: PartitionRebuild(p, 0, RowIds(), registry=registry) for p in logs}
    for partition, part in rebuilt.items():
        for record in logs[partition]:
            part.fold(record)
    states = [state for part in rebuilt.values() for state in part.states]
    assert [(state.key.worker, state.copy_count()) for state in states] == [("w0", 2)]
    assert await store.digest(registry) == index_digest(states, registry)
