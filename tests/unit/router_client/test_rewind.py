"""A partition that is read again from an older place never gives an old state a newer age."""

from __future__ import annotations

import random
from copy import deepcopy
from dataclasses import dataclass, field

import pytest

from events.ids import EvictReason, Inventory, StreamStatus
from events.model.part import (
    BlockEvicted,
    Closed,
    CopyRun,
    HolderInventory,
    ProfileDeclared,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotPart,
    SnapshotRange,
)
from router_client.limit import ViewLimits
from router_client.wire import Answer
from tests.support.log import HIGH, LOW, PROFILE, StreamBuilder, opened
from tests.support.reader_world import Hook, World, chain_of, lengths, reasons

CHAIN = chain_of(range(160))
OTHER = chain_of(range(1_000, 1_000 + 16 * 30))


@dataclass
class Log:
    """A world whose partition can be read again. `truths`: (instant, blocks of CHAIN that `a` leads with)."""

    world: World
    records: list[bytes] = field(default_factory=list)
    truths: list[tuple[int, int]] = field(default_factory=list)

    def take(self, hook: Hook) -> None:
        self.records += hook.held
        hook.held.clear()

    def read(self, count: int = 1_000) -> None:
        view = self.world.view
        at = view.position(0)
        for offset, value in enumerate(self.records[at : at + count], at):
            view.apply_record(0, offset, value, self.world.now_ns)


def snapshot(hook: Hook, name: str, blocks: list[bytes]) -> None:
    hook.write(
        SnapshotBegin(snapshot=name, opened=opened()),
        events=[ProfileDeclared(profile=0, content=PROFILE, block_bytes=(100,))],
    )
    parents = (bytes(16), *blocks[:-1]) if blocks else ()
    runs = (CopyRun(profile=0, ids=tuple(blocks), parents=parents),) if blocks else ()
    hook.write(
        SnapshotRange(snapshot=name, holder="gpu", group=0, low=LOW, high=HIGH),
        events=[SnapshotPart(runs=runs)],
    )
    known = HolderInventory(holder="gpu", inventory=Inventory.KNOWN)
    hook.write(SnapshotEnd(snapshot=name, inventories=(known,)))
    hook.copies["gpu", 0] = set(blocks)


def shed_after_eviction() -> tuple[Log, Hook]:
    """`a` told a snapshot of ten blocks, evicted nine, was confirmed, and is shed for what it stored since."""
    world = World(limits=ViewLimits(max_copies=20))
    log = Log(world)
    a = world.join("a", start=False)
    a.hold = True
    a.open()
    a.store(CHAIN)
    snapshot(a, "s", CHAIN)
    a.evict(CHAIN[1:])
    log.take(a)
    log.read()
    world.round(a)
    assert lengths(world.get(CHAIN)) == {"a": 1}
    a.store(OTHER)
    log.take(a)
    log.read()
    assert world.view.streams[next(iter(world.view.streams))].shed
    return log, a


def test_a_shed_stream_that_is_read_again_has_no_age_of_what_it_was() -> None:
    log, a = shed_after_eviction()
    world = log.world
    world.view.partition_lost(0, 0)
    log.read(len(log.records) - 2)
    stream = world.view.streams[next(iter(world.view.streams))]
    assert (stream.state.status, len(stream.state.copies["gpu", 0])) == (StreamStatus.LIVE, 10)
    assert (stream.as_of_ns, stream.divergent) == ({}, False)
    world.wait(100)
    refused = world.refused(CHAIN)
    assert refused.lagging is not None
    assert [lag.reason for lag in refused.lagging] == ["stale"]
    found = world.get(CHAIN, consistency="any")
    assert [match.within_bound for match in found.matches] == [False]
    assert not found.complete
    world.round(a)
    assert world.refused(CHAIN).status == 503, "a pulse that announces more than is applied"
    log.records[-1:] = []
    a.evict(OTHER)
    snapshot(a, "t", CHAIN[:1])
    log.take(a)
    log.read()
    world.round(a)
    assert lengths(world.get(CHAIN)) == {"a": 1}


def test_a_view_that_reads_again_is_not_caught_up() -> None:
    world = World()
    world.join("a").store(CHAIN)
    world.view.caught_up = True
    world.view.partition_lost(0, 0)
    assert not world.view.caught_up


