from __future__ import annotations

import asyncio

import pytest

from events.ids import StreamKey, StreamStatus
from indexer.applier import SeekError
from indexer.delta import Delta
from indexer.memory_store import MemoryStore
from indexer.store import Lease, StoreUnavailableError
from tests.support.applier_world import ApplierWorld, MemoryPartitionLog
from tests.support.log import ControlLog, StreamBuilder, block, declared, opened, stored
from tests.support.store_contract import TOPIC, comparable, fold

GARBAGE = b"garbage"


def healthy(builder: StreamBuilder) -> bytes:
    return builder.seal(opened(), events=[declared()]).value


async def held(store: MemoryStore) -> object:
    return comparable(state for _, state in (await store.snapshot(TOPIC)).states)


async def test_empty_store_over_an_old_log_writes_nothing_to_kafka() -> None:
    old = ApplierWorld(MemoryStore())
    applier, _ = await old.start()
    builder = StreamBuilder()
    await old.send(applier, [healthy(builder), GARBAGE])
    builder.burn()
    await old.send(applier, [builder.seal(events=[stored([block(1)])]).value, b"{}"])
    assert [letter.offset for letter in old.outbox.buried] == [1, 3]

    store = MemoryStore()
    new = ApplierWorld(store, MemoryPartitionLog(list(old.log.records)))
    applier, start = await new.start()
    assert start == 0
    more = new.log.send([GARBAGE, builder.seal(prev=bytes(32)).value])
    await applier.apply(0, new.log.records)
    assert [letter.offset for letter in new.outbox.buried] == [more[0].offset]
    assert list(new.outbox.asked.values()) == ["chain_break"]
    assert sorted(offset for _, _, offset in store.dead()) == [1, 3, 4]
    assert await held(store) == comparable(fold(new.log.records).values())


async def test_interrupted_rebuild_goes_on_in_silence() -> None:
    world = ApplierWorld(MemoryStore())
    records = world.log.send([GARBAGE] * 4)
    applier, _ = await world.start()
    await applier.apply(0, records[:2])
    applier, start = await world.start()
    assert start == 2
    await applier.apply(0, records[2:])
    assert not world.outbox.buried
    await world.send(applier, [GARBAGE])
    assert [letter.offset for letter in world.outbox.buried] == [4]


async def test_missing_record_at_the_stored_position_is_another_log() -> None:
    store = MemoryStore()
    world = ApplierWorld(store)
    applier, _ = await world.start()
    builder = StreamBuilder()
    await world.send(applier, [healthy(builder), builder.seal(events=[stored([block(1)])]).value])
    log = MemoryPartitionLog(world.log.send([GARBAGE]))
    log.records.insert(0, world.log.records[0])
    applier, start = await ApplierWorld(store, log, control=world.control).start()
    assert start == 0
    await applier.apply(0, log.records[:1])
    assert await held(store) == comparable(fold(log.records[:1]).values())


async def test_lesser_call_does_not_hide_that_only_another_epoch_heals() -> None:
    world = ApplierWorld(MemoryStore())
    applier, _ = await world.start()
    builder = StreamBuilder()
    values = [healthy(builder), builder.seal(prev=b"x" * 32).value]
    builder.snapshot([])
    values += [record.value for record in builder.sent[-3:]]
    await world.send(applier, values)
    assert world.outbox.asked == {StreamKey("w0", 0, "e1"): "chain_break"}


class HangingStore(MemoryStore):
    """A store whose writes don't come back while `hangs`."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.hangs = asyncio.Event(), asyncio.Event()
        self.hangs.set()

    async def write(self, lease: Lease, delta: Delta) -> None:
        if not self.hangs.is_set():
            self.entered.set()
            await self.hangs.wait()
        await super().write(lease, delta)


async def test_pruning_does_not_wait_for_a_partition_that_is_being_written() -> None:
    store = HangingStore()
    control = ControlLog()
    old = StreamBuilder(epoch="e1", epoch_no=control.register(epoch="e1"))
    control.register(epoch="e2")
    world = ApplierWorld(store, control=control)
    applier, _ = await world.start()
    await world.send(applier, [healthy(old), old.seal(events=[stored([block(1)])]).value])
    store.hangs.clear()
    writing = asyncio.create_task(world.send(applier, [old.seal(events=[stored([block(2)])]).value]))
    async with asyncio.timeout(5):
        await store.entered.wait()
        await applier.prune()
    assert await store.usage()
    store.hangs.set()
    await writing
    await applier.prune()
    assert not await store.usage()


async def test_a_log_that_was_cut_and_written_over_is_folded_again() -> None:
    """Two streams; a record that was applied is cut off, and the other stream fills its place."""
    store = MemoryStore()
    world = ApplierWorld(store)
    one, other = StreamBuilder("w1"), StreamBuilder("w2")
    applier, _ = await world.start()
    await world.send(applier, [healthy(one), healthy(other)])
    assert await applier.look_back() == {}
    await world.send(applier, [one.seal(events=[stored([block(1)])]).value])
    world.log.cut(1)
    world.log.send([other.seal(events=[stored([block(2)])]).value])
    await world.send(applier, [other.seal(events=[stored([block(3)])]).value])
    assert await held(store) != comparable(fold(world.log.records).values())
    assert await applier.look_back() == {0: 0}
    assert await applier.look_back() == {}
    await applier.apply(0, world.log.records)
    assert await held(store) == comparable(fold(world.log.records).values())
    await world.send(applier, [one.seal(events=[stored([block(4)])]).value])
    states = {state.key.worker: state.status for _, state in (await store.snapshot(TOPIC)).states}
    assert states == {"w1": StreamStatus.GAP, "w2": StreamStatus.LIVE}


async def test_a_log_that_was_cut_while_nobody_looked_is_found_by_the_next_process() -> None:
    store = MemoryStore()
    world = ApplierWorld(store)
    one = StreamBuilder()
    applier, _ = await world.start()
    await world.send(applier, [healthy(one), one.seal().value])
    world.log.cut(1)
    applier, start = await world.start()
    assert start == 0


class AwayStore(MemoryStore):
    """Can't be reached while `away`."""

    away = False

    async def claim(self, topic: str, partition: int) -> Lease:
        if self.away:
            raise StoreUnavailableError("away")
        return await super().claim(topic, partition)


