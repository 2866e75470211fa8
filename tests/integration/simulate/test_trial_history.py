"""A trial on a real log with a CPU tier: what it recorded is judged again as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvledger.settings import Settings
from kvledger.simulate.fleet_plan import Attachment, FleetPlan
from kvledger.simulate.matrix import scenario_of
from kvledger.simulate.recheck import recheck
from kvledger.simulate.trial import run_trial
from tests.integration.simulate.test_trial import WORK, prepared, served

__all__ = ["prepared"]
PLAN = FleetPlan(workers=2, capacity_blocks=150, cpu_blocks=300, attachment=Attachment.BRIDGE)


@pytest.mark.timeout(120)
async def test_recorded_trial_is_judged_again_as_it_was(prepared: Settings, tmp_path: Path) -> None:
    path = tmp_path / "trial.jsonl.gz"
    async with served(prepared) as settings:
        scenario = scenario_of(("duplicates",), PLAN, rate=30.0, bound_ms=3000.0)
        scenario = replace(scenario, warm_up_s=0.5, pause_s=0.1, workload=WORK)
        report = await run_trial(settings, scenario, seed=5, duration_s=1.0, history=path)
    assert (report.wrong_unflagged, report.unjustified_refusals, report.unjustified_exclusions) == (0, 0, 0)
    again = recheck(path)
    assert again.different == ()
    assert again.checker.counts.lookups >= report.lookups > 0
    assert again.checker.counts.credits > 0
    assert again.checker.counts.excused == report.excused
    assert again.checker.counts.strict_share == report.strict_share
