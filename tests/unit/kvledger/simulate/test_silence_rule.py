"""A 200 that says less than it certainly could is found, and one that has a cause to say less isn't."""

from __future__ import annotations

import pytest

from kvledger.simulate.checker import Checker
from kvledger.simulate.lookup import Credit, Exclusion, Lookup, Outcome, Verdict
from kvledger.simulate.silence_rule import always_there
from kvledger.simulate.truth import Truth

MS = 1_000_000
SECOND = 1_000 * MS
CHAIN = (1, 2, 3)


class Fleet:
    """w and w2 hold blocks 1 and 2 and pulse every 200 ms, each pulse confirming 10 ms before it, while `run`."""

    def __init__(self, basis: str = "engine") -> None:
        self.now_ns = 0
        self.truth = Truth(lambda: self.now_ns)
        for name in ("w", "w2"):
            self.truth.enlist(name, basis=basis)
            log = self.truth.log_of(name)
            log.begin_life(f"{name}-1")
            log.store([1, 2])
            log.publish(f"{name}-1", 0, 0)
        self.checker = Checker(self.truth, transit_ms=100)

    def run(self, until_s: float, *, pulsing: tuple[str, ...] = ("w", "w2")) -> None:
        while self.now_ns < until_s * SECOND:
            self.now_ns += 200 * MS
            for name in pulsing:
                self.truth.vouch(name, 0, self.now_ns - 10 * MS)

    def verdict(self, *credits: Credit, **fields: object) -> Verdict:
        """Of an answer now, by default one that calls itself incomplete for no reason."""
        at_ns = self.now_ns + 20 * MS
        asked: dict[str, object] = {
            "reader": "r",
            "tenant": "t",
            "chain": CHAIN,
            "bound_ms": 600,
            "start_ns": at_ns,
            "end_ns": at_ns + MS,
            "status": 200,
            "credits": credits,
            "coverage": (2, 2),
        }
        return self.checker.check(Lookup(**asked | fields))  # type: ignore[arg-type]

    def outcome(self, *credits: Credit, **fields: object) -> Outcome:
        return self.verdict(*credits, **fields).outcome


def credit(worker: str, blocks: int = 2, **fields: object) -> Credit:
    return Credit(worker, 0, blocks, 50, **fields)  # type: ignore[arg-type]


BOTH = (credit("w"), credit("w2"))
WHOLE: dict[str, object] = {"complete": True, "staleness_ms": 50.0}


@pytest.fixture
def fleet() -> Fleet:
    made = Fleet()
    made.run(20)
    return made


def test_all_that_is_certain_is_no_silence(fleet: Fleet) -> None:
    assert fleet.outcome(*BOTH, **WHOLE) is Outcome.OK
    assert fleet.checker.counts.strict_share == 1.0


@pytest.mark.parametrize("bound_ms", [600, 20, None])
def test_an_answer_without_any_match_is_silent(fleet: Fleet, bound_ms: float | None) -> None:
    verdict = fleet.verdict(bound_ms=bound_ms)
    assert verdict.outcome is Outcome.UNJUSTIFIED_SILENCE
    assert verdict.why == "w/0 is not named, but held 2 blocks all through the window"
    assert (verdict.worker, verdict.rank) == ("w", 0)


def test_one_holder_that_is_missing_is_silence(fleet: Fleet) -> None:
    verdict = fleet.verdict(credit("w"))
    assert (verdict.outcome, verdict.worker) == (Outcome.UNJUSTIFIED_SILENCE, "w2")
    assert fleet.outcome(credit("w"), candidates=("w",), limited=True, coverage=(1, 1), **WHOLE) is Outcome.OK


def test_a_limit_may_cut_but_not_to_nothing(fleet: Fleet) -> None:
    assert fleet.outcome(credit("w"), limited=True) is Outcome.OK
    assert fleet.outcome(limited=True) is Outcome.UNJUSTIFIED_SILENCE