async def test_a_partition_that_cannot_be_taken_over_is_tried_again_and_written_no_more() -> None:
    store = AwayStore()
    world = ApplierWorld(store)
    one = StreamBuilder()
    applier, _ = await world.start()
    await world.send(applier, [healthy(one), one.seal(events=[stored([block(1)])]).value])
    await applier.look_back()
    stands = await held(store)
    world.log.cut(1)
    world.log.send([GARBAGE])
    store.away = True
    with pytest.raises(StoreUnavailableError):
        await applier.look_back()
    await world.send(applier, [one.seal(events=[stored([block(2)])]).value])
    assert await held(store) == stands
    store.away = False
    assert await applier.look_back() == {0: 0}
    await applier.apply(0, world.log.records)
    assert await held(store) == comparable(fold(world.log.records).values())


async def test_what_waits_for_the_store_while_it_is_cut_off_is_never_written() -> None:
    store = HangingStore()
    world = ApplierWorld(store)
    one, other = StreamBuilder("w1"), StreamBuilder("w2")
    applier, _ = await world.start()
    await world.send(applier, [healthy(one), healthy(other)])
    store.hangs.clear()
    writing = asyncio.create_task(world.send(applier, [one.seal(events=[stored([block(1)])]).value]))
    await store.entered.wait()
    world.log.cut(1)
    world.log.send([other.seal(events=[stored([block(2)])]).value])
    assert await applier.look_back() == {0: 0}
    store.hangs.set()
    await writing
    await applier.apply(0, world.log.records)
    assert await held(store) == comparable(fold(world.log.records).values())


async def test_what_was_fetched_from_the_former_leader_is_not_applied() -> None:
    """The consumer has it already; told to read again, it begins at the position, and that is believed."""
    store = MemoryStore()
    world = ApplierWorld(store)
    one, other = StreamBuilder("w1"), StreamBuilder("w2")
    applier, _ = await world.start()
    await world.send(applier, [healthy(one), healthy(other)])
    stale = world.log.send([one.seal(events=[stored([block(1)])]).value, one.seal().value])
    world.log.cut(2)
    world.log.send([other.seal(events=[stored([block(2)])]).value, other.seal().value, other.seal().value])
    assert await applier.look_back() == {}
    for delivered in (stale[:1], stale[1:]):
        with pytest.raises(SeekError) as caught:
            await applier.apply(0, delivered)
        assert caught.value.offset == 2
    await applier.apply(0, [*world.log.records[2:]])
    assert applier.positions == {0: 5}
    assert await held(store) == comparable(fold(world.log.records).values())
    assert await applier.look_back() == {}


async def test_a_loss_that_was_seen_dies_with_the_ownership() -> None:
    """Who owns the partition next has looked for itself; later it isn't emptied for the sake of that look."""
    store = MemoryStore()
    world = ApplierWorld(store)
    one = StreamBuilder()
    applier, _ = await world.start()
    await world.send(applier, [healthy(one), one.seal(events=[stored([block(1)])]).value])
    await applier.look_back()
    world.log.cut(1)
    world.log.send([GARBAGE])
    asked = world.log.digests

    async def rebalanced(topic: str, partition: int, first: int, last: int) -> dict[int, bytes]:
        await applier.own(set())
        return await asked(topic, partition, first, last)

    world.log.digests = rebalanced  # type: ignore[method-assign]
    assert await applier.look_back() == {}
    world.log.digests = asked  # type: ignore[method-assign]
    other, start = await world.start()
    assert start == 0
    await other.apply(0, world.log.records)
    assert await applier.own({0}) == {0: 2}