@pytest.mark.parametrize("seed", range(30))
def test_no_answer_is_older_than_it_says_however_the_partition_is_read_again(seed: int) -> None:
    rng = random.Random(seed)
    world = World(limits=ViewLimits(max_copies=24, max_strangers=1))
    log = Log(world)
    a, b = world.join("a", start=False), world.join("b", start=False)
    for hook in (a, b):
        hook.hold = True
        hook.open()
        log.take(hook)
    held = answered = 0
    log.truths.append((world.now_ns, 0))
    for step in range(250):
        dice = rng.random()
        if dice < 0.15 and held < len(CHAIN):
            grown = rng.randint(held + 1, len(CHAIN))
            a.store(CHAIN[held:grown], CHAIN[held - 1] if held else None)
            held = grown
        elif dice < 0.30 and held:
            fewer = rng.randint(0, held - 1)
            a.evict(CHAIN[fewer:held])
            held = fewer
        elif dice < 0.45:
            snapshot(a, f"s{step}", CHAIN[:held])
        elif dice < 0.55:
            rng.choice((a, b)).store(OTHER[: rng.randint(1, 20)])
        elif dice < 0.65:
            b.evict(OTHER)
            snapshot(b, f"s{step}", [])
        elif dice < 0.72:
            world.view.partition_lost(0, rng.randint(0, world.view.position(0)))
        log.truths.append((world.now_ns, held))
        log.take(a)
        log.take(b)
        log.read(rng.choice((0, 1, 3, 10)))
        if rng.random() < 0.5:
            world.round(a)
        world.wait(10)
        found = world.ask(CHAIN, max_staleness_ms=1_000, candidates=["a"])
        if isinstance(found, Answer) and found.matches:
            [match] = found.matches
            assert match.staleness_ms is not None
            since = world.now_ns - round(match.staleness_ms * 1e6)
            # What held when the answer's instant began, and everything after it.
            before = [length for at, length in log.truths if at <= since][-1:]
            possible = {*before, *(length for at, length in log.truths if at >= since)}
            assert match.matched_blocks in possible, (step, match)
            answered += 1
    assert world.view.counters.shed > 0
    assert answered > 10


def test_what_no_snapshot_heals_outlives_shedding() -> None:
    world = World(limits=ViewLimits(max_copies=10))
    a = world.join("a")
    a.store(CHAIN[:2])
    gone = BlockEvicted(holder="gpu", group=0, ids=(CHAIN[0],), reason=EvictReason.CAPACITY)
    again = deepcopy(a.builder).seal(
        parts=[(a.alias(), [gone])], seq=a.builder.seq - 1, prev=a.builder.sent[-2].header_sha256
    )
    world.deliver(again.value)
    view = world.view.streams[next(iter(world.view.streams))]
    assert view.state.sticky
    a.store(OTHER)
    assert view.shed
    snapshot(a, "s", CHAIN[:1])
    world.round(a)
    assert (view.shed, view.state.status, view.state.fault) == (
        False,
        StreamStatus.QUARANTINED,
        "equivocation",
    )


def test_a_stream_that_is_not_the_registered_one_stays_so_when_it_is_shed() -> None:
    world = World(limits=ViewLimits(max_copies=10))
    a = world.join("a", start=False)
    b = a.builder
    liar = Hook(world, StreamBuilder("a", 0, "e1", b.epoch_no, b"\x01" * 32, control=b.control), a.key)
    liar.open()
    liar.store(OTHER)
    snapshot(liar, "s", CHAIN[:4])
    world.beacon()
    liar.pulse()
    found = world.get(CHAIN, consistency="any", min_coverage=0)
    assert (lengths(found), reasons(found)) == ({}, {"a": "unregistered"})


def test_a_closed_stream_that_is_shed_stays_closed() -> None:
    world = World(limits=ViewLimits(max_copies=10))
    a, b = world.join("a"), world.join("b")
    b.store(CHAIN[:2])
    a.write(Closed(engine_ended=False))
    a.store(OTHER)
    world.round(b)
    found = world.get(CHAIN)
    assert (lengths(found), reasons(found), found.complete) == ({"b": 2}, {}, True)
