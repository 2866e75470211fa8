"""What a soak is made of, and everything that strikes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvledger.simulate.fault import Arena, Fault, Strike
from kvledger.simulate.nemesis.bridged import Bridged
from kvledger.simulate.nemesis.hook import KillHook, KillWorker, StopHook, StopWorker
from kvledger.simulate.nemesis.registry import process_faults
from kvledger.simulate.trouble.roster import ROSTER, UnknownFaultError

HEALTHY = "healthy"


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """How long, how hard, and with what. `workers` are attached by bridges in this process, `direct` by hooks
    in it, `bridged` by bridges of their own. `only` names the faults to strike; empty: all.
    `strikes`: how many at most; None is as many as the time allows. `calm_s` passes
    before the first strike, `pause_s` (at least, at most) between two."""

    duration_s: float = 1800.0
    seed: int = 1
    workers: int = 2
    direct: int = 2
    bridged: int = 2
    capacity_blocks: int = 500
    rate: float = 10.0
    lookups_per_s: float = 15.0
    calm_s: float = 10.0
    pause_s: tuple[float, float] = (0.3, 1.5)
    tenants: tuple[str, ...] = ("acme", "globex", "initech")
    only: Sequence[str] = ()
    strikes: int | None = None


@dataclass(frozen=True, slots=True)
class _OnPlanned:
    """A fault of one worker, which may choose only among those that the fleet's plan has made."""

    fault: Fault
    planned: int

    @property
    def name(self) -> str:
        return self.fault.name

    async def strike(self, arena: Arena) -> Strike:
        """See `Fault`."""
        fleet = replace(arena.fleet, workers=arena.fleet.workers[: self.planned])
        return await self.fault.strike(replace(arena, fleet=fleet))


def make_faults(plan: SoakPlan, bridged: Bridged) -> dict[str, Fault]:
    """New faults by name: those of one worker, those of processes. Raises UnknownFaultError."""
    faults: dict[str, Fault] = {}
    for name, listed in ROSTER.items():
        # Some need a fleet without replay sockets; the control run is between strikes.
        if listed.replay and name != HEALTHY and plan.workers:
            faults[name] = _OnPlanned(listed.make(), plan.workers)
    faults |= process_faults()
    if plan.bridged:
        own = (KillHook(bridged), StopHook(bridged), KillWorker(bridged), StopWorker(bridged))
        faults |= {fault.name: fault for fault in own}
    for name in plan.only:
        if name not in faults:
            raise UnknownFaultError(name, tuple(faults))
    return {name: faults[name] for name in plan.only} if plan.only else faults
