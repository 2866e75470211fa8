"""Verdicts against physical truth, over thousands of faulty fleets; and what each condition is there for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from auditor.finding import Condition
from auditor.verdict import CONDITIONS
from events.ids import VerdictKind
from tests.support.audit_fault import MIXED, NONE, Faults
from tests.support.audit_simulation import SimFleet

PROFILES = {
    "mixed": MIXED,
    "losses and liars": replace(MIXED, lost=0.04, kept=0.2, silent=0.05, cut=0.0, crash=0.0),
    "partitions and zombies": Faults(cut=0.12, crash=0.06, zombie=0.6, reattach=0.05, repeated=0.05),
}
RUNS = 700


def run(seed: int, faults: Faults) -> SimFleet:
    fleet = SimFleet(seed, faults)
    fleet.run()
    return fleet


def test_truthful_fleets_on_a_perfect_network_are_all_proven() -> None:
    kinds = Counter(run(seed, NONE).verdict() for seed in range(200))
    assert kinds == {VerdictKind.PROVEN: 200}


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_no_fault_makes_a_verdict_unsound(profile: str) -> None:
    kinds: Counter[VerdictKind] = Counter()
    for seed in range(RUNS):
        fleet = run(seed, PROFILES[profile])
        verdict = fleet.verdict()
        kinds[verdict] += 1
        if verdict is VerdictKind.PROVEN:
            assert not fleet.holds_old, seed
        if verdict is VerdictKind.REFUTED:
            assert fleet.holds_old or fleet.returned or fleet.lied, seed
    assert kinds[VerdictKind.PROVEN] > RUNS // 20, kinds
    assert len(kinds) >= 3, kinds


CAUGHT_BY: dict[Condition, Faults] = {
    "P1": Faults(registration_lost=0.3),
    "P2": Faults(unregistered=0.5),
    "P3": Faults(lost=0.08, kept=0.15),
    "P4": Faults(laundered=0.8),
    "P5": Faults(tombstone_ignored=0.5),
    "P6": Faults(crash=0.02, zombie=1.0),
    "P7": Faults(kept=0.3),
    "P8": Faults(tombstone_ignored=0.5),
    "P9": Faults(cut=0.3, tombstone_ignored=0.6),
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_without_a_condition_something_false_is_proven(condition: Condition) -> None:
    """And with it, the same fleet is not."""
    for seed in range(2_000):
        fleet = SimFleet(seed, CAUGHT_BY[condition], condition)
        fleet.run()
        if fleet.holds_old and fleet.verdict() is VerdictKind.PROVEN:
            assert run(seed, CAUGHT_BY[condition]).verdict() is not VerdictKind.PROVEN
            return
    pytest.fail(f"leaving {condition} out was never caught")