def test_complete_is_owed_where_everybody_is_known(fleet: Fleet) -> None:
    verdict = fleet.verdict(*BOTH)
    assert (verdict.outcome, "not called complete" in verdict.why) == (Outcome.UNJUSTIFIED_SILENCE, True)
    assert fleet.outcome(*BOTH, candidates=("w", "w2"), limited=True) is Outcome.UNJUSTIFIED_SILENCE
    assert fleet.outcome(*BOTH, limited=True) is Outcome.OK
    assert fleet.outcome(*BOTH, bound_ms=None) is Outcome.UNJUSTIFIED_SILENCE
    # One that left long ago and is still named explains nothing.
    gone = (Exclusion("x", 0, "fenced"),)
    assert fleet.outcome(*BOTH, exclusions=gone) is Outcome.UNJUSTIFIED_SILENCE


def test_a_doubt_explains_a_floor_and_that_nothing_is_claimed(fleet: Fleet) -> None:
    log = fleet.truth.log_of("w")
    log.doubt(2)
    fleet.run(25)
    floor = credit("w", 1, at_least=True)
    assert fleet.outcome(floor, credit("w2")) is Outcome.OK
    # Of another one it explains only that the answer isn't complete.
    verdict = fleet.verdict(floor, credit("w2", at_least=True))
    assert (verdict.worker, "is called partial" in verdict.why) == ("w2", True)
    log.store([2])
    fleet.run(40)
    assert fleet.outcome(*BOTH) is Outcome.UNJUSTIFIED_SILENCE
    assert fleet.outcome(credit("w", at_least=True), credit("w2"), **WHOLE) is Outcome.UNJUSTIFIED_SILENCE


def test_nobody_held_it_and_still_complete_is_owed(fleet: Fleet) -> None:
    assert fleet.outcome(chain=(7, 8)) is Outcome.UNJUSTIFIED_SILENCE
    assert fleet.outcome(chain=(7, 8), **WHOLE) is Outcome.OK


@pytest.mark.parametrize(
    "flag",
    [
        {"basis": "unconfirmed"},
        {"identity": "unverified"},
        {"at_least": True},
        {"within_bound": False},
    ],
)
def test_no_flag_excuses_a_match_that_is_too_short(fleet: Fleet, flag: dict[str, object]) -> None:
    asked = {"basis": "unconfirmed"} if flag.get("basis") else {}
    short = fleet.outcome(credit("w", 1, **flag), credit("w2"), **asked, **WHOLE)
    assert short is Outcome.UNJUSTIFIED_SILENCE


def test_great_age_excuses_no_match_that_is_too_short(fleet: Fleet) -> None:
    fleet.truth.log_of("w").store([3])
    fleet.run(40)
    aged: dict[str, object] = {"bound_ms": None, "complete": True, "staleness_ms": 30_000.0}
    old = Credit("w", 0, 2, 30_000)
    verdict = fleet.verdict(old, credit("w2"), **aged)
    assert verdict.outcome is Outcome.UNJUSTIFIED_SILENCE
    assert verdict.why == "w/0 is credited with (2,), but held (3, 3, 3, 3) all through the window"
    fleet.run(60, pulsing=("w2",))
    assert fleet.outcome(old, credit("w2"), **aged) is Outcome.WRONG_UNFLAGGED
    assert fleet.outcome(Credit("w", 0, 3, 30_000), credit("w2"), **aged) is Outcome.OK


def test_each_tier_is_owed(fleet: Fleet) -> None:
    fleet.truth.log_of("w", tier="cpu").store([3])
    fleet.run(40)
    tiers = {(2, 3, 3, 3): Outcome.OK, (1, 3, 3, 3): Outcome.UNJUSTIFIED_SILENCE}
    for told, outcome in tiers.items():
        one = credit("w", 3, tier_blocks=told, identity="unverified")
        assert fleet.outcome(one, credit("w2"), **WHOLE) is outcome


def test_out_of_bound_needs_pulses_that_stopped(fleet: Fleet) -> None:
    late = Credit("w", 0, 2, 700, within_bound=False)
    asked: dict[str, object] = {"on_stale": "include", "complete": False}
    assert fleet.outcome(late, credit("w2"), **asked) is Outcome.UNJUSTIFIED_SILENCE
    fleet.run(21, pulsing=("w2",))
    assert fleet.outcome(late, credit("w2"), **asked) is Outcome.OK
    assert fleet.outcome(credit("w2"), **asked) is Outcome.OK


