"""All faults by name, and what each needs of the fleet that it strikes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from events.errors import KvledgerError
from kvledger.simulate.fault import Arena, Fault, Strike
from kvledger.simulate.fleet_plan import Attachment, FleetPlan
from kvledger.simulate.trouble import engine, loss, reporter
from kvledger.simulate.trouble.worker_fault import Act, WorkerFault

HEALTHY_S = 4.0
UNCONFIRMED = "unconfirmed"


class UnknownFaultError(KvledgerError):
    """No fault has that name; `known` lists those there are."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(f"there is no fault {name}: choose of {', '.join(known)}")
        self.name = name
        self.known = known


class UnsuitablePlanError(KvledgerError):
    """The fault can't strike that fleet; the message says what it needs."""


@dataclass(slots=True)
class Healthy:
    """Nothing happens: the control run."""

    name: str = "healthy"

    async def strike(self, arena: Arena) -> Strike:
        """A while goes by."""
        begun_ns = arena.fleet.truth.now_ns()
        await asyncio.sleep(HEALTHY_S)
        return Strike(self.name, None, begun_ns, arena.fleet.truth.now_ns(), None, "nothing was done")


@dataclass(frozen=True, slots=True)
class Listed:
    """A fault's entry: how to make one, what it is, and its demands on the fleet's plan."""

    make: Callable[[], Fault]
    about: str
    direct: bool = False
    replay: bool = True


def _on_worker(name: str, act: Act, *, direct: bool = False, replay: bool = True) -> tuple[str, Listed]:
    basis = None if replay else UNCONFIRMED
    about = (act.__doc__ or "").strip().splitlines()[0].rstrip(".:;")
    return name, Listed(lambda: WorkerFault(name, act, basis), about, direct, replay)


ROSTER: Mapping[str, Listed] = dict(
    [
        ("healthy", Listed(Healthy, "Nothing happens: the control run", direct=True)),
        _on_worker("loss-with-replay", loss.loss_with_replay),
        _on_worker("loss-without-replay", loss.loss_without_replay, replay=False),
        _on_worker("dead-replay", loss.dead_replay),
        _on_worker("short-replay-ring", loss.short_replay_ring),
        _on_worker("burst-loss", loss.burst_loss),
        _on_worker("engine-restart", engine.engine_restart, direct=True),
        _on_worker("restart-with-loss", engine.restart_with_loss),
        _on_worker("idle-resets", engine.idle_resets),
        _on_worker("muted-publisher", loss.muted_publisher),
        _on_worker("hook-killed", reporter.hook_killed),
        _on_worker("vanished-steps", loss.vanished),
        _on_worker("endless-replay", loss.endless_replay),
        _on_worker("duplicates", loss.duplicates),
        _on_worker("delay", loss.delay),
        _on_worker("long-steps", engine.long_steps, direct=True),
        _on_worker("split-brain", reporter.split_brain),
        _on_worker("zombie-epoch", reporter.zombie_epoch),
    ]
)

MATRIX = (
    "loss-with-replay",
    "loss-without-replay",
    "dead-replay",
    "short-replay-ring",
    "burst-loss",
    "engine-restart",
    "restart-with-loss",
    "idle-resets",
    "muted-publisher",
    "hook-killed",
)
"""The faults that a release must withstand under ten seeds each."""


def make_faults(names: tuple[str, ...]) -> tuple[Fault, ...]:
    """New faults of these names, in that order. Raises UnknownFaultError."""
    for name in names:
        if name not in ROSTER:
            raise UnknownFaultError(name, tuple(ROSTER))
    return tuple(ROSTER[name].make() for name in names)


def plan_for(names: tuple[str, ...], plan: FleetPlan) -> FleetPlan:
    """The plan with what these faults need of it. Raises UnsuitablePlanError."""
    listed = [ROSTER[name] for name in names]
    if plan.attachment is Attachment.DIRECT and not all(one.direct for one in listed):
        bridged = [name for name in names if not ROSTER[name].direct]
        raise UnsuitablePlanError(f"{bridged[0]} needs engines that are attached by a bridge")
    without = [one for one in listed if not one.replay]
    if without and len(without) < len(listed):
        raise UnsuitablePlanError("a fault of a fleet without replay sockets can't be mixed with others")
    return replace(plan, replay=not without)
