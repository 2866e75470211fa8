"""Everybody who is left out needs a reason that fits, and trouble excuses for a limited time only."""

from __future__ import annotations

import pytest

from kvledger.simulate.checker import Checker
from kvledger.simulate.lookup import Credit, Exclusion, Lookup, Outcome
from kvledger.simulate.truth import Truth

MS = 1_000_000
SECOND = 1_000 * MS


class Fleet:
    """w and w2 hold block 1 and pulse every 200 ms, each pulse confirming 10 ms before it, while `run`."""

    def __init__(self, basis: str = "engine") -> None:
        self.now_ns = 0
        self.truth = Truth(lambda: self.now_ns)
        for name in ("w", "w2"):
            self.truth.enlist(name, basis=basis)
            log = self.truth.log_of(name)
            log.begin_life(f"{name}-1")
            log.store([1])
            log.publish(f"{name}-1", 0, 0)
        self.checker = Checker(self.truth, transit_ms=100)

    def run(self, until_s: float, *, pulsing: tuple[str, ...] = ("w", "w2"), confirming: bool = True) -> None:
        confirmed_ns = self.now_ns
        while self.now_ns < until_s * SECOND:
            self.now_ns += 200 * MS
            for name in pulsing:
                self.truth.vouch(name, 0, self.now_ns - 10 * MS if confirming else confirmed_ns)

    def verdict(self, reason: str, **fields: object) -> Outcome:
        """Of an answer now that credits w2 and leaves out w."""
        asked: dict[str, object] = {
            "credits": (Credit("w2", 0, 1, 50, basis="published"),),
            "exclusions": (Exclusion("w", 0, reason),),
            "bound_ms": 600,
            "status": 200,
        }
        at_ns = self.now_ns + 20 * MS
        found = Lookup(
            reader="r",
            tenant="t",
            chain=(1, 2),
            start_ns=at_ns,
            end_ns=at_ns + MS,
            **asked | fields,  # type: ignore[arg-type]
        )
        return self.checker.check(found).outcome


REASONS = (
    "stale",
    "silent",
    "gap",
    "unopened",
    "quarantined",
    "profile_incomplete",
    "draining",
    "fenced",
    "unregistered",
    "unconfirmed",
    "tired",
)


@pytest.mark.parametrize("reason", REASONS)
def test_no_reason_fits_a_healthy_worker(reason: str) -> None:
    fleet = Fleet()
    fleet.run(20)
    assert fleet.verdict(reason) is Outcome.UNJUSTIFIED_EXCLUSION


@pytest.mark.parametrize("reason", [reason for reason in REASONS if reason != "tired"])
def test_trouble_excuses_until_it_has_settled(reason: str) -> None:
    fleet = Fleet()
    fleet.run(20)
    fleet.truth.disturb("w")
    fleet.run(21)
    assert fleet.verdict(reason) is Outcome.OK
    fleet.truth.calm("w")
    fleet.run(23)
    assert fleet.verdict(reason) is Outcome.OK
    assert fleet.checker.counts.excused == 2
    fleet.run(40)
    assert fleet.verdict(reason) is Outcome.UNJUSTIFIED_EXCLUSION


def test_another_workers_trouble_excuses_nothing() -> None:
    fleet = Fleet()
    fleet.run(20)
    fleet.truth.disturb("w2")
    fleet.run(21)
    assert fleet.verdict("gap") is Outcome.UNJUSTIFIED_EXCLUSION


def test_trouble_that_is_never_repaired_stops_excusing() -> None:
    fleet = Fleet()
    fleet.run(20)
    fleet.truth.disturb("w", excused_s=10, kind="a hole")
    fleet.run(29)
    assert fleet.verdict("gap") is Outcome.OK
    assert not fleet.truth.unrepaired()
    fleet.run(50)
    assert fleet.verdict("gap") is Outcome.UNJUSTIFIED_EXCLUSION
    assert [one.kind for one in fleet.truth.unrepaired()] == ["a hole"]
    fleet.truth.calm("w")
    assert fleet.truth.unrepaired()


