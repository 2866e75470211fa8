"""What a trial plays: a fleet, a workload, and the faults that strike it."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvledger.simulate.fault import Fault
from kvledger.simulate.fleet_plan import FleetPlan
from kvledger.simulate.workload import WorkloadSettings


@dataclass(frozen=True, slots=True)
class Scenario:
    """Named faults strike in turn, `pause_s` apart, while requests come at `rate` a second.

    Every lookup asks for `bound_ms`. With no fault it is a control run. `rounds` is how often the whole
    tuple strikes at least; a trial that lasts longer goes round again.
    """

    name: str
    plan: FleetPlan
    faults: tuple[Fault, ...] = ()
    rate: float = 60.0
    bound_ms: float = 500.0
    warm_up_s: float = 1.5
    pause_s: float = 0.5
    rounds: int = 1
    unconfirmed: bool = False
    """Ask each question a second time with `basis: unconfirmed`, as a fleet without replay socket needs."""
    workload: WorkloadSettings = field(default_factory=WorkloadSettings)
