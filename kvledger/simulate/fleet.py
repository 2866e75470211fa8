"""N simulated workers in one process: real hooks or bridges, a real log, and the truth beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from events.errors import KvledgerError
from events.hooks.host import HookHost
from events.kafka.connection import KafkaConnection
from events.kafka.control import ControlWriter
from events.keyring import KeyRing
from events.signing import Signer
from kvledger.simulate.bridge_process import BridgeProcess
from kvledger.simulate.fleet_plan import Attachment, FleetPlan
from kvledger.simulate.host_watch import HostWatch
from kvledger.simulate.job import Job
from kvledger.simulate.predecessor import exit_of
from kvledger.simulate.prompt import Prompt, PromptPlanner
from kvledger.simulate.trace import TraceRequest
from kvledger.simulate.truth import Truth
from kvledger.simulate.worker import SimWorker

OPEN_TIMEOUT_S = 30.0


class FleetError(KvledgerError):
    """The fleet can't go on; the message says which worker and why. The log is as the hooks left it."""


@dataclass(slots=True)
class Fleet:
    """Running workers; made by `running_fleet`. Everything happens on one event loop.

    `workers` has an entry for every rank of every worker; `processes` the bridges by worker name, if the plan
    attaches by bridge. A fault is announced to `truth` before it is done, so that the checker knows which
    refusals it excuses. `submitted`, if it is a list, gets every prompt that `submit` is given.
    """

    plan: FleetPlan
    truth: Truth
    host: HookHost
    ring: KeyRing
    salt_by_tenant: Mapping[str, str]
    attester: ControlWriter
    at: KafkaConnection
    enrolment: Signer
    folder: Path
    workers: list[SimWorker] = field(default_factory=list)
    processes: dict[str, BridgeProcess] = field(default_factory=dict)
    planner: PromptPlanner = field(init=False)
    watch: HostWatch = field(init=False)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    submitted: list[Prompt] | None = None

    def __post_init__(self) -> None:
        self.planner = PromptPlanner(block_size=self.plan.block_tokens, expand=self.plan.expand)
        self.watch = HostWatch(self.truth)

    def prompt(self, request: TraceRequest) -> Prompt:
        """The request as these engines see it; raises KeyError for a tenant that the fleet doesn't know."""
        return self.planner.plan(request, self.salt_by_tenant[request.tenant])

    def submit(self, index: int, prompt: Prompt) -> Job:
        """Gives the rank at that place of `workers` a request."""
        if self.submitted is not None:
            self.submitted.append(prompt)
        return self.workers[index].submit(prompt)

    def worker(self, name: str, rank: int = 0) -> SimWorker:
        """Raises KeyError."""
        for worker in self.workers:
            if worker.name == name and worker.engine.rank == rank:
                return worker
        raise KeyError(name)

    def ranks(self, name: str) -> list[SimWorker]:
        """All ranks of that worker."""
        return [worker for worker in self.workers if worker.name == name]

    def check(self) -> None:
        """Raises FleetError if a hook, a bridge or an engine has failed: a fault of this program."""
        if self.host.failed is not None:
            raise FleetError(f"a hook failed: {self.host.failed!r}") from self.host.failed
        for name, process in self.processes.items():
            error = process.check()
            if error is not None:
                raise FleetError(f"the bridge of {name} failed: {error!r}") from error
        for task in self.tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                raise FleetError(f"an engine failed: {task.exception()!r}") from task.exception()

    async def restart(self, worker: SimWorker, *, timeout_s: float = OPEN_TIMEOUT_S) -> str:
        """A directly attached worker's engine dies and starts again, empty; returns its new life once that
        is registered.

        Whoever ran the old process attests its end, as a supervisor does: from then on nobody is owed an
        answer about this worker until the new one is registered.
        """
        hook, rank = worker.hook, worker.engine.rank
        assert hook is not None
        self.truth.disturb(worker.name)
        self.truth.retire(worker.name, rank)
        ended = worker.engine.life
        life = worker.crash()
        hook.restarted(life, ended=True)
        await self.attester.append(exit_of(worker.name, ended, "the process that ran it has restarted it"))
        opened = await hook.opened(timeout_s)
        self.truth.enlist(worker.name, rank, basis=self.plan.basis)
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
        """The worker and its hook fall silent in the middle of everything: no word in the log. With a bridge
        that is all its ranks."""
        self.truth.disturb(worker.name)
        if self.plan.attachment is Attachment.BRIDGE:
            await self.kill_bridge(worker.name)
        else:
            assert worker.hook is not None
            await self.host.remove(worker.hook, silently=True)
        for rank in self.ranks(worker.name):
            rank.dead = True
            task = self.tasks[self.workers.index(rank)]
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if rank.publisher is not None:
                await rank.publisher.close()

    async def kill_bridge(self, name: str) -> None:
        """The worker's bridge dies without a word; its engines go on. Announce it first. Idempotent."""
        process = self.processes.pop(name, None)
        if process is not None:
            await process.kill()

    async def attach_bridge(self, name: str, *, timeout_s: float = OPEN_TIMEOUT_S) -> BridgeProcess:
        """A new bridge process attaches to the worker's engines, on the life files of the one before.

        Raises FleetError if a rank isn't registered in time.
        """
        process = self.make_bridge(self.folder)
        self.processes[name] = process
        await process.start(self.ranks(name))
        for hook in process.hooks:
            if not await hook.opened(timeout_s):
                raise FleetError(f"{name} could not be registered")
        return process

    def make_bridge(self, folder: Path) -> BridgeProcess:
        """A bridge process that isn't started, with its life files in that folder."""
        return BridgeProcess(
            self.at, self.ring, self.enrolment, self.plan.engine_config(), folder, self.truth
        )

    async def settle(self, timeout_s: float = 60.0) -> None:
        """Waits until all work is done, told, and acknowledged by the log. Raises FleetError."""
        try:
            async with asyncio.timeout(timeout_s):
                while any(w.busy or (w.publisher is None and w.engine.dirty) for w in self._living()):
                    self.check()
                    await asyncio.sleep(self.plan.step_s)
                for host in (self.host, *(process.host for process in self.processes.values())):
                    while not await host.emitter.flush(1.0):
                        self.check()
        except TimeoutError as error:
            raise FleetError("the fleet's work did not end in time") from error

    def _living(self) -> list[SimWorker]:
        return [worker for worker in self.workers if not worker.dead]
