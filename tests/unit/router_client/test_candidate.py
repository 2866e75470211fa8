"""Who is asked about and how much: candidates, limits, and the longest prompt."""

from __future__ import annotations

from router_client.limit import ViewLimits
from tests.support.reader_world import World, chain_of, lengths, reasons

TOKENS = list(range(640))
CHAIN = chain_of(TOKENS)


def test_candidates_each_get_an_answer_and_nobody_else_does() -> None:
    world = World()
    a, b, c = world.join("a"), world.join("b"), world.join("c")
    a.store(CHAIN[:4])
    c.store(CHAIN[:9])
    world.round(a, b, c)
    found = world.get(CHAIN, candidates=["a", "b", "nobody"])
    assert lengths(found) == {"a": 4, "b": 0}
    assert reasons(found) == {"nobody": "unregistered"}


def test_a_limit_never_cuts_off_a_candidate() -> None:
    world = World()
    hooks = [world.join(f"w{n}") for n in range(4)]
    for count, hook in enumerate(hooks):
        hook.store(CHAIN[:count])
    world.round(*hooks)
    named = ["w0", "w1", "w2", "nobody"]
    found = world.get(CHAIN, candidates=named, limit=1)
    assert {m.worker for m in found.matches} | {e.worker for e in found.excluded} == set(named)
    assert lengths(world.get(CHAIN, limit=1)) == {"w3": 3}


def test_an_answer_that_a_limit_cut_claims_no_absence() -> None:
    world = World()
    hooks = [world.join(f"w{n}") for n in range(3)]
    for count, hook in enumerate(hooks):
        hook.store(CHAIN[:count])
    world.round(*hooks)
    assert [world.get(CHAIN, limit=limit).complete for limit in (1, 2, 3)] == [False, True, True]


def test_more_blocks_than_the_limit_are_refused_with_the_limit() -> None:
    world = World(limits=ViewLimits(max_blocks=10))
    world.round(world.join())
    for refusal in (world.refused(CHAIN[:11]), world.refused(token_ids=TOKENS[:176])):
        assert (refusal.status, refusal.limit) == (413, 10)
    assert world.get(CHAIN[:10]).complete
