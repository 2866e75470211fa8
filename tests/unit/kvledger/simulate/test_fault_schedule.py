"""Names, seeds and demands of faults, and what a trial's report makes of them."""

from __future__ import annotations

import json

import pytest

from kvledger.simulate.fault import Strike, UnrepairedError
from kvledger.simulate.fleet_plan import Attachment, FleetPlan
from kvledger.simulate.matrix import Matrix, SeedsError, read_seeds, scenario_of
from kvledger.simulate.trial import dice
from kvledger.simulate.trial_report import TrialReport
from kvledger.simulate.trouble.roster import (
    MATRIX,
    ROSTER,
    UnknownFaultError,
    UnsuitablePlanError,
    make_faults,
    plan_for,
)

BRIDGED = FleetPlan(attachment=Attachment.BRIDGE)


def report(**fields: object) -> TrialReport:
    plain = {
        "scenario": "delay",
        "seed": 1,
        "elapsed_s": 9.0,
        "requests": 100,
        "events": 10,
        "lookups": 100,
        "answered_in_bound": 99,
        "refused": 1,
        "wrong_unflagged": 0,
        "unjustified_refusals": 0,
        "unjustified_exclusions": 0,
        "unjustified_silences": 0,
    }
    return TrialReport(**(plain | fields))  # type: ignore[arg-type]


def strike(repair_s: float | None) -> Strike:
    repaired_ns = None if repair_s is None else int(5e9 + repair_s * 1e9)
    return Strike("delay", "w", int(1e9), int(5e9), repaired_ns)


def test_the_matrix_has_ten_faults_of_the_roster() -> None:
    assert len(set(MATRIX)) == 10
    assert set(MATRIX) < set(ROSTER)
    assert [fault.name for fault in make_faults(MATRIX)] == list(MATRIX)


def test_every_fault_says_in_one_line_what_it_is() -> None:
    for name, listed in ROSTER.items():
        assert 10 < len(listed.about) < 110, name


def test_an_unknown_fault_is_named_with_those_there_are() -> None:
    with pytest.raises(UnknownFaultError) as raised:
        make_faults(("delay", "earthquake"))
    assert raised.value.name == "earthquake"
    assert "hook-killed" in raised.value.known


def test_a_fault_of_the_wire_needs_a_bridge() -> None:
    with pytest.raises(UnsuitablePlanError):
        plan_for(("dead-replay",), FleetPlan())
    assert plan_for(("engine-restart",), FleetPlan()).attachment is Attachment.DIRECT


def test_a_fleet_without_replay_answers_unconfirmed_and_is_not_mixed_with_others() -> None:
    plan = plan_for(("loss-without-replay",), BRIDGED)
    assert (plan.replay, plan.basis) == (False, "unconfirmed")
    assert plan_for(("delay",), BRIDGED).basis == "published"
    with pytest.raises(UnsuitablePlanError):
        plan_for(("loss-without-replay", "delay"), BRIDGED)


def test_a_seed_throws_the_same_dice_again_and_another_seed_others() -> None:
    scenario = scenario_of(("delay",), BRIDGED, rate=1.0, bound_ms=500.0)
    thrown = [[dice(scenario, seed).random() for _ in range(5)] for seed in (1, 1, 2)]
    assert thrown[0] == thrown[1] != thrown[2]


@pytest.mark.parametrize(("text", "seeds"), [("4", (4,)), ("1-3", (1, 2, 3)), ("7,2-3", (7, 2, 3))])
def test_seeds_are_numbers_and_ranges(text: str, seeds: tuple[int, ...]) -> None:
    assert read_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "1-", "3-1", "-4"])
def test_other_seeds_are_refused(text: str) -> None:
    with pytest.raises(SeedsError):
        read_seeds(text)


def test_every_kind_of_violation_counts() -> None:
    assert report().violations == 0
    assert report(wrong_flagged=5, excused=7).violations == 0
    bad = report(
        wrong_unflagged=1,
        unjustified_refusals=2,
        unjustified_exclusions=3,
        unjustified_silences=4,
        unrepaired=(str(UnrepairedError("delay", "w", 15.0, "stale")),),
        lost_events=("w/0 gpu: 1 blocks claimed",),
        failed="a hook failed",
    )
    assert bad.violations == 13


def test_the_report_tells_shares_and_times_to_repair() -> None:
    one = report(strikes=(strike(0.5), strike(2.0), strike(None)))
    document = json.loads(one.json_line())
    assert (document["in_bound_share"], document["repair_p50_s"], document["repair_max_s"]) == (
        0.99,
        0.5,
        2.0,
    )
    assert document["struck"] == {"delay": 3}


def test_the_matrix_adds_up_by_fault() -> None:
    matrix = Matrix()
    matrix.add(report(strikes=(strike(1.0),)))
    matrix.add(report(seed=2, wrong_unflagged=1, strikes=(strike(3.0),)))
    matrix.add(report(scenario="hook-killed", unjustified_silences=2))
    first, second = json.loads(matrix.json_line())["faults"]
    assert (first["fault"], first["seeds"], first["strikes"], first["wrong"]) == ("delay", 2, 2, 1)
    assert first["repair_max_s"] == 3.0
    assert (second["fault"], second["repair_p50_s"]) == ("hook-killed", None)
    assert (first["silent_wrongly"], second["silent_wrongly"]) == (0, 2)
    assert matrix.violations == 3
