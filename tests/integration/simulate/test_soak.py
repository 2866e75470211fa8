"""A short soak: processes killed, frozen, cut off in mid-write and set an hour wrong, the log cut, and nothing
shows."""

from __future__ import annotations

import pytest

from kvledger.settings import Settings
from kvledger.simulate.nemesis.arsenal import SoakPlan
from kvledger.simulate.nemesis.soak import run_soak

FAULTS = ("kill-serve", "stop-postgres", "kill-between-writes", "clock-jump", "truncated-log")


@pytest.mark.timeout(240)
def test_faults_of_processes_are_survived_and_every_answer_is_right() -> None:
    plan = SoakPlan(
        workers=1, direct=1, bridged=1, calm_s=1.0, rate=15.0, seed=4, only=FAULTS, strikes=len(FAULTS)
    )
    lines: list[str] = []
    report = run_soak(Settings(), plan, lines.append)
    assert report.violations == 0, (report.whys, report.unrepaired, report.lost_events, report.digest)
    assert {kind.fault: kind.struck for kind in report.kinds if kind.struck} == dict.fromkeys(FAULTS, 1)
    assert report.process_kills == 3
    assert report.lookups > 100
    assert report.excused_share < 0.9
    assert report.events > 0
    assert lines[-1].startswith("comparing")
