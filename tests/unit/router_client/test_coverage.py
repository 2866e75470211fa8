"""Who is missing from an answer is said: silent, never heard, still being read, not confirmed. Unknown isn't empty."""

from __future__ import annotations

from events.ids import Tier
from router_client.problem import ProblemKind
from tests.support.reader_world import World, chain_of, lengths, reasons

TOKENS = list(range(640))
CHAIN = chain_of(TOKENS)


def test_a_silent_worker_with_the_longest_prefix_is_not_chosen_any_more() -> None:
    world = World()
    best, second = world.join("best"), world.join("second")
    best.store(CHAIN[:30])
    second.store(CHAIN[:3])
    world.round(best, second)
    assert lengths(world.get(CHAIN)) == {"best": 30, "second": 3}
    for _ in range(15):
        world.wait(200)
        world.round(second)
    found = world.get(CHAIN)
    assert (lengths(found), reasons(found), found.complete) == ({"second": 3}, {"best": "silent"}, False)
    assert (found.coverage.included, found.coverage.eligible) == (1, 2)
    asked = world.get(CHAIN, candidates=["best"], min_coverage=0)
    assert (asked.matches, reasons(asked)) == ([], {"best": "silent"})


def test_each_stream_has_a_deadline_of_its_own() -> None:
    world = World()
    hooks = [world.join(f"w{n}") for n in range(4)]
    for hook in hooks:
        hook.store(CHAIN[:2])
        world.round(hook)
        world.wait(300)
    assert sorted(lengths(world.get(CHAIN, max_staleness_ms=700))) == ["w2", "w3"]
    assert sorted(lengths(world.get(CHAIN, max_staleness_ms=1_300))) == ["w0", "w1", "w2", "w3"]


def test_never_heard_is_not_empty() -> None:
    """Nothing held is a claim that a stream makes by opening; a worker that only registered makes none."""
    world = World()
    empty = world.join("empty")
    world.round(empty)
    found = world.get(CHAIN, candidates=["empty"])
    assert (lengths(found), reasons(found), found.complete) == ({"empty": 0}, {}, True)
    world.join("never", start=False)
    world.round(empty)
    found = world.get(CHAIN)
    assert (reasons(found), found.complete) == ({"never": "unopened"}, False)
    refusal = world.refused(CHAIN, candidates=["never"])
    assert refusal.kind is ProblemKind.STALENESS_BOUND_UNMET
    assert refusal.lagging is not None
    assert refusal.lagging[0].applied_seq is None


def test_a_rank_that_never_speaks_lowers_the_coverage_of_its_worker() -> None:
    world = World()
    hooks = [world.join("w0", rank) for rank in range(3)]
    world.join("w0", 3, start=False)
    hooks[0].store(CHAIN[:5])
    world.round(*hooks)
    found = world.get(CHAIN)
    assert [(m.dp_rank, m.matched_blocks) for m in found.matches] == [(0, 5)]
    assert [(e.dp_rank, e.reason) for e in found.excluded] == [(3, "unopened")]
    assert (found.coverage.included, found.coverage.eligible, found.complete) == (3, 4, False)
    assert world.refused(CHAIN, min_coverage=4).coverage == found.coverage


def test_a_stream_with_a_long_history_keeps_nobody_waiting() -> None:
    """Ready stream by stream: what is still being read is left out, and named, in every answer meanwhile."""
    world = World()
    ready, long = world.join("ready"), world.join("long")
    ready.store(CHAIN[:3])
    long.hold = True
    for n in range(60):
        chain = chain_of(range(n * 10_000, n * 10_000 + 640))
        long.store(chain if n else CHAIN)
    for value in long.held:
        world.round(ready, long)
        found = world.get(CHAIN)
        assert (lengths(found), reasons(found), found.complete) == ({"ready": 3}, {"long": "stale"}, False)
        world.deliver(value)
    world.round(ready, long)
    found = world.get(CHAIN)
    assert (lengths(found), found.complete) == ({"long": 40, "ready": 3}, True)


def test_a_worker_that_is_no_longer_confirmed_is_left_out_and_not_emptied() -> None:
    """A replay socket that falls silent ends the echoes, not what is held."""
    world = World()
    hook, other = world.join("w0", 0, "e1", Tier.GPU, Tier.CPU), world.join("w1")
    hook.store(CHAIN[:6])
    world.round(hook, other)
    last = world.newest
    for _ in range(10):
        world.wait(200)
        world.round(other)
        hook.pulse(echo=last)
    found = world.get(CHAIN)
    assert (found.matches, reasons(found), found.complete) == ([], {"w0": "stale"}, False)
    assert found.excluded[0].staleness_ms == 2_000
    assert world.view.copies == 6
    world.round(hook, other)
    assert lengths(world.get(CHAIN)) == {"w0": 6}
