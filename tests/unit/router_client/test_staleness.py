"""How old an answer is: echoes of the own beacons, pulses that count once applied, and the age of kv.control."""

from __future__ import annotations

from dataclasses import asdict

from events.model.signal import Echo
from router_client.problem import Problem, ProblemKind
from router_client.view import LocalView
from tests.support.reader_world import RING, World, chain_of, lengths

TOKENS = list(range(640))
CHAIN = chain_of(TOKENS)


def test_without_an_echo_the_answer_is_refused_and_the_stream_silent_after_a_while() -> None:
    world = World()
    world.join().store(CHAIN[:4])
    refusal = world.refused(CHAIN)
    assert (refusal.status, refusal.kind) == (503, ProblemKind.STALENESS_BOUND_UNMET)
    assert refusal.coverage is not None
    assert asdict(refusal.coverage) == {"included": 0, "eligible": 1}
    assert refusal.lagging is not None
    assert refusal.lagging[0].reason == "stale"
    assert refusal.best_achievable_ms is None
    world.wait(world.view.limits.silent_after_ns / 1e6 + 1)
    refusal = world.refused(CHAIN)
    assert refusal.lagging is not None
    assert refusal.lagging[0].reason == "silent"


def test_a_stream_that_has_just_been_met_is_not_silent_yet() -> None:
    """A new epoch of a worker whose pulses came all the time: it has had no time to speak."""
    world = World()
    world.round(world.join())
    world.wait(60_000)
    world.join("w0", 0, "e2")
    refusal = world.refused(CHAIN)
    assert refusal.lagging is not None
    assert refusal.lagging[0].reason == "stale"
    restored = LocalView("b", world.registry, RING, control_current_ns=lambda: world.now_ns)
    restored.restore([(v.partition, v.state) for v in world.view.streams.values()], {0: 9}, world.now_ns)
    silent_after_ns = restored.limits.silent_after_ns
    for stream in restored.streams.values():
        assert not stream.silent(world.now_ns + silent_after_ns, silent_after_ns)
        assert stream.silent(world.now_ns + silent_after_ns + 1, silent_after_ns)


def test_age_counts_from_when_the_own_beacon_was_begun() -> None:
    world = World()
    hook = world.join()
    echo = world.beacon()
    world.wait(500)
    hook.pulse(echo=echo)
    world.wait(499)
    assert world.get(CHAIN).staleness_ms == 999.0
    world.wait(2)
    refusal = world.refused(CHAIN)
    assert refusal.best_achievable_ms == 1_001.0
    assert refusal.lagging is not None
    assert refusal.lagging[0].reason == "stale"
    world.wait(2_000)
    refusal = world.refused(CHAIN)
    assert refusal.lagging is not None
    assert refusal.lagging[0].reason == "silent"


def test_age_never_falls_below_that_of_kv_control() -> None:
    world = World()
    hook = world.join()
    world.control_ns = world.now_ns
    world.wait(800)
    world.round(hook)
    assert world.get(CHAIN).staleness_ms == 800.0


def test_a_pulse_counts_only_once_what_it_announces_is_applied() -> None:
    world = World()
    hook = world.join()
    world.round(hook)
    hook.hold = True
    hook.store(CHAIN[:4])
    world.wait(900)
    world.round(hook)
    world.wait(200)
    assert isinstance(world.ask(CHAIN), Problem)
    hook.release()
    assert world.get(CHAIN).staleness_ms == 200.0
    assert lengths(world.get(CHAIN)) == {"w0": 4}


def test_an_echo_with_another_nonce_or_of_an_unknown_offset_never_counts() -> None:
    world = World()
    hook = world.join()
    echo = world.beacon()
    hook.pulse(echo=Echo(offset=echo.offset, nonce=bytes(16)))
    assert isinstance(world.ask(CHAIN), Problem)
    hook.pulse(echo=Echo(offset=echo.offset + 5, nonce=echo.nonce))
    assert isinstance(world.ask(CHAIN), Problem)


def test_an_echo_of_another_readers_beacon_counts_from_the_own_one_before_it() -> None:
    world = World()
    hook = world.join()
    world.beacon()
    world.wait(300)
    world.beacon(reader="somebody")
    hook.pulse()
    assert world.get(CHAIN).staleness_ms == 300.0


def test_an_echo_waits_until_its_beacon_was_read_back_here() -> None:
    world = World()
    hook = world.join()
    echo = world.beacon(deliver=False)
    hook.pulse(echo=echo)
    assert isinstance(world.ask(CHAIN), Problem)
    world.view.apply_signal(
        echo.offset, b'{"type":"beacon","reader":"reader","nonce":"' + echo.nonce.hex().encode() + b'"}',
        world.now_ns,
    )  # fmt: skip
    assert world.get(CHAIN).staleness_ms == 0.0


def test_truncated_signals_discard_all_remembered_beacons() -> None:
    world = World()
    hook = world.join()
    echo = world.beacon()
    world.view.apply_signal(echo.offset, b"{}", world.now_ns)
    hook.pulse(echo=echo)
    assert isinstance(world.ask(CHAIN), Problem)


def test_staleness_never_falls_back_within_an_epoch() -> None:
    world = World()
    hook = world.join()
    old = world.beacon()
    world.wait(100)
    new = world.beacon()
    hook.pulse(echo=new)
    hook.pulse(echo=old)
    assert world.get(CHAIN).staleness_ms == 0.0


def test_before_kv_control_is_read_the_index_is_unavailable() -> None:
    world = World()
    world.round(world.join())
    world.view.control_current_ns = lambda: None
    assert world.refused(CHAIN).kind is ProblemKind.INDEX_UNAVAILABLE
