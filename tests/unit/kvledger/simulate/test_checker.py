"""The checker passes the right rules and catches each wrong one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.simulate.checker import Checker
from kvledger.simulate.lookup import Credit, Exclusion, Lookup, Outcome
from kvledger.simulate.truth import Truth
from tests.support.stream_model import TRANSIT_MS, Rule, StreamModel

MS = 1_000_000
SEEDS = range(3)
READS = 200


class Clock:
    def __init__(self) -> None:
        self.ms = 0.0

    def __call__(self) -> int:
        return round(self.ms * MS)


def outcomes(rule: Rule, *, positions: bool) -> Counter[Outcome]:
    counts: Counter[Outcome] = Counter()
    for seed in SEEDS:
        model = StreamModel(rule, seed)
        checker = Checker(model.truth, floor_ms=400, transit_ms=TRANSIT_MS, settle_ms=1500)
        counts.update(checker.check(lookup).outcome for lookup in model.lookups(READS, positions=positions))
    return counts


@pytest.mark.parametrize("positions", [False, True])
def test_right_rules_are_never_called_wrong_or_unjustified(positions: bool) -> None:
    assert outcomes(Rule.RIGHT, positions=positions) == {Outcome.OK: READS * len(SEEDS)}


@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize(
    "rule",
    [
        Rule.ECHO_FROM_TIMER,
        Rule.WATERMARK_BEFORE_ROWS,
        Rule.STALENESS_FROM_APPEND,
        Rule.ABSENCE_WITHOUT_COVERAGE,
        Rule.EPOCH_UNCHECKED,
    ],
)
def test_wrong_rule_is_caught(rule: Rule, positions: bool) -> None:
    assert outcomes(rule, positions=positions)[Outcome.WRONG_UNFLAGGED] > 0


def test_blanket_refusal_is_unjustified() -> None:
    counts = outcomes(Rule.BLANKET_REFUSAL, positions=False)
    assert counts[Outcome.UNJUSTIFIED_REFUSAL] > counts.total() / 4


def test_blanket_silence_is_unjustified() -> None:
    counts = outcomes(Rule.BLANKET_SILENCE, positions=False)
    assert counts[Outcome.UNJUSTIFIED_SILENCE] > counts.total() / 6


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def truth(clock: Clock) -> Truth:
    """Worker w holds block 1 from 100 ms, block 2 from 200 ms until 1000 ms; w2 holds nothing."""
    truth = Truth(clock)
    truth.enlist("w")
    truth.enlist("w2")
    log = truth.log_of("w")
    truth.log_of("w2").begin_life("w2-1")
    log.begin_life("w-1")
    clock.ms = 100
    log.store([1])
    clock.ms = 200
    log.store([2])
    clock.ms = 1000
    log.drop(2)
    return truth


def asked(at_ms: float, *credits: Credit, **fields: object) -> Lookup:
    lookup = Lookup("r", "t", (1, 2, 3), 500, round(at_ms * MS), round((at_ms + 2) * MS), 200, credits)
    return replace(lookup, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("at_ms", "length", "staleness_ms", "outcome"),
    [
        (1100, 1, 50, Outcome.OK),
        (1100, 2, 50, Outcome.WRONG_UNFLAGGED),
        (1100, 2, 100.5, Outcome.OK),
        (1100, 0, 400, Outcome.WRONG_UNFLAGGED),
        (1100, 3, 400, Outcome.WRONG_UNFLAGGED),
        (1100, 1, 501, Outcome.WRONG_UNFLAGGED),
        (1100, 1, -1, Outcome.WRONG_UNFLAGGED),
        (1100, 1, float("nan"), Outcome.WRONG_UNFLAGGED),
        (999, 1, 0, Outcome.OK),
        (150, 0, 60, Outcome.OK),
    ],
)
def test_credit_must_have_been_true_inside_its_window(
    truth: Truth, at_ms: float, length: int, staleness_ms: float, outcome: Outcome
) -> None:
    assert Checker(truth).check(asked(at_ms, Credit("w", 0, length, staleness_ms))).outcome == outcome


def test_flagged_answers_claim_nothing(truth: Truth) -> None:
    flagged = Credit("w", 0, 3, 9000, within_bound=False)
    assert Checker(truth).check(asked(1100, flagged)).outcome == Outcome.OK


def test_unknown_worker_is_wrong(truth: Truth) -> None:
    assert "no such worker" in Checker(truth).check(asked(1100, Credit("x", 0, 1, 10))).why


def test_absence_is_wrong_if_complete_and_silence_if_not(truth: Truth) -> None:
    silent = Checker(truth).check(asked(20_000, complete=False))
    assert (silent.outcome, silent.worker) == (Outcome.UNJUSTIFIED_SILENCE, "w")
    # Who has only just come may be passed over without a word.
    assert Checker(truth).check(asked(1100, complete=False)).outcome == Outcome.OK
    verdict = Checker(truth).check(asked(1100, complete=True, staleness_ms=10))
    assert (verdict.outcome, verdict.why[:11]) == (Outcome.WRONG_UNFLAGGED, "w/0: called")
    assert Checker(truth).check(asked(101, complete=True, staleness_ms=10)).outcome == Outcome.OK
    assert (
        Checker(truth).check(asked(1100, complete=True, staleness_ms=10, limited=True)).outcome == Outcome.OK
    )


def test_complete_with_a_worker_left_out_is_wrong(truth: Truth) -> None:
    credit = Credit("w", 0, 1, 10)
    verdict = Checker(truth).check(
        asked(1100, credit, complete=True, staleness_ms=10, exclusions=(Exclusion("w2", 0, "gap"),))
    )
    assert verdict.outcome == Outcome.WRONG_UNFLAGGED
    draining = asked(
        1100, credit, complete=True, staleness_ms=10, exclusions=(Exclusion("w2", 0, "draining"),)
    )
    assert Checker(truth).check(draining).outcome == Outcome.OK


def test_hidden_tenant_may_be_filtered_but_not_invented(truth: Truth, clock: Clock) -> None:
    clock.ms = 1050
    truth.hide("t")
    assert Checker(truth).check(asked(1100, Credit("w", 0, 0, 10))).outcome == Outcome.OK
    assert Checker(truth).check(asked(1100, complete=True, staleness_ms=10)).outcome == Outcome.OK
    assert Checker(truth).check(asked(1100, Credit("w", 0, 2, 10))).outcome == Outcome.WRONG_UNFLAGGED
    clock.ms = 1200
    truth.unhide("t")
    assert Checker(truth).check(asked(1300, Credit("w", 0, 0, 10))).outcome == Outcome.WRONG_UNFLAGGED


def test_staleness_may_not_fall_back_within_an_epoch(truth: Truth) -> None:
    checker = Checker(truth)
    assert checker.check(asked(2000, Credit("w", 0, 1, 100, epoch="e1"))).outcome == Outcome.OK
    assert checker.check(asked(2100, Credit("w", 0, 1, 199, epoch="e1"))).outcome == Outcome.OK
    assert "fell back" in checker.check(asked(2200, Credit("w", 0, 1, 310, epoch="e1"))).why
    assert checker.check(asked(2300, Credit("w", 0, 1, 490, epoch="e2"))).outcome == Outcome.OK
    with pytest.raises(ValueError, match="order"):
        checker.check(asked(2000, Credit("w", 0, 1, 0, epoch="e1")))


def test_reported_staleness_must_cover_what_is_missing(truth: Truth) -> None:
    late = Credit("w", 0, 1, 50, first_missing_ns=1000 * MS)
    assert "missing" in Checker(truth).check(asked(1100, late)).why
    assert Checker(truth).check(asked(1100, replace(late, staleness_ms=100))).outcome == Outcome.OK


def test_published_basis_answers_for_the_wire_only(truth: Truth, clock: Clock) -> None:
    log = truth.log_of("w")
    clock.ms = 1500
    unpublished = asked(1400, Credit("w", 0, 2, 10, basis="published"))
    assert Checker(truth).check(unpublished).outcome == Outcome.OK
    log.publish("w-1", 0, 100 * MS)
    on_wire = asked(1600, Credit("w", 0, 2, 10, basis="published"))
    assert Checker(truth).check(on_wire).outcome == Outcome.WRONG_UNFLAGGED


def test_refusal_needs_a_cause(truth: Truth, clock: Clock) -> None:
    refused = asked(20_000, status=503)
    assert Checker(truth).check(refused).outcome == Outcome.UNJUSTIFIED_REFUSAL
    assert Checker(truth, floor_ms=600).check(refused).outcome == Outcome.OK
    assert Checker(truth).check(asked(20_000, status=404)).outcome == Outcome.UNJUSTIFIED_REFUSAL
    clock.ms = 19_900
    truth.disturb("w")
    assert Checker(truth).check(refused).outcome == Outcome.UNJUSTIFIED_REFUSAL
    assert Checker(truth).check(replace(refused, on_stale="fail")).outcome == Outcome.OK
    assert Checker(truth).check(replace(refused, min_coverage=1.0)).outcome == Outcome.OK
    truth.disturb()
    assert Checker(truth).check(refused).outcome == Outcome.OK
    clock.ms = 20_100
    truth.calm()
    truth.calm("w")
    assert Checker(truth).check(asked(22_000, status=503)).outcome == Outcome.OK
    assert Checker(truth).check(asked(40_000, status=503)).outcome == Outcome.UNJUSTIFIED_REFUSAL


def test_excluding_every_healthy_worker_is_a_refusal(truth: Truth) -> None:
    both = (Exclusion("w", 0, "stale"), Exclusion("w2", 0, "stale"))
    assert Checker(truth).check(asked(20_000, exclusions=both)).outcome == Outcome.UNJUSTIFIED_REFUSAL


def test_bound_below_the_floor_may_be_refused(truth: Truth) -> None:
    assert Checker(truth).check(asked(20_000, status=422, bound_ms=300)).outcome == Outcome.OK
    assert (
        Checker(truth).check(asked(20_000, status=422, bound_ms=700)).outcome == Outcome.UNJUSTIFIED_REFUSAL
    )


def test_pulses_that_stopped_justify_a_refusal(truth: Truth, clock: Clock) -> None:
    for at_ms in range(15_000, 20_001, 200):
        clock.ms = at_ms
        truth.vouch("w", 0, round((at_ms - 10) * MS))
        truth.vouch("w2", 0, round((at_ms - 10) * MS))
    assert (
        Checker(truth, transit_ms=50).check(asked(20_100, status=503)).outcome == Outcome.UNJUSTIFIED_REFUSAL
    )
    assert Checker(truth, transit_ms=50).check(asked(20_600, status=503)).outcome == Outcome.OK


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[tuple[int, str, int]], list[int], int, int]:
    keys = draw(st.lists(st.integers(0, 4), max_size=4, unique=True))
    moves = draw(
        st.lists(
            st.tuples(st.integers(0, 3), st.sampled_from(["store", "drop", "clear"]), st.integers(0, 4)),
            max_size=25,
        )
    )
    low = draw(st.integers(-2, 40))
    return moves, keys, low, low + draw(st.integers(0, 20))


@settings(max_examples=200)
@given(histories())
def test_window_rule_equals_trying_every_instant(
    history: tuple[list[tuple[int, str, int]], list[int], int, int],
) -> None:
    moves, chain, low, high = history
    now = 0
    truth = Truth(lambda: now)
    log = truth.log_of("w")
    states: list[tuple[int, frozenset[int]]] = [(-(10**9), frozenset())]
    held: set[int] = set()
    for pause, move, key in moves:
        now += pause
        if move == "store":
            at = log.store([key])
            held.add(key)
        elif move == "drop":
            at = log.drop(key)
            held.discard(key)
        else:
            at = log.clear()
            held.clear()
        states.append((at, frozenset(held)))

    def naive(at: int) -> int:
        state = [s for stamp, s in states if stamp <= at][-1]
        return next((i for i, key in enumerate(chain) if key not in state), len(chain))

    possible = {naive(at) for at in range(low, high + 1)}
    assert {n for n in range(-1, len(chain) + 2) if log.had_length(chain, n, low, high)} == possible
    assert log.longest_within(chain, low, high) == max(possible)
    assert [log.length_at(chain, at) for at in range(low, high + 1)] == [
        naive(at) for at in range(low, high + 1)
    ]


def test_a_block_in_doubt_is_not_owed_until_it_is_stored_again() -> None:
    clock = Clock()
    log = Truth(clock).log_of("w")
    clock.ms = 10
    log.store([1, 2])
    clock.ms = 20
    log.store([2])
    clock.ms = 30
    log.doubt(2)
    clock.ms = 40
    assert log.had_length([1, 2], 2, 35 * MS, 38 * MS)
    assert log.had_length([1, 2], 1, 35 * MS, 38 * MS)
    assert not log.had_length([1, 2], 1, 15 * MS, 25 * MS)
    assert not log.had_length([1, 2], 0, 35 * MS, 38 * MS)
    log.store([2])
    clock.ms = 50
    assert not log.had_length([1, 2], 1, 45 * MS, 50 * MS)
    log.doubt(2)
    clock.ms = 60
    log.drop(2)
    assert not log.had_length([1, 2], 2, 61 * MS, 70 * MS)
    assert log.had_length([1, 2], 1, 61 * MS, 70 * MS)