def test_dead_worker_stays_out_without_any_excuse() -> None:
    fleet = Fleet()
    fleet.run(20)
    fleet.truth.disturb("w", kind="killed")
    fleet.run(200, pulsing=("w2",))
    for reason in ("silent", "gap", "fenced", "stale"):
        assert fleet.verdict(reason) is Outcome.OK
    assert fleet.checker.counts.strict_share == 1.0
    assert fleet.verdict("draining") is Outcome.UNJUSTIFIED_EXCLUSION


def test_stale_fits_what_isn_t_confirmed_and_silent_doesn_t() -> None:
    fleet = Fleet()
    fleet.run(20)
    fleet.run(22, confirming=False)
    assert fleet.verdict("stale", bound_ms=1000) is Outcome.OK
    assert fleet.verdict("silent", bound_ms=1000) is Outcome.UNJUSTIFIED_EXCLUSION
    assert fleet.verdict("stale", bound_ms=None) is Outcome.UNJUSTIFIED_EXCLUSION


def test_a_bound_too_tight_to_condemn_anybody_counts_as_an_excuse() -> None:
    fleet = Fleet()
    fleet.run(20)
    nobody = (Exclusion("w", 0, "stale"), Exclusion("w2", 0, "stale"))
    assert fleet.verdict("stale", bound_ms=250) is Outcome.OK
    assert fleet.verdict("", credits=(), exclusions=nobody, bound_ms=250) is Outcome.OK
    assert fleet.verdict("", credits=(), exclusions=(), status=503, bound_ms=250) is Outcome.OK
    assert fleet.checker.counts.excused == 3
    assert fleet.verdict("", credits=(), exclusions=(), status=503, bound_ms=20) is Outcome.OK
    assert fleet.checker.counts.excused == 3


def test_unconfirmed_fits_a_weaker_word_than_asked() -> None:
    fleet = Fleet(basis="published")
    fleet.run(20)
    assert fleet.verdict("unconfirmed") is Outcome.UNJUSTIFIED_EXCLUSION
    nobody = (Exclusion("w", 0, "unconfirmed"), Exclusion("w2", 0, "unconfirmed"))
    assert fleet.verdict("", credits=(), exclusions=nobody, basis="engine") is Outcome.OK


def test_draining_fits_who_has_said_so() -> None:
    fleet = Fleet()
    fleet.run(20)
    fleet.truth.drain("w")
    assert fleet.verdict("draining") is Outcome.OK


def test_a_worker_that_has_just_come_or_has_left_may_be_left_out() -> None:
    fleet = Fleet()
    fleet.run(20)
    fleet.truth.retire("w")
    fleet.run(21)
    assert fleet.verdict("fenced") is Outcome.OK
    fleet.truth.enlist("w")
    fleet.run(22)
    assert fleet.verdict("unopened") is Outcome.OK
    assert fleet.verdict("unregistered", exclusions=(Exclusion("x", -1, "unregistered"),)) is Outcome.OK


def test_needed_coverage_is_judged_as_it_was_asked() -> None:
    fleet = Fleet()
    fleet.run(20)
    fleet.truth.disturb("w")
    nothing: dict[str, object] = {"credits": (), "exclusions": ()}
    assert fleet.verdict("", status=503, **nothing) is Outcome.UNJUSTIFIED_REFUSAL
    assert fleet.verdict("", status=503, min_coverage=2, **nothing) is Outcome.OK
    assert fleet.verdict("", status=503, min_coverage=0.5, **nothing) is Outcome.UNJUSTIFIED_REFUSAL
    assert fleet.verdict("", status=503, candidates=("w",), **nothing) is Outcome.OK
    assert fleet.verdict("", status=503, on_stale="include", **nothing) is Outcome.UNJUSTIFIED_REFUSAL
    gone = (Exclusion("w", 0, "gap"),)
    assert fleet.verdict("", credits=(), exclusions=gone, candidates=("w",), min_coverage=0) is Outcome.OK
    fleet.truth.disturb()
    assert fleet.verdict("", status=503, min_coverage=0, **nothing) is Outcome.OK
    assert fleet.verdict("", status=422, bound_ms=300, on_stale="include") is Outcome.UNJUSTIFIED_REFUSAL
