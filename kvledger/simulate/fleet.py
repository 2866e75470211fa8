"""N simulated workers in one process: real hooks, a real log, and the truth beside it."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from events.errors import KvledgerError
from events.hooks.engine_config import EngineConfig
from events.hooks.engine_stream import EngineStream
from events.hooks.hook import HookIdentity
from events.hooks.host import HookHost
from events.ids import Capability, GroupKind, Role, Tier
from events.kafka.connection import KafkaConnection
from events.kafka.control import ControlWriter
from events.keyring import KeyRing
from events.model.part import Group
from events.model.profile import ContentProfile
from events.signing import Signer
from kvledger.control import connection, wall_ms
from kvledger.keyfile import load_signers
from kvledger.settings import Settings
from kvledger.simulate.engine import SimEngine
from kvledger.simulate.predecessor import ENDPOINT_SCHEME, attest_ended, exit_of, only_simulation
from kvledger.simulate.prompt import DEFAULT_BLOCK_SIZE, Prompt, PromptPlanner
from kvledger.simulate.tenant import ensure_tenants, salts
from kvledger.simulate.trace import TraceRequest
from kvledger.simulate.truth import Truth
from kvledger.simulate.worker import Job, SimWorker

MODEL = "sim-8b"
BLOCK_BYTES = 2 << 20
OPEN_TIMEOUT_S = 30.0
LAG_EVERY_S = 0.05
LAG_EXCUSED_S = 0.15
"""A timer that comes later than this shows that the host is overloaded, and not what runs on it at fault."""


class FleetError(KvledgerError):
    """The fleet can't go on; the message says which worker and why. The log is as the hooks left it."""


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """What a fleet is made of. `step_s` is how long an engine step takes, `slots` how many requests share
    one; `capacity_blocks` is one worker's pool."""

    workers: int = 4
    capacity_blocks: int = 3000
    slots: int = 8
    step_s: float = 0.005
    block_tokens: int = DEFAULT_BLOCK_SIZE
    expand: bool = False
    names: str = "sim"

    def content(self) -> ContentProfile:
        """The one profile that all workers serve, whole, so that their blocks are verified."""
        return ContentProfile(
            model=MODEL,
            revision="1",
            tokenizer_revision="1",
            attention="full",
            position_encoding="rope",
            kv_dtype="bfloat16",
            block_tokens=self.block_tokens,
        )

    def engine_config(self) -> EngineConfig:
        """What each worker's hook is told beforehand."""
        return EngineConfig(
            engine="kvledger-simulator",
            engine_version="1",
            hash_algorithm="simulated",
            removal=Capability.EVICT_BLOCKS,
            admission_known=True,
            content=self.content(),
            block_bytes=(BLOCK_BYTES,),
            default_domain=None,
            groups=(Group(index=0, kind=GroupKind.FULL, block_tokens=self.block_tokens),),
            capacity_blocks={Tier.GPU: self.capacity_blocks},
        )


