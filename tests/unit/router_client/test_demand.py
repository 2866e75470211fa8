"""What a question demands of its answer: age, coverage, basis, position; and what is said where it can't be had."""

from __future__ import annotations

import pytest

from events.ids import Basis
from events.model.part import Closed
from events.token import Token
from router_client.problem import Problem, ProblemKind
from router_client.wire import CONSISTENCY_HEADER, answer_headers
from tests.support.reader_world import World, chain_of, lengths, reasons

TOKENS = list(range(640))
CHAIN = chain_of(TOKENS)


def stale_and_fresh() -> World:
    world = World()
    stale, fresh = world.join("stale"), world.join("fresh")
    stale.store(CHAIN[:4])
    fresh.store(CHAIN[:2])
    world.round(stale, fresh)
    world.wait(1_500)
    world.round(fresh)
    return world


def test_on_stale_drop_names_the_stale_ones() -> None:
    found = stale_and_fresh().get(CHAIN)
    assert (lengths(found), reasons(found), found.complete) == ({"fresh": 2}, {"stale": "stale"}, False)


def test_on_stale_fail_refuses() -> None:
    refusal = stale_and_fresh().refused(CHAIN, on_stale="fail")
    assert (refusal.status, refusal.best_achievable_ms) == (503, 1_500.0)


def test_on_stale_include_marks() -> None:
    found = stale_and_fresh().get(CHAIN, on_stale="include")
    assert {m.worker: m.within_bound for m in found.matches} == {"stale": False, "fresh": True}
    assert not found.complete
    assert found.staleness_ms == 1_500.0


@pytest.mark.parametrize(("wanted", "ok"), [(0, True), (1, True), (2, False), (0.5, True), (1.0, False)])
def test_min_coverage_counts_streams_or_their_share(wanted: float, ok: bool) -> None:
    found = stale_and_fresh().ask(CHAIN, min_coverage=wanted)
    assert isinstance(found, Problem) is not ok


def test_all_out_of_bound_is_a_refusal_unless_no_coverage_is_asked() -> None:
    world = stale_and_fresh()
    world.wait(5_000)
    assert world.refused(CHAIN).status == 503
    found = world.get(CHAIN, min_coverage=0)
    assert (found.matches, found.complete) == ([], False)
    assert world.refused(CHAIN, on_stale="fail").status == 503
    assert len(world.get(CHAIN, on_stale="include").matches) == 2


def test_no_worker_at_all_is_a_refusal_unless_no_coverage_is_asked() -> None:
    world = World()
    gone = world.join()
    gone.write(Closed())
    refusal = world.refused(CHAIN)
    assert (refusal.status, refusal.detail) == (503, "no worker is registered")
    found = world.get(CHAIN, min_coverage=0)
    assert (found.matches, found.complete) == ([], False)


def test_absence_is_claimed_only_over_all_eligible_streams() -> None:
    world = World()
    hook = world.join("w0")
    world.round(hook)
    found = world.get(CHAIN)
    assert (found.matches, found.complete) == ([], True)
    world.join("w1", start=False)
    assert not world.get(CHAIN).complete


def test_consistency_any_takes_whatever_is_known_and_says_how_old_it_is() -> None:
    world = stale_and_fresh()
    never = world.join("never")
    never.store(CHAIN[:9])
    world.wait(60_000)
    found = world.get(CHAIN, consistency="any")
    assert lengths(found) == {"never": 9, "stale": 4, "fresh": 2}
    assert {m.worker: m.within_bound for m in found.matches}["never"] is False
    assert not found.complete
    assert found.staleness_ms is None


def test_a_bound_below_the_floor_is_refused_with_the_floor() -> None:
    world = World()
    world.round(world.join())
    refusal = world.refused(CHAIN, max_staleness_ms=5)
    assert (refusal.status, refusal.kind) == (422, ProblemKind.BOUND_BELOW_FLOOR)
    assert refusal.floor_ms == 300.0


def test_an_unconfirmed_basis_counts_only_for_who_asks_for_it() -> None:
    world = World()
    hook = world.join()
    hook.store(CHAIN[:4])
    world.beacon()
    hook.pulse(basis=Basis.UNCONFIRMED)
    refusal = world.refused(CHAIN)
    assert refusal.lagging is not None
    assert refusal.lagging[0].reason == "unconfirmed"
    assert world.get(CHAIN, basis="unconfirmed").matches[0].basis is Basis.UNCONFIRMED
    hook.pulse(basis=Basis.ENGINE)
    assert world.get(CHAIN, basis="engine").matches[0].basis is Basis.ENGINE


def test_tokens_of_another_log_and_ahead_of_this_replica() -> None:
    world = World()
    world.round(world.join())
    mine = world.get(CHAIN).token
    assert world.get(CHAIN, min_token=mine).token == mine
    foreign = Token("other", (), 0).encode()
    assert world.refused(CHAIN, min_token=foreign).kind is ProblemKind.TOKEN_FOREIGN
    ahead = Token("log-test", (99,), 0).encode()
    assert world.refused(CHAIN, min_token=ahead).kind is ProblemKind.TOKEN_AHEAD
    assert world.refused(CHAIN, min_token="kvt1.%%").status == 400


def test_an_answer_that_speaks_for_nobody_is_not_bounded() -> None:
    world = World()
    hook = world.join()
    world.round(hook)
    assert answer_headers(world.get(CHAIN), 1_000)[CONSISTENCY_HEADER] == "bounded"
    world.wait(5_000)
    found = world.get(CHAIN, min_coverage=0)
    assert found.coverage.included == 0
    assert answer_headers(found, 1_000)[CONSISTENCY_HEADER] == "any"
