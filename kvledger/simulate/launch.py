"""Starts a fleet, and ends it: engines, publishers, hooks or bridges."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import zmq

from events.hooks.engine_stream import EngineStream
from events.hooks.hook import HookIdentity
from events.hooks.host import HookHost
from events.ids import Role
from events.kafka.connection import KafkaConnection
from events.kafka.control import ControlWriter
from events.keyring import KeyRing
from events.signing import Signer
from kvledger.control import connection, wall_ms
from kvledger.keyfile import load_signers
from kvledger.settings import Settings
from kvledger.simulate.engine import SimEngine
from kvledger.simulate.fleet import OPEN_TIMEOUT_S, Fleet, FleetError
from kvledger.simulate.fleet_plan import MODEL, Attachment, FleetPlan
from kvledger.simulate.offload import CpuTier
from kvledger.simulate.predecessor import ENDPOINT_SCHEME, attest_ended, only_simulation
from kvledger.simulate.tenant import ensure_tenants, salts
from kvledger.simulate.truth import Truth
from kvledger.simulate.wire.publisher import Publisher
from kvledger.simulate.worker import SimWorker


class _Launch:
    """What only the beginning and the end of a fleet need."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._birth = f"{secrets.token_hex(4)}-"
        self._sockets: zmq.Context[zmq.Socket[bytes]] | None = None

    async def _add(self, name: str, rank: int) -> None:
        fleet, plan = self._fleet, self._fleet.plan
        engine = SimEngine(
            name,
            rank=rank,
            capacity_blocks=plan.capacity_blocks,
            clock_ns=time.monotonic_ns,
            block_size=plan.block_tokens,
            expand=plan.expand,
            salt_of=fleet.salt_by_tenant.__getitem__,
            log=fleet.truth.log_of(name, rank),
            birth=self._birth,
            cpu=CpuTier(plan.cpu_blocks, fleet.truth.log_of(name, rank, "cpu")) if plan.cpu_blocks else None,
        )
        worker = SimWorker(engine, fleet.truth, slots=plan.slots, step_s=plan.step_s)
        if plan.attachment is Attachment.BRIDGE:
            assert self._sockets is not None
            worker.publisher = Publisher(
                engine,
                self._sockets,
                ring_steps=plan.ring_steps,
                replay=plan.replay,
                rng=random.Random(f"{name}/{rank}"),
            )
            await worker.publisher.open()
        else:
            stream = EngineStream(name, rank, fleet.ring, plan.engine_config())
            identity = HookIdentity(name, rank, f"{ENDPOINT_SCHEME}{name}", MODEL)
            worker.hook = await fleet.host.add(identity, engine.life, worker, stream)
        fleet.workers.append(worker)
        fleet.tasks.append(asyncio.get_running_loop().create_task(worker.run()))

    async def begin(self) -> None:
        """Raises FleetError, WireError."""
        fleet, plan = self._fleet, self._fleet.plan
        names = [f"{plan.names}-{index}" for index in range(plan.workers)]
        if plan.attachment is Attachment.BRIDGE:
            self._sockets = zmq.Context()
        for name in names:
            for rank in range(plan.ranks):
                await self._add(name, rank)
        fleet.tasks.append(asyncio.get_running_loop().create_task(fleet.watch.run()))
        if plan.attachment is Attachment.BRIDGE:
            await asyncio.gather(*(fleet.attach_bridge(name) for name in names))
        for worker in fleet.workers:
            assert worker.hook is not None
            if not await worker.hook.opened(OPEN_TIMEOUT_S):
                raise FleetError(f"{worker.name} could not be registered")
            fleet.truth.enlist(worker.name, worker.engine.rank, basis=plan.basis)

    async def end(self) -> None:
        """Every stream is closed, every socket too."""
        fleet = self._fleet
        for task in fleet.tasks:
            task.cancel()
        await asyncio.gather(*fleet.tasks, return_exceptions=True)
        for process in fleet.processes.values():
            await process.stop(engine_ended=True)
        for worker in fleet.workers:
            if worker.publisher is not None:
                await worker.publisher.close()
            elif worker.hook is not None and not worker.dead:
                await fleet.host.remove(worker.hook, engine_ended=True)
        if self._sockets is not None:
            self._sockets.term()


@asynccontextmanager
async def running_fleet(settings: Settings, plan: FleetPlan, tenants: Iterable[str]) -> AsyncIterator[Fleet]:
    """A fleet on the log that the settings name, its tenants' domains made; closes all streams at the end.

    Raises LogUnavailableError, NoGenesisError, KeyFileError, FleetError, and CommandError while another
    process runs one on the same home.
    """
    names = tuple(dict.fromkeys(tenants))
    with only_simulation(settings.home):
        ring = await ensure_tenants(settings, names)
        await attest_ended(settings)
        signers = load_signers(settings.home, Role.ENROLMENT, Role.SUPERVISOR)
        async with opened_fleet(connection(settings), ring, signers, plan, names) as fleet:
            yield fleet


@asynccontextmanager
async def opened_fleet(
    at: KafkaConnection,
    ring: KeyRing,
    signers: Mapping[Role, Signer],
    plan: FleetPlan,
    tenants: Iterable[str],
) -> AsyncIterator[Fleet]:
    """The same on given keys of the roles enrolment and supervisor, with domains that the log has."""
    if plan.workers < 1 or plan.ranks < 1:
        raise ValueError("a fleet has at least one worker, and a worker one rank")
    enrolment = signers[Role.ENROLMENT]
    with TemporaryDirectory(prefix="kvledger-simulate-") as folder:
        async with HookHost(at, ring, enrolment) as host:
            attester = ControlWriter(
                at,
                host.registry,
                signers={Role.SUPERVISOR: signers[Role.SUPERVISOR]},
                wall_ms=wall_ms,
            )
            await attester.start()
            fleet = Fleet(
                plan,
                Truth(time.monotonic_ns),
                host,
                ring,
                salts(ring, tenants),
                attester,
                at,
                enrolment,
                Path(folder),
            )
            launch = _Launch(fleet)
            try:
                await launch.begin()
                yield fleet
            finally:
                await launch.end()
                await attester.stop()
