"""What a trial plays: a fleet, a workload, and the faults that strike it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kvledger.simulate.fault import Fault
from kvledger.simulate.fleet_plan import FleetPlan
from kvledger.simulate.workload import WorkloadSettings

TRIAL_WORK = WorkloadSettings(
    requests=1_000_000_000, tenants=("acme", "globex", "initech"), max_context_tokens=4000
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Faults strike in turn, about `pause_s` apart, while requests come at `rate` a second.

    `make_faults` is called once a trial. Every lookup asks for `bound_ms`. `warm_up_s` passes before the
    first strike. A trial that lasts longer than all its faults goes round again.
    """

    name: str
    plan: FleetPlan
    make_faults: Callable[[], tuple[Fault, ...]]
    rate: float = 40.0
    bound_ms: float = 500.0
    warm_up_s: float = 1.5
    pause_s: float = 0.5
    workload: WorkloadSettings = field(default=TRIAL_WORK)
    trace: Path | None = None
    """A recorded trace instead of the workload, whose tenants get its requests; the trial ends with it."""
