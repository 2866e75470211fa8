"""What every store of the index must do, once for all of them: subclass it and give `store`."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from events.chain import Checksum
from events.fold.digest import index_digest
from events.fold.record import fold_record
from events.fold.registry import Registry
from events.fold.state import StreamState, Usage
from events.ids import EvictReason, StreamKey, Tier
from events.kafka.connection import RawRecord
from events.model.part import BlockEvicted, DomainEvent
from events.signing import verify
from indexer.delta import Delta
from indexer.projection import PartitionProjection
from indexer.store import Lease, LeaseLostError, Store
from indexer.stranger import StrangerCounts, StrangerLimits, Strangers
from tests.support.log import ALIAS, ControlLog, StreamBuilder, block, declared, opened, stored
from tests.support.random_log import RandomLog

TOPIC = "kv.events"


def empty_registry() -> Registry:
    return Registry(verify)


def fold(records: Iterable[RawRecord]) -> dict[StreamKey, StreamState]:
    """The fold of the log, nothing stored."""
    states: dict[StreamKey, StreamState] = {}
    for record in records:
        fold_record(states, record.value)
    return states


def comparable(states: Iterable[StreamState]) -> list[StreamState]:
    """States without what isn't stored because it says nothing: empty tables, zero sums, interned values,
    and NUL, which PostgreSQL's text can't hold."""
    plain = []
    for state in states:
        sums = {key: Checksum(c.count, c.total) for key, c in state.checksums.items() if c.count}
        copies = {where: dict(table) for where, table in state.copies.items() if table}
        plain.append(replace(state, checksums=sums, copies=copies, interned={}))
    return sorted(plain, key=lambda state: state.key)


def usage_of(states: Iterable[StreamState]) -> dict[tuple[StreamKey, bytes, Tier], Usage]:
    return {
        (state.key, alias, tier): used
        for state in states
        for (alias, tier), used in state.usage.items()
        if used.blocks or used.bytes
    }


async def start(store: Store, partition: int = 0) -> tuple[Lease, PartitionProjection]:
    """Claims a partition and loads what is there."""
    lease = await store.claim(TOPIC, partition)
    states = await store.load(lease)
    return lease, PartitionProjection.of(partition, lease.next_offset, lease.last_record_sha256, states)


def simple_records(count: int = 3) -> list[RawRecord]:
    """One stream that stores a chain of `count` blocks, one a record."""
    builder = StreamBuilder()
    values = [builder.seal(opened(Tier.GPU, Tier.CPU), events=[declared()]).value]
    parent = None
    for number in range(count):
        values.append(builder.seal(events=[stored([block(number)], parent)]).value)
        parent = block(number)
    return [
        RawRecord(TOPIC, 0, offset, b"k", value, None, 1_700_000_000_000)
        for offset, value in enumerate(values)
    ]


def folded(projection: PartitionProjection, records: Sequence[RawRecord]) -> Delta:
    delta = projection.fold(records)
    assert delta is not None
    return delta


class StoreContract:
    """The suite; each test gets a fresh `store`."""

    @pytest.mark.parametrize("seed", range(4))
    async def test_index_equals_the_fold_after_every_batch(self, store: Store, seed: int) -> None:
        rng = random.Random(seed)
        log = RandomLog(rng)
        lease, projection = await start(store)
        read: list[RawRecord] = []
        for _ in range(8):
            batch = list(log.records(rng.randint(1, 40)))
            read += batch
            await store.write(lease, folded(projection, batch))
            states = fold(read)
            assert await store.digest(empty_registry()) == index_digest(states.values(), empty_registry())
            assert await store.usage() == usage_of(states.values())

    @pytest.mark.parametrize("seed", range(4))
    async def test_loaded_states_go_on_as_if_never_stored(self, store: Store, seed: int) -> None:
        log = RandomLog(random.Random(100 + seed))
        read = list(log.records(60))
        lease, projection = await start(store)
        await store.write(lease, folded(projection, read))
        assert comparable(await store.load(lease)) == comparable(fold(read).values())
        lease, projection = await start(store)
        more = list(log.records(60))
        await store.write(lease, folded(projection, more))
        assert comparable(await store.load(lease)) == comparable(fold(read + more).values())
        snapshot = await store.snapshot(TOPIC)
        assert snapshot.positions == {0: 120}
        assert comparable(state for _, state in snapshot.states) == comparable(fold(read + more).values())

    async def test_repeated_write_changes_nothing(self, store: Store) -> None:
        lease, projection = await start(store)
        delta = folded(projection, simple_records())
        await store.write(lease, delta)
        before, used = await store.digest(empty_registry()), await store.usage()
        await store.write(lease, delta)
        assert (await store.digest(empty_registry()), await store.usage()) == (before, used)

    async def test_redelivered_batch_changes_nothing(self, store: Store) -> None:
        records = simple_records()
        lease, projection = await start(store)
        await store.write(lease, folded(projection, records[:3]))
        assert projection.fold(records[:3]) is None
        await store.write(lease, folded(projection, records[1:]))
        assert await store.digest(empty_registry()) == index_digest(fold(records).values(), empty_registry())
        assert await store.usage() == {(StreamKey("w0", 0, "e1"), ALIAS, Tier.GPU): Usage(3, 300)}

    async def test_zombie_of_an_earlier_term_cannot_write(self, store: Store) -> None:
        records = simple_records()
        zombie_lease, zombie = await start(store)
        await store.write(zombie_lease, folded(zombie, records[:2]))
        lease, owner = await start(store)
        assert lease.term == zombie_lease.term + 1
        assert (await store.holds(zombie_lease), await store.holds(lease)) == (False, True)
        with pytest.raises(LeaseLostError):
            await store.write(zombie_lease, folded(zombie, records[2:3]))
        with pytest.raises(LeaseLostError):
            await store.load(zombie_lease)
        await store.write(lease, folded(owner, records[2:]))
        with pytest.raises(LeaseLostError):
            await store.write(zombie_lease, folded(zombie, records[3:]))
        assert await store.digest(empty_registry()) == index_digest(fold(records).values(), empty_registry())

    async def test_zombie_that_folded_ahead_never_skips_records(self, store: Store) -> None:
        records = simple_records()
        lease, projection = await start(store)
        lost = folded(projection, records[:2])
        with pytest.raises(LeaseLostError):
            await store.write(lease, folded(projection, records[2:]))
        await store.write(lease, lost)
        assert (await store.claim(TOPIC, 0)).next_offset == 2

    async def test_claim_tells_where_the_partition_stands(self, store: Store) -> None:
        lease, projection = await start(store)
        assert (lease.term, lease.next_offset, lease.last_record_sha256) == (1, 0, b"")
        delta = folded(projection, simple_records())
        await store.write(lease, delta)
        again = await store.claim(TOPIC, 0)
        assert (again.term, again.next_offset, again.last_record_sha256) == (2, 4, delta.last_record_sha256)

    async def test_reset_empties_one_partition_only(self, store: Store) -> None:
        records = simple_records()
        for partition in (0, 1):
            lease, projection = await start(store, partition)
            await store.write(lease, folded(projection, records))
        lease = await store.claim(TOPIC, 0)
        lease = await store.reset(lease, log_id="other", start=7, rebuild_until=9)
        assert await store.load(lease) == []
        snapshot = await store.snapshot(TOPIC)
        assert snapshot.positions == {0: 7, 1: 4}
        assert [partition for partition, _ in snapshot.states] == [1]
        again = await store.claim(TOPIC, 0)
        assert (again.next_offset, again.log_id, again.rebuild_until) == (7, "other", 9)
        with pytest.raises(LeaseLostError):
            await store.reset(lease, log_id="other", start=0, rebuild_until=0)

    async def test_log_that_lost_its_head_puts_every_stream_in_gap(self, store: Store) -> None:
        lease, projection = await start(store)
        await store.write(lease, folded(projection, simple_records()))
        await store.write(lease, projection.skip_to(50))
        lease = await store.claim(TOPIC, 0)
        assert lease.next_offset == 50
        assert [state.status for state in await store.load(lease)] == ["gap"]

    async def test_superseded_streams_leave_the_digest_and_their_copies_are_pruned(
        self, store: Store
    ) -> None:
        control = ControlLog()
        old, new = control.register(epoch="e1"), control.register(epoch="e2")
        registry = Registry(verify)
        for offset, (value, signature) in enumerate(control.records):
            registry.fold(offset, value, signature)
        first, second = StreamBuilder(epoch="e1", epoch_no=old), StreamBuilder(epoch="e2", epoch_no=new)
        values = [
            builder.seal(opened(), events=[declared(), stored([block(1), block(2)])]).value
            for builder in (first, second)
        ]
        records = [RawRecord(TOPIC, 0, at, None, value, None, 0) for at, value in enumerate(values)]
        lease, projection = await start(store)
        await store.write(lease, folded(projection, records))
        wanted = index_digest(fold(records[1:]).values(), registry)
        assert await store.digest(registry) == wanted
        pruned = projection.prune(registry)
        assert pruned is not None
        await store.write(lease, pruned)
        assert projection.prune(registry) is None
        assert await store.digest(registry) == wanted
        assert {key.epoch for key, _, _ in await store.usage()} == {"e2"}
        late = first.seal(events=[stored([block(3)])]).value
        await store.write(lease, folded(projection, [RawRecord(TOPIC, 0, 2, None, late, None, 0)]))
        assert await store.digest(registry) == wanted

    async def test_a_forgotten_stream_leaves_nothing_and_may_come_again(self, store: Store) -> None:
        def strangers() -> Strangers:
            return Strangers(empty_registry(), StrangerLimits(max_streams=1), StrangerCounts())

        builders = [StreamBuilder("w0"), StreamBuilder("w1")]
        values = [
            builder.seal(opened(), events=[declared(), stored([block(1), block(2)])]).value
            for builder in builders
        ]
        values.insert(1, builders[0].seal(events=[BlockEvicted(holder="gpu", group=0, ids=(block(1),),
                                                               reason=EvictReason.CAPACITY)]).value)  # fmt: skip
        values += [builders[0].seal(events=[stored([block(3)])]).value]
        records = [RawRecord(TOPIC, 0, at, None, value, None, 0) for at, value in enumerate(values)]
        lease, projection = await start(store)
        projection.strangers = strangers()
        await store.write(lease, folded(projection, records[:2]))
        delta = folded(projection, records[2:3])
        assert delta.forgotten == [StreamKey("w0", 0, "e1")]
        await store.write(lease, delta)
        assert await store.digest(empty_registry()) == index_digest(
            fold(records[2:3]).values(), empty_registry()
        )
        assert {key.worker for key, _, _ in await store.usage()} == {"w1"}
        await store.write(lease, folded(projection, records[3:]))
        assert await store.digest(empty_registry()) == index_digest(
            fold(records[3:]).values(), empty_registry()
        )
        assert [state.status for state in await store.load(lease)] == ["gap"]

    async def test_a_registered_name_in_a_foreign_partition_is_in_no_digest(self, store: Store) -> None:
        control = ControlLog()
        number = len(control.records)
        values: dict[int, bytes] = {}
        for partition, ids in ((0, [block(1)]), (5, [block(2), block(3)])):
            builder = StreamBuilder(epoch_no=number)
            values[partition] = builder.seal(opened(), events=[declared(), stored(ids)]).value
        for partition, value in values.items():
            lease, projection = await start(store, partition)
            await store.write(
                lease, folded(projection, [RawRecord(TOPIC, partition, 0, None, value, None, 0)])
            )
        assert control.register() == number
        registry = Registry(verify)
        for offset, (value, signature) in enumerate(control.records):
            registry.fold(offset, value, signature)
        mine = fold([RawRecord(TOPIC, 0, 0, None, values[0], None, 0)])
        assert await store.digest(registry) == index_digest(mine.values(), registry)

    async def test_what_a_superseded_stream_told_of_a_durable_holder_stays(self, store: Store) -> None:
        control = ControlLog()
        old = control.register(epoch="e1")
        control.register(epoch="e2")
        registry = Registry(verify)
        for offset, (value, signature) in enumerate(control.records):
            registry.fold(offset, value, signature)
        start_with = opened(Tier.GPU, Tier.DISK)
        disk = start_with.holders[1].model_copy(update={"durable_id": "disk-1"})
        start_with = start_with.model_copy(update={"holders": (start_with.holders[0], disk)})
        builder = StreamBuilder(epoch="e1", epoch_no=old)
        events: list[DomainEvent] = [declared(), stored([block(1)]), stored([block(2)], holder="disk")]
        records = [RawRecord(TOPIC, 0, 0, None, builder.seal(start_with, events=events).value, None, 0)]
        lease, projection = await start(store)
        await store.write(lease, folded(projection, records))
        wanted = index_digest(fold(records).values(), registry)
        assert wanted != index_digest([], registry)
        assert await store.digest(registry) == wanted
        pruned = projection.prune(registry)
        assert pruned is not None
        await store.write(lease, pruned)
        assert await store.digest(registry) == wanted
        assert {tier for _, _, tier in await store.usage()} == {Tier.DISK}
