"""A view that starts from a snapshot keeps the bounds of one that reads the log, and believes nobody more."""

from __future__ import annotations

import pytest

from events.fold.record import fold_record
from events.fold.state import Standing, StreamState, Usage
from events.ids import StreamKey, StreamStatus, Tier
from router_client.limit import ViewLimits
from router_client.view import LocalView
from tests.support.log import StreamBuilder, block
from tests.support.reader_world import RING, Hook, World, chain_of, lengths, reasons
from tests.unit.router_client.test_rewind import snapshot
from tests.unit.router_client.test_view import check_index

CHAIN = chain_of(range(64))


def states(view: LocalView) -> list[tuple[int, StreamState]]:
    return [(stream.partition, stream.state) for stream in view.streams.values()]


def start_from(world: World, found: list[tuple[int, StreamState]], limits: ViewLimits | None = None) -> None:
    """The world's reader dies, and another starts from a snapshot."""
    view = LocalView("reader", world.registry, RING, lambda: world.now_ns, limits=limits or world.view.limits)
    view.restore(found, dict(world.view.positions))
    world.view = view


def forged(honest: Hook) -> StreamState:
    """What anybody can write under the honest stream's name in another partition."""
    world, mine = honest.world, honest.builder
    first = world.registry.registrations[StreamKey("b", 0, "e1")].record_sha256
    builder = StreamBuilder("b", 0, "e1", mine.epoch_no, first, control=mine.control)
    liar = Hook(world, builder, honest.key, hold=True)
    liar.open()
    liar.store(CHAIN)
    while builder.seq < mine.seq:
        liar.write()
    found: dict[StreamKey, StreamState] = {}
    for value in liar.held:
        fold_record(found, value)
    return found[StreamKey("b", 0, "e1")]


@pytest.mark.parametrize("first", [True, False])
def test_a_stream_of_a_foreign_partition_replaces_nobody(first: bool) -> None:
    world = World()
    b = world.join("b")
    b.store(CHAIN[:1])
    both = [*states(world.view), (5, forged(b))]
    start_from(world, both if first else both[::-1])
    check_index(world.view)
    world.round(b)
    found = world.get(CHAIN, candidates=["b"])
    assert (lengths(found), found.complete, world.view.copies) == ({"b": 1}, True, 1)


def test_a_stream_of_a_foreign_partition_alone_is_nobody() -> None:
    world = World()
    b = world.join("b")
    start_from(world, [(5, forged(b))])
    assert (world.view.streams, world.view.copies, len(world.view.index)) == ({}, 0, 0)


def test_a_superseded_stream_of_a_foreign_partition_acknowledges_nothing() -> None:
    world = World()
    b = world.join("b")
    state = forged(b)
    state.standings[b"x" * 16, 1] = Standing(0, 0, 0, 0, 1)
    world.join("b", 0, "e2")
    start_from(world, [(5, state)])
    assert world.view.former == {}
    start_from(world, [(0, state)])
    assert world.view.former.keys() == {StreamKey("b", 0, "e1")}


def test_copies_beyond_the_bound_are_shed_stream_by_stream() -> None:
    world = World()
    hooks = [world.join(f"w{number}") for number in range(5)]
    for hook in hooks:
        hook.store(CHAIN)
    start_from(world, states(world.view), ViewLimits(max_copies=9))
    view = world.view
    assert view.held()["copies"] == (8, 9)
    assert view.counters.shed == 3
    check_index(view)
    world.round(*hooks)
    found = world.get(CHAIN)
    assert lengths(found) == {"w0": 4, "w1": 4}
    assert reasons(found) == dict.fromkeys(("w2", "w3", "w4"), "gap")
    assert (str(found.coverage), found.complete) == ("2/5", False)


def test_registered_streams_beyond_the_bound_are_refused() -> None:
    world = World()
    hooks = [world.join(f"w{number}") for number in range(5)]
    for hook in hooks:
        hook.store(CHAIN)
    start_from(world, states(world.view), ViewLimits(max_streams=2))
    assert world.view.held()["streams"] == (2, 2)
    assert world.view.counters.refused_streams == 3
    world.round(*hooks)
    found = world.get(CHAIN)
    assert lengths(found) == {"w0": 4, "w1": 4}
    assert set(reasons(found).values()) == {"unopened"}


def test_small_state_beyond_the_bound_is_shed_too() -> None:
    world = World()
    a = world.join("a")
    a.store(CHAIN)
    state = states(world.view)[0][1]
    state.usage |= {(bytes([number]) * 16, Tier.GPU): Usage() for number in range(30)}
    start_from(world, states(world.view), ViewLimits(max_marks=20))
    [view] = world.view.streams.values()
    assert (view.shed, view.state.status, world.view.copies) == (True, StreamStatus.GAP, 0)


@pytest.mark.parametrize("strangers_first", [True, False])
def test_strangers_in_a_snapshot_push_nobody_out(strangers_first: bool) -> None:
    world = World(limits=ViewLimits(max_strangers=8))
    hooks = [world.join(f"w{number}") for number in range(2)]
    for hook in hooks:
        hook.store(CHAIN)
    mine = states(world.view)
    flood: dict[StreamKey, StreamState] = {}
    for number in range(8):
        nobody = Hook(world, StreamBuilder(f"s{number}", 0, "e9", 10**6, bytes(32)), hooks[0].key, hold=True)
        nobody.open()
        nobody.store([block(number, at) for at in range(5)])
        for value in nobody.held:
            fold_record(flood, value)
    others = [(0, state) for state in flood.values()]
    limits = ViewLimits(max_copies=20, max_strangers=3)
    start_from(world, [*others, *mine] if strangers_first else [*mine, *others], limits)
    view = world.view
    assert view.copies <= 20
    assert view.held()["strangers"][0] <= 3
    assert view.counters.shed == 0
    check_index(view)
    world.round(*hooks)
    found = world.get(CHAIN)
    assert (lengths(found), found.complete) == ({"w0": 4, "w1": 4}, True)


def test_a_shed_stream_of_a_snapshot_comes_back_when_there_is_room() -> None:
    world = World()
    a, b = world.join("a"), world.join("b")
    a.store(CHAIN)
    b.store(CHAIN)
    start_from(world, states(world.view), ViewLimits(max_copies=6))
    a.evict(CHAIN[2:])
    snapshot(b, "s", CHAIN[:3])
    world.round(a, b)
    found = world.get(CHAIN)
    assert (lengths(found), found.complete) == ({"a": 2, "b": 3}, True)


def test_a_stream_read_before_its_registration_is_held_to_the_bound_of_those_registered() -> None:
    world = World(limits=ViewLimits(max_streams=1))
    a = world.join("a")
    late = Hook(world, StreamBuilder("late", 0, "e1", len(world.log.records), bytes(32)), a.key)
    late.open()
    world.join("late", start=False)
    assert world.view.held()["streams"] == (1, 1)
    assert world.view.counters.refused_streams == 1
    early = Hook(world, StreamBuilder("a", 0, "e2", len(world.log.records), bytes(32)), a.key)
    early.open()
    world.join("a", 0, "e2", start=False)
    assert world.view.streams.keys() == {StreamKey("a", 0, "e2")}, "the epoch before it makes room"
