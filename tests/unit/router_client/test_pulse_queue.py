"""Pulses that can't count yet hold up none that can, and their number is bounded."""

from __future__ import annotations

from events.codec import dump
from events.model.signal import Beacon, Echo
from router_client.stream_view import MAX_PENDING, MAX_UNREAD
from tests.support.reader_world import World, chain_of, lengths

CHAIN = chain_of(range(640))


def truncated_world() -> tuple[World, Echo]:
    """A fleet of one whose kv.signals was cut back to nothing, and the newest beacon from before that."""
    world = World()
    hook = world.join()
    hook.store(CHAIN[:4])
    for _ in range(50):
        world.round(hook)
    before = world.newest
    assert before is not None
    world.view.signals_truncated()
    world._signals = 0
    return world, before


def test_an_echo_of_what_was_cut_off_holds_up_no_later_pulse() -> None:
    world, old = truncated_world()
    hook = world.join("w1")
    hook.store(CHAIN[:6])
    hook.pulse(echo=old)
    world.wait(5_000)
    world.round(hook)
    assert lengths(world.get(CHAIN, candidates=["w1"])) == {"w1": 6}


def test_echoes_of_what_was_cut_off_do_not_pile_up() -> None:
    world, old = truncated_world()
    hook = world.join("w1")
    for _ in range(3 * MAX_PENDING):
        hook.pulse(echo=old)
    (stream,) = [s for s in world.view.streams.values() if s.key.worker == "w1"]
    assert len(stream.pending) <= MAX_UNREAD
    world.round(hook)
    assert world.get(CHAIN, candidates=["w1"]).coverage.included == 1


def test_a_pulse_that_announces_too_much_holds_up_no_later_one() -> None:
    world = World()
    hook = world.join()
    hook.store(CHAIN[:4])
    world.beacon()
    hook.pulse(next_seq=1_000_000, prev=bytes(32))
    world.wait(5_000)
    world.round(hook)
    assert lengths(world.get(CHAIN)) == {"w0": 4}


def test_the_oldest_pulse_is_the_first_to_be_forgotten() -> None:
    world = World()
    hook = world.join()
    hook.hold = True
    hook.store(CHAIN[:4])
    world.beacon()
    for _ in range(40 * MAX_PENDING):
        hook.pulse()
    world.wait(5_000)
    world.beacon()
    newest = world.newest
    hook.pulse()
    (stream,) = world.view.streams.values()
    assert len(stream.pending) <= MAX_PENDING
    assert stream.pending[-1].echo == newest
    hook.release()
    assert lengths(world.get(CHAIN)) == {"w0": 4}


def test_a_pulse_waits_for_its_beacon_and_later_ones_with_it() -> None:
    world = World()
    hook = world.join()
    hook.store(CHAIN[:4])
    first = world.beacon(deliver=False)
    hook.pulse(echo=first)
    second = world.beacon(deliver=False)
    hook.pulse(echo=second)
    assert world.refused(CHAIN).status == 503
    for echo in (first, second):
        value = dump(Beacon(reader="reader", nonce=echo.nonce))
        world.view.apply_signal(echo.offset, value, world.now_ns)
    assert lengths(world.get(CHAIN)) == {"w0": 4}
