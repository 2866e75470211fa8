"""The feed's turns: a partition that has much to read, and an index that has much to do, hold up nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field

from events.kafka.connection import KafkaConnection, RawRecord
from indexer.service.feed import ViewFeed
from tests.support.log import block
from tests.support.reader_world import World, chain_of, lengths

BUSY, CALM = 1, 0
CHAIN = chain_of(range(640))


@dataclass
class ListedTail:
    """Everything is fetched at once, the busy partition first. `marks`: offsets behind the last record that hold
    none."""

    records: dict[int, list[bytes]]
    offsets: dict[int, int] = field(default_factory=dict)
    marks: dict[int, int] = field(default_factory=dict)

    async def fetch_evenly(self, share: int, *, timeout_ms: int, busy: Collection[int]) -> list[RawRecord]:
        await asyncio.sleep(0)
        found: list[RawRecord] = []
        for partition in (BUSY, CALM):
            values = self.records.get(partition, []) if partition not in busy else []
            for value in values[:share]:
                offset = self.offsets[partition] = self.offsets.get(partition, -1) + 1
                found.append(RawRecord("t", partition, offset, b"", value, None, 0))
            del values[:share]
        return found

    async def position(self, topic: str, partition: int) -> int:
        return self.offsets.get(partition, -1) + 1 + self.marks.get(partition, 0)


async def test_a_partition_with_much_to_read_delays_no_other() -> None:
    world = World()
    calm = world.join("calm", start=False, partition=CALM)
    calm.hold = True
    calm.open()
    for depth in range(20):
        calm.store(CHAIN[depth : depth + 1], CHAIN[depth - 1] if depth else None)
    busy = world.join("busy", start=False, partition=BUSY)
    busy.hold = True
    busy.open()
    for n in range(150):
        busy.store([block(n, at) for at in range(100)])
    view = world.view
    ticks = iter(range(0, 10**12, 1_500_000))
    feed = ViewFeed(
        KafkaConnection("127.0.0.1:9"), world.registry, monotonic_ns=lambda: next(ticks), wall_ms=lambda: 0
    )
    feed.attach(view)
    following = asyncio.create_task(
        feed._follow(view, ListedTail({CALM: list(calm.held), BUSY: list(busy.held)}))
    )
    while view.position(CALM) < 21:
        await asyncio.sleep(0)
    assert view.position(BUSY) < 60, "the busy partition was drained first"
    calm.pulse(echo=world.beacon())
    assert lengths(world.get(CHAIN, min_coverage=0)) == {"calm": 20}
    while view.position(BUSY) < 151:
        await asyncio.sleep(0)
    following.cancel()
    await asyncio.wait([following])
    assert view.copies == 20 + 150 * 100


async def test_a_replica_that_reads_a_partition_again_is_caught_up_only_at_its_end() -> None:
    world = World()
    hook = world.join("calm")
    for depth in range(4):
        hook.store(CHAIN[depth : depth + 1], CHAIN[depth - 1] if depth else None)
    view = world.view
    feed = ViewFeed(KafkaConnection("127.0.0.1:9"), world.registry, monotonic_ns=lambda: 0, wall_ms=lambda: 0)
    feed.attach(view)
    feed.state.ends = {CALM: 5}
    feed._check_caught_up()
    assert view.caught_up
    view.partition_lost(CALM, 2)
    feed.state.ends = {CALM: 5}
    seen: list[bool] = []
    for offset, record in enumerate(hook.builder.sent):
        await feed._apply(view, [RawRecord("t", CALM, offset, b"", record.value, None, 0)])
        seen.append(view.caught_up)
    assert seen == [False, False, False, False, True]


async def test_a_transactions_mark_behind_the_last_record_holds_up_no_start() -> None:
    world = World()
    hook = world.join("calm", start=False, partition=CALM)
    hook.hold = True
    hook.open()
    hook.store(CHAIN[:1])
    view = world.view
    feed = ViewFeed(KafkaConnection("127.0.0.1:9"), world.registry, monotonic_ns=lambda: 0, wall_ms=lambda: 0)
    feed.attach(view)
    view.caught_up = False
    feed.state.ends = {CALM: 3, BUSY: 2}
    tail = ListedTail({CALM: list(hook.held)}, marks={CALM: 1, BUSY: 1})
    following = asyncio.create_task(feed._follow(view, tail))
    while view.position(CALM) < 2:
        await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)
    assert not view.caught_up
    tail.marks[BUSY] = 2
    async with asyncio.timeout(10):
        while not view.caught_up:
            await asyncio.sleep(0)
    following.cancel()
    await asyncio.wait([following])
