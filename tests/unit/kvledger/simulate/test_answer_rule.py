"""Tiers, bases, flags, candidates, coverage and split brains, as the checker judges them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.simulate.checker import Checker
from kvledger.simulate.lookup import Credit, Lookup, Outcome
from kvledger.simulate.residency import longest_in, when_length
from kvledger.simulate.truth import Truth

MS = 1_000_000


class World:
    """At 100 ms blocks 1 and 2 are on the GPU, 2 and 3 on the CPU; at 200 ms 1 leaves the GPU for the CPU."""

    def __init__(self) -> None:
        self.ms = 0
        self.truth = Truth(lambda: self.ms * MS)
        self.truth.enlist("w")
        gpu, cpu = self.truth.log_of("w"), self.truth.log_of("w", tier="cpu")
        gpu.begin_life("1")
        self.ms = 100
        gpu.store([1, 2])
        cpu.store([2, 3])
        self.ms = 200
        cpu.store([1])
        gpu.drop(1)
        self.checker = Checker(self.truth)

    def ask(self, at_ms: int, *credits: Credit, **fields: object) -> tuple[Outcome, str]:
        found = Lookup("r", "t", (1, 2, 3, 4), 1000, at_ms * MS, at_ms * MS, 200, credits)
        verdict = self.checker.check(replace(found, **fields))  # type: ignore[arg-type]
        return verdict.outcome, verdict.why


def tiers(gpu: int, cpu: int, staleness_ms: float = 10) -> Credit:
    return Credit("w", 0, cpu, staleness_ms, tier_blocks=(gpu, cpu, cpu, cpu))


@pytest.mark.parametrize(
    ("at_ms", "credit", "outcome"),
    [
        (150, tiers(2, 3), Outcome.OK),
        (150, tiers(3, 3), Outcome.WRONG_UNFLAGGED),
        (150, tiers(2, 2), Outcome.WRONG_UNFLAGGED),
        (250, tiers(0, 3), Outcome.OK),
        (250, tiers(2, 3), Outcome.WRONG_UNFLAGGED),
        (250, tiers(2, 3, staleness_ms=60), Outcome.OK),
        (250, tiers(1, 3, staleness_ms=60), Outcome.WRONG_UNFLAGGED),
        (250, Credit("w", 0, 3, 10), Outcome.OK),
        (250, Credit("w", 0, 3, 10, tier_blocks=(0, 3, 3, 4)), Outcome.WRONG_UNFLAGGED),
    ],
)
def test_tiers_are_cumulative_and_true_at_one_instant(at_ms: int, credit: Credit, outcome: Outcome) -> None:
    assert World().ask(at_ms, credit)[0] is outcome


@pytest.mark.parametrize(("gpu", "cpu", "right"), [(0, 0, True), (1, 2, True), (2, 3, True), (3, 3, False)])
def test_of_a_partial_inventory_only_too_much_is_wrong(gpu: int, cpu: int, right: bool) -> None:
    told = replace(tiers(gpu, cpu), at_least=True)
    outcome = Outcome.OK if right else Outcome.WRONG_UNFLAGGED
    assert World().ask(150, told)[0] is outcome
    assert World().ask(250, tiers(0, 3))[0] is Outcome.OK
    if (gpu, cpu) != (2, 3):
        assert World().ask(150, tiers(gpu, cpu))[0] is Outcome.WRONG_UNFLAGGED


def test_tier_that_a_worker_lacks_adds_nothing() -> None:
    world = World()
    world.truth.enlist("v")
    world.truth.log_of("v", tier="gpu").store([1])
    world.ms = 300
    for blocks, outcome in (((1, 1, 1, 1), Outcome.OK), ((0, 1, 1, 1), Outcome.WRONG_UNFLAGGED)):
        assert world.ask(400, Credit("v", 0, 1, 10, tier_blocks=blocks))[0] is outcome


def test_absence_means_on_no_tier() -> None:
    world = World()
    world.truth.log_of("w").clear()
    world.ms = 300
    assert "called absent" in world.ask(400, complete=True, staleness_ms=10)[1]
    world.truth.log_of("w", tier="cpu").clear()
    world.ms = 500
    assert world.ask(600, complete=True, staleness_ms=10)[0] is Outcome.OK


def test_flagged_entry_is_judged_and_counted_apart() -> None:
    world = World()
    for credit in (
        replace(tiers(3, 3), within_bound=False),
        replace(tiers(3, 3), within_bound=False, staleness_ms=float("nan")),
        replace(tiers(3, 3), identity="unverified"),
    ):
        assert world.ask(250, credit)[0] is Outcome.WRONG_FLAGGED
    old = replace(tiers(2, 3, staleness_ms=9000), within_bound=False)
    assert world.ask(1250, old)[0] is Outcome.OK
    ever = replace(tiers(2, 3), within_bound=False, staleness_ms=float("nan"))
    assert world.ask(1250, ever)[0] is Outcome.OK
    assert world.checker.counts.flagged_credits == 5


def test_basis_must_be_as_asked_and_as_given() -> None:
    world = World()
    world.truth.log_of("w").publish("1", 0, 100 * MS)
    world.truth.enlist("w", basis="published")
    right = replace(tiers(0, 3), basis="published")
    assert world.ask(250, right)[0] is Outcome.OK
    assert "weaker than asked" in world.ask(250, right, basis="engine")[1]
    assert "stronger" in world.ask(250, replace(right, basis="engine"))[1]


def test_one_worker_is_credited_once() -> None:
    assert "twice" in World().ask(150, tiers(2, 3), tiers(2, 3))[1]


def test_each_candidate_gets_an_answer() -> None:
    world = World()
    assert world.ask(150, tiers(2, 3), candidates=("w",), limited=True)[0] is Outcome.OK
    assert "without an answer" in world.ask(150, tiers(2, 3), candidates=("w", "v"), limited=True)[1]


def test_complete_answer_covers_everybody_and_is_as_old_as_its_oldest_entry() -> None:
    world = World()
    whole: dict[str, object] = {"complete": True, "staleness_ms": 10.0, "coverage": (1, 1)}
    assert world.ask(150, tiers(2, 3), **whole)[0] is Outcome.OK
    assert "coverage" in world.ask(150, tiers(2, 3), **whole | {"coverage": (1, 2)})[1]
    assert "coverage" in world.ask(150, tiers(2, 3), **whole | {"coverage": (0, 0)})[1]
    assert "older than the whole" in world.ask(150, tiers(2, 3, staleness_ms=11), **whole)[1]


def test_former_process_of_a_name_may_be_meant_by_whoever_admits_to_be_that_old() -> None:
    world = World()
    world.ms = 300
    ghost = world.truth.split("w")
    world.truth.log_of("w").begin_life("2")
    world.truth.log_of("w", tier="cpu").clear()
    world.ms = 350
    ghost.store([1, 2, 3, 4])
    world.ms = 400
    assert world.ask(410, tiers(4, 4, staleness_ms=50))[0] is Outcome.WRONG_UNFLAGGED
    assert world.ask(410, tiers(4, 4, staleness_ms=150))[0] is Outcome.OK
    assert world.ask(410, tiers(0, 0, staleness_ms=50))[0] is Outcome.OK


def test_what_is_forgotten_is_not_judged_but_excused() -> None:
    world = World()
    world.truth.forget_before(180 * MS)
    assert world.ask(185, tiers(2, 3, staleness_ms=2))[0] is Outcome.OK
    assert world.ask(185, tiers(3, 3, staleness_ms=2))[0] is Outcome.WRONG_UNFLAGGED
    assert world.ask(185, tiers(3, 3, staleness_ms=20))[0] is Outcome.OK
    assert world.checker.counts.excused == 1


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["gpu", "cpu"]), st.sampled_from(["store", "drop", "clear"]), st.integers(0, 3)
    ),
    max_size=20,
)


@settings(max_examples=60)
@given(MOVES, st.lists(st.integers(0, 3), max_size=4, unique=True), st.integers(0, 25), st.integers(0, 8))
def test_rule_over_tiers_equals_trying_every_instant(
    moves: list[tuple[str, str, int]], chain: list[int], low: int, width: int
) -> None:
    now = 0
    truth = Truth(lambda: now)
    held: dict[str, set[int]] = {"gpu": set(), "cpu": set()}
    states = [(-1, (frozenset[int](), frozenset[int]()))]
    logs = [truth.log_of("w"), truth.log_of("w", tier="cpu")]
    for tier, move, key in moves:
        now += 1
        log = truth.log_of("w", tier=tier)
        if move == "store":
            at = log.store([key])
            held[tier].add(key)
        elif move == "drop":
            at = log.drop(key)
            held[tier].discard(key)
        else:
            at = log.clear()
            held[tier].clear()
        states.append((at, (frozenset(held["gpu"]), frozenset(held["cpu"]))))
    high = low + width

    def naive(at: int) -> int:
        gpu, cpu = [state for stamp, state in states if stamp <= at][-1]
        return next((i for i, key in enumerate(chain) if key not in gpu | cpu), len(chain))

    lengths = {naive(at) for at in range(low, high + 1)}
    assert {n for n in range(len(chain) + 1) if when_length(logs, chain, n, [(low, high)])} == lengths
    assert longest_in(logs, chain, [(low, high)]) == max(lengths)