@dataclass(slots=True)
class Fleet:
    """Running workers; made by `running_fleet`. Everything happens on one event loop.

    A fault is announced to `truth` before it is done, so that the checker knows which refusals it excuses.
    """

    plan: FleetPlan
    truth: Truth
    host: HookHost
    ring: KeyRing
    salt_by_tenant: Mapping[str, str]
    attester: ControlWriter
    workers: list[SimWorker] = field(default_factory=list)
    planner: PromptPlanner = field(init=False)
    slow_s: float = 0.0
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _birth: str = field(default_factory=lambda: secrets.token_hex(4) + "-")

    def __post_init__(self) -> None:
        self.planner = PromptPlanner(block_size=self.plan.block_tokens, expand=self.plan.expand)

    def prompt(self, request: TraceRequest) -> Prompt:
        """The request as these engines see it; raises KeyError for a tenant that the fleet doesn't know."""
        return self.planner.plan(request, self.salt_by_tenant[request.tenant])

    def submit(self, index: int, prompt: Prompt) -> Job:
        """Gives worker `index` a request."""
        return self.workers[index].submit(prompt)

    def worker(self, name: str) -> SimWorker:
        """Raises KeyError."""
        for worker in self.workers:
            if worker.name == name:
                return worker
        raise KeyError(name)

    def check(self) -> None:
        """Raises FleetError if a hook or an engine has failed: a fault of this program."""
        if self.host.failed is not None:
            raise FleetError(f"a hook failed: {self.host.failed!r}") from self.host.failed
        for task in self._tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                raise FleetError(f"an engine failed: {task.exception()!r}") from task.exception()

    async def restart(self, worker: SimWorker, *, timeout_s: float = OPEN_TIMEOUT_S) -> str:
        """The worker's engine dies and starts again, empty; returns its new life once that is registered.

        Whoever ran the old process attests its end, as a supervisor does.
        """
        hook = worker.hook
        assert hook is not None
        self.truth.disturb(worker.name)
        ended = worker.engine.life
        life = worker.crash()
        hook.restarted(life, ended=True)
        await self.attester.append(exit_of(worker.name, ended, "the process that ran it has restarted it"))
        opened = await hook.opened(timeout_s)
        self.truth.calm(worker.name)
        if not opened:
            raise FleetError(f"{worker.name} did not come back within {timeout_s:.0f} s")
        return life

    def lose_records(self, worker: SimWorker, count: int, *, repair_after_s: float) -> None:
        """The worker's next `count` records never reach the log; its snapshot repairs that, not before the
        given time. Call `calm` when it has."""
        assert worker.hook is not None
        self.truth.disturb(worker.name)
        worker.hook.drop_next(count, repair_after_s=repair_after_s)

    def hold(self) -> None:
        """Every engine is stuck in a step until `release`: hooks pulse on and can't confirm anything."""
        self.truth.disturb()
        for worker in self.workers:
            worker.hold()

    def release(self) -> None:
        """The steps end."""
        for worker in self.workers:
            worker.release()
        self.truth.calm()

    def calm(self, worker: SimWorker) -> None:
        """The worker's newest fault is over."""
        self.truth.calm(worker.name)

    async def kill(self, worker: SimWorker) -> None:
        """The worker and its hook fall silent in the middle of everything: no word in the log."""
        assert worker.hook is not None
        self.truth.disturb(worker.name)
        worker.dead = True
        await self.host.remove(worker.hook, silently=True)
        task = self._tasks[self.workers.index(worker)]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def settle(self, timeout_s: float = 60.0) -> None:
        """Waits until all work is done, told, and acknowledged by the log. Raises FleetError."""
        try:
            async with asyncio.timeout(timeout_s):
                while any(w.busy or w.engine.dirty for w in self.workers if not w.dead):
                    self.check()
                    await asyncio.sleep(self.plan.step_s)
                while not await self.host.emitter.flush(1.0):
                    self.check()
        except TimeoutError as error:
            raise FleetError("the fleet's work did not end in time") from error

    async def _watch_host(self) -> None:
        """Tells the truth when this process didn't get to run."""
        while True:
            before_ns = self.truth.now_ns()
            await asyncio.sleep(LAG_EVERY_S)
            after_ns = self.truth.now_ns()
            if after_ns - before_ns > (LAG_EVERY_S + LAG_EXCUSED_S) * 1e9:
                self.slow_s += (after_ns - before_ns) / 1e9
                self.truth.was_slow(before_ns, after_ns)

    async def _add(self, index: int) -> None:
        plan = self.plan
        name = f"{plan.names}-{index}"
        engine = SimEngine(
            name,
            capacity_blocks=plan.capacity_blocks,
            clock_ns=time.monotonic_ns,
            block_size=plan.block_tokens,
            expand=plan.expand,
            salt_of=self.salt_by_tenant.__getitem__,
            log=self.truth.log_of(name),
            birth=self._birth,
        )
        worker = SimWorker(engine, self.truth, slots=plan.slots, step_s=plan.step_s)
        stream = EngineStream(name, 0, self.ring, plan.engine_config())
        worker.hook = await self.host.add(
            HookIdentity(name, endpoint=f"{ENDPOINT_SCHEME}{name}", model=MODEL), engine.life, worker, stream
        )
        self.workers.append(worker)
        self._tasks.append(asyncio.get_running_loop().create_task(worker.run()))

    async def _open(self, count: int) -> None:
        for index in range(count):
            await self._add(index)
        self._tasks.append(asyncio.get_running_loop().create_task(self._watch_host()))
        for worker in self.workers:
            assert worker.hook is not None
            if not await worker.hook.opened(OPEN_TIMEOUT_S):
                raise FleetError(f"{worker.name} could not be registered")
            self.truth.enlist(worker.name)

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for worker in self.workers:
            if worker.hook is not None and not worker.dead:
                await self.host.remove(worker.hook, engine_ended=True)


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
    if plan.workers < 1:
        raise ValueError("a fleet has at least one worker")
    async with HookHost(at, ring, signers[Role.ENROLMENT]) as host:
        attester = ControlWriter(
            at,
            log=host.registry.log,
            signers={Role.SUPERVISOR: signers[Role.SUPERVISOR]},
            wall_ms=wall_ms,
        )
        await attester.start()
        fleet = Fleet(plan, Truth(time.monotonic_ns), host, ring, salts(ring, tenants), attester)
        try:
            await fleet._open(plan.workers)
            yield fleet
        finally:
            await fleet._end()
            await attester.stop()
