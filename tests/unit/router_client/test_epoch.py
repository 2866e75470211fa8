"""Restarts: an engine's old blocks are void with its new epoch, whatever numbers, order and age its records have."""

from __future__ import annotations

import pytest

from events.fold.registry import Registry
from events.fold.state import StreamState
from events.ids import StreamKey
from events.signing import verify
from router_client.view import LocalView
from tests.support.log import block
from tests.support.reader_world import RING, World, chain_of, lengths, reasons

TOKENS = list(range(640))
CHAIN = chain_of(TOKENS)
OTHER = chain_of(range(7_000, 7_640))


def test_a_restart_with_lower_numbers_is_read_and_voids_what_was_held() -> None:
    world = World()
    old = world.join(epoch="e1")
    for depth in range(20):
        old.store(CHAIN[depth : depth + 1], CHAIN[depth - 1] if depth else None)
    world.round(old)
    assert lengths(world.get(CHAIN)) == {"w0": 20}
    new = world.join(epoch="e2")
    new.store(OTHER[:3])
    assert new.builder.seq < old.builder.seq
    world.round(new)
    assert lengths(world.get(OTHER)) == {"w0": 3}
    found = world.get(CHAIN)
    assert (found.matches, found.complete) == ([], True)


def test_from_the_registration_on_nothing_of_the_old_epoch_is_answered() -> None:
    world = World()
    old = world.join(epoch="e1")
    old.store(CHAIN[:4])
    world.round(old)
    world.join(epoch="e2", start=False)
    world.round(old)
    found = world.get(CHAIN, min_coverage=0)
    assert (found.matches, reasons(found), found.complete) == ([], {"w0": "unopened"}, False)


@pytest.mark.parametrize("copies", [1, 30])
def test_late_records_and_pulses_of_an_earlier_epoch_change_nothing(copies: int) -> None:
    """A frozen hook that wakes up, or one whose records were under way, speaks for a life that is over."""
    world = World()
    old = world.join(epoch="e1")
    old.store(CHAIN[:2])
    new = world.join(epoch="e2")
    world.round(new)
    old.store(CHAIN[2 : 2 + copies], CHAIN[1])
    old.pulse()
    found = world.get(CHAIN)
    assert (found.matches, found.complete) == ([], True)
    assert world.view.copies == 0
    assert len(world.view.streams) == 1


def test_an_epoch_is_remembered_by_the_log_not_by_a_process() -> None:
    """A reader that starts over with a snapshot from before the restart credits nothing of the old life."""
    world = World()
    old = world.join(epoch="e1")
    old.store(CHAIN[:4])
    states: list[tuple[int, StreamState]] = [(0, view.state) for view in world.view.streams.values()]
    world.join(epoch="e2", start=False)
    registry = Registry(verify)
    view = LocalView(
        reader="reader", registry=registry, keyring=RING, control_current_ns=lambda: world.now_ns
    )
    for offset, (value, signature) in enumerate(world.log.records):
        view.control_folded(*registry.fold(offset, value, signature))
    view.restore(states, {0: 2})
    assert registry.current["w0", 0] == StreamKey("w0", 0, "e2")
    assert (view.copies, len(view.index), view.streams) == (0, 0, {})


def test_a_new_epoch_voids_the_old_one_at_once_even_before_its_first_record() -> None:
    world = World()
    old = world.join()
    old.store(CHAIN)
    world.round(old)
    assert lengths(world.get(CHAIN)) == {"w0": 40}
    new = world.join(epoch="e2", start=False)
    refusal = world.refused(CHAIN)
    assert refusal.lagging is not None
    assert refusal.lagging[0].reason == "unopened"
    old.store([block("late")])
    new.open()
    new.store(CHAIN[:2])
    world.round(old, new)
    assert lengths(world.get(CHAIN)) == {"w0": 2}
    while not world.view.work(10_000):
        pass
    assert len(world.view.index) == 2
    assert world.view.copies == 2
