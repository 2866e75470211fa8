"""Workers whose hook is a real `kvledger bridge` process: the engine and its sockets here, the command beside."""

from __future__ import annotations

import asyncio
import random
import secrets
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from kvledger.control import connection, wall_ms
from kvledger.settings import Settings
from kvledger.simulate.engine import SimEngine
from kvledger.simulate.fleet import Fleet
from kvledger.simulate.fleet_plan import MODEL, FleetPlan
from kvledger.simulate.nemesis.pulse_watch import PulseWatch
from kvledger.simulate.nemesis.rebalance import extra_process
from kvledger.simulate.predecessor import ENDPOINT_SCHEME
from kvledger.simulate.wire.publisher import Publisher
from kvledger.simulate.worker import SimWorker
from kvledger.stack.keeper import end
from kvledger.stack.process import ProcessId, identify

NAMES = "bridged"
RESTART_S = 0.3
"""How long after its end a bridge is started again."""
STOP_S = 20.0


@dataclass(slots=True)
class BridgedWorker:
    """One engine with sockets and the process that carries it into the log; kept running by a task.

    `process` is None between two of them; `starts` counts them.
    """

    worker: SimWorker
    process: ProcessId | None = None
    starts: int = 0

    @property
    def name(self) -> str:
        """The worker's name in the log."""
        return self.worker.name


@dataclass(slots=True)
class Bridged:
    """All workers of this kind, made by `bridged_workers`; their engines are in the fleet's `workers` too."""

    workers: list[BridgedWorker] = field(default_factory=list)


@asynccontextmanager
async def bridged_workers(settings: Settings, fleet: Fleet, count: int) -> AsyncIterator[Bridged]:
    """Adds `count` bridged workers to a running fleet, before anybody has asked anything of it.

    Their streams aren't open yet when this enters: wait until lookups are complete. At the end the bridges
    are stopped in order; the fleet closes the sockets.
    """
    made = Bridged()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    birth = f"{secrets.token_hex(4)}-"
    keepers: list[asyncio.Task[None]] = []
    async with AsyncExitStack() as stack:
        stack.callback(context.term)
        stack.push_async_callback(_end_all, keepers, made)
        profile = settings.home / "bridge" / "profile.toml"
        profile.parent.mkdir(parents=True, exist_ok=True)
        profile.write_text(profile_text(fleet.plan))
        for index in range(count):
            one = BridgedWorker(make_worker(fleet, f"{NAMES}-{index}", birth))
            publisher = Publisher(
                one.worker.engine,
                context,
                ring_steps=fleet.plan.ring_steps,
                rng=random.Random(one.name),
            )
            one.worker.publisher = publisher
            await publisher.open()
            made.workers.append(one)
            fleet.workers.append(one.worker)
            fleet.tasks.append(asyncio.create_task(one.worker.run()))
            keepers.append(asyncio.create_task(_keep(settings, fleet, one, profile)))
            fleet.truth.enlist(one.name, 0, basis="published")
            fleet.truth.vouch(one.name, 0, -1)
        watch = PulseWatch(
            connection(settings),
            settings.partitions,
            fleet.truth,
            {one.name for one in made.workers},
            wall_ms=wall_ms,
        )
        keepers.append(asyncio.create_task(watch.run()))
        yield made


def profile_text(plan: FleetPlan) -> str:
    """The profile file that gives bridged engines the same identity as the fleet's own."""
    content = plan.content().model_dump(mode="json", exclude_none=True)
    lines = [
        f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value}"
        for name, value in content.items()
    ]
    return "\n".join(["[content]", *lines, ""])


def make_worker(fleet: Fleet, name: str, birth: str) -> SimWorker:
    """An engine with the fleet's plan and truth, not yet attached to anything nor running."""
    plan = fleet.plan
    engine = SimEngine(
        name,
        capacity_blocks=plan.capacity_blocks,
        clock_ns=time.monotonic_ns,
        block_size=plan.block_tokens,
        expand=plan.expand,
        salt_of=fleet.salt_by_tenant.__getitem__,
        log=fleet.truth.log_of(name, 0),
        birth=birth,
    )
    return SimWorker(engine, fleet.truth, slots=plan.slots, step_s=plan.step_s)


async def _keep(settings: Settings, fleet: Fleet, one: BridgedWorker, profile: Path) -> None:
    """Runs the bridge, and runs it again whenever it ends; cancelled, it stops it in order."""
    publisher = one.worker.publisher
    assert publisher is not None
    assert publisher.replay_endpoint is not None
    command: tuple[str, ...] = ("bridge", "--json", "--worker", one.name, "--model", MODEL)
    command += ("--endpoint", publisher.endpoint, "--replay", publisher.replay_endpoint)
    command += ("--profile", str(profile), "--domain", next(iter(fleet.salt_by_tenant)))
    command += ("--advertise", f"{ENDPOINT_SCHEME}{one.name}")
    while True:
        async with extra_process(settings, *command, log=one.name) as process:
            one.process = identify(process.pid)
            one.starts += 1
            try:
                await process.wait()
            except asyncio.CancelledError:
                await end(process, stop_signal=signal.SIGTERM, timeout_s=STOP_S)
                raise
            finally:
                one.process = None
        await asyncio.sleep(RESTART_S)


async def _end_all(keepers: list[asyncio.Task[None]], made: Bridged) -> None:
    for task in keepers:
        task.cancel()
    await asyncio.gather(*keepers, return_exceptions=True)
    for one in made.workers:
        if one.worker.publisher is not None:
            await one.worker.publisher.close()
