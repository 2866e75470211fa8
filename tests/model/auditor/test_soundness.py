"""Verdicts against physical truth, over thousands of faulty fleets; and what each condition is there for."""

from __future__ import annotations

from collections import Counter

import pytest

from auditor.finding import Condition
from auditor.verdict import CONDITIONS
from events.ids import VerdictKind
from tests.model.auditor.soundness import Tally, batch, played
from tests.support.audit_fault import ALONE, NONE, PROFILES, Faults
from tests.support.audit_simulation import SimFleet

FAULTY = 2_000
DECIDED_UNDER_MILD_FAULTS = 0.9


def test_truthful_fleets_on_a_perfect_network_are_all_proven() -> None:
    _, tally = batch("(none)", range(200))
    assert tally.verdicts == {VerdictKind.PROVEN: 200}


def test_no_fault_makes_a_verdict_unsound() -> None:
    """The long form is `python -m tests.model.auditor.soundness`."""
    whole = Tally()
    for name in [*PROFILES, *(f"only {name}" for name in ALONE)]:
        _, tally = batch(name, range(320 if name in PROFILES else 50))
        assert not tally.unsound, (name, tally.seeds)
        whole += tally
    assert whole.faulty >= FAULTY
    assert set(whole.struck) == set(ALONE), "a fault that never strikes"
    for kind in VerdictKind:
        assert whole.verdicts[kind] > 10, whole.verdicts


def test_soundness_is_not_bought_by_never_saying_yes() -> None:
    """One record of a thousand is lost, hooks restart, workers are honest."""
    _, tally = batch("(mild)", range(200))
    assert not tally.unsound, tally.seeds
    assert {"lost", "reattach", "forgotten"} == set(tally.struck)
    assert tally.decided >= DECIDED_UNDER_MILD_FAULTS, tally.verdicts


def test_one_dropped_batch_that_a_snapshot_repaired_costs_no_later_proof() -> None:
    kinds: Counter[VerdictKind] = Counter()
    for seed in range(100):
        fleet = SimFleet(seed, NONE, drop=4 + seed % 30)
        fleet.run()
        assert sum(hook.torn for hook in fleet.hooks) == 1, seed
        kinds[fleet.verdict()] += 1
    assert kinds == {VerdictKind.PROVEN: 100}


def test_a_key_that_speaks_for_another_node_costs_a_verdict_nothing_but_its_good_signatures() -> None:
    """Truthful fleets: P1 says that the log holds such records, and all else is as if they weren't there."""
    kinds: Counter[VerdictKind] = Counter()
    for seed in range(100):
        fleet = SimFleet(seed, ALONE["impostor"], "P1")
        fleet.run()
        kinds[fleet.verdict()] += 1
        if fleet.struck["impostor"]:
            assert played(seed, ALONE["impostor"]).verdict() is VerdictKind.UNPROVABLE
    assert kinds == {VerdictKind.PROVEN: 100}


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
            assert played(seed, CAUGHT_BY[condition]).verdict() is not VerdictKind.PROVEN
            return
    pytest.fail(f"leaving {condition} out was never caught")