def test_coverage_must_name_whom_it_lacks_and_count_everybody(fleet: Fleet) -> None:
    assert "1/2 with 0 excluded" in fleet.verdict(*BOTH, coverage=(1, 2)).why
    assert "0/0 where 2" in fleet.verdict(coverage=(0, 0)).why
    fleet.truth.drain("w2")
    fleet.truth.retire("w2")
    fleet.run(40, pulsing=("w",))
    assert fleet.outcome(credit("w"), coverage=(1, 1), **WHOLE) is Outcome.OK


def test_blocks_that_came_or_went_inside_the_window_are_not_owed(fleet: Fleet) -> None:
    fleet.truth.log_of("w2").drop(1)
    assert fleet.outcome(credit("w"), **WHOLE) is Outcome.OK
    fleet.truth.log_of("w2").store([1])
    assert fleet.outcome(credit("w"), bound_ms=1_000, complete=True, staleness_ms=90.0) is Outcome.OK
    fleet.run(30)
    assert fleet.outcome(credit("w")) is Outcome.UNJUSTIFIED_SILENCE


def test_what_is_in_doubt_is_not_owed(fleet: Fleet) -> None:
    fleet.truth.log_of("w2").doubt(1)
    fleet.run(30)
    assert fleet.outcome(credit("w"), **WHOLE) is Outcome.OK


def test_what_is_not_on_the_wire_is_not_owed() -> None:
    fleet = Fleet(basis="published")
    fleet.truth.log_of("w").store([3])
    fleet.run(20)
    both = (credit("w", basis="published"), credit("w2", basis="published"))
    assert fleet.outcome(*both, **WHOLE) is Outcome.OK
    unsure = credit("w", identity="unverified", basis="published")
    assert fleet.outcome(unsure, both[1], **WHOLE) is Outcome.OK
    fleet.truth.log_of("w").publish("w-1", 1, 0)
    fleet.run(40)
    assert fleet.outcome(unsure, both[1], **WHOLE) is Outcome.UNJUSTIFIED_SILENCE


def test_a_deletion_may_hide_all_of_it(fleet: Fleet) -> None:
    fleet.truth.hide("t")
    assert fleet.outcome(**WHOLE) is Outcome.OK


def test_one_that_has_just_come_is_not_owed(fleet: Fleet) -> None:
    fleet.truth.enlist("new")
    fleet.truth.log_of("new").store([1])
    assert fleet.outcome(*BOTH) is Outcome.OK


def test_trouble_excuses_until_it_has_settled_and_the_inventory_is_known_again(fleet: Fleet) -> None:
    assert fleet.outcome(*BOTH, **WHOLE) is Outcome.OK
    fleet.truth.disturb("w2", kind="lost records")
    fleet.run(21)
    assert fleet.outcome(credit("w")) is Outcome.OK
    fleet.truth.calm("w2")
    fleet.run(40)
    partial = credit("w2", 1, at_least=True)
    assert fleet.outcome(credit("w"), partial) is Outcome.OK
    assert fleet.outcome(credit("w")) is Outcome.OK
    assert fleet.outcome(credit("w2")) is Outcome.UNJUSTIFIED_SILENCE
    assert fleet.checker.counts.excused == 3
    fleet.run(50)
    assert fleet.outcome(*BOTH, **WHOLE) is Outcome.OK
    fleet.run(51)
    assert fleet.outcome(credit("w")) is Outcome.UNJUSTIFIED_SILENCE
    assert fleet.outcome(credit("w"), partial) is Outcome.UNJUSTIFIED_SILENCE


def test_one_that_can_give_no_word_may_always_know_too_little() -> None:
    fleet = Fleet(basis="unconfirmed")
    fleet.run(20)
    assert fleet.outcome(basis="unconfirmed") is Outcome.OK


def test_what_was_always_there_is_what_no_instant_lacked() -> None:
    now_ns = 0
    truth = Truth(lambda: now_ns)
    gpu, cpu = truth.log_of("w"), truth.log_of("w", tier="cpu")
    gpu.store([1, 2])
    now_ns = 100
    cpu.store([2])
    now_ns = 200
    gpu.drop(2)
    assert always_there([gpu], [1, 2, 3], 50, 300) == 1
    assert always_there([gpu, cpu], [1, 2, 3], 50, 300) == 2
    assert always_there([], [1], 0, 1) == 0
