"""One simulated worker on the event loop: requests in, steps of an engine, batches to a real hook.

A step mutates the pool when it begins and tells when it ends, as a real engine does; the hook may be
answered only between two steps. Requests share steps: each running one is prefilled in its first step and
decodes at most one block in each later one.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from events.hooks.engine_event import EngineBatch, EngineHash
from events.hooks.engine_port import Confirmation, Confirmed, RemovalResult, ResetResult, Unanswered
from events.hooks.hook import Hook
from events.ids import Basis, Capability
from events.kafka.deadline import within
from events.model.signal import Load
from kvledger.simulate.engine import PromptTooLongError, SimEngine
from kvledger.simulate.job import Job, resolve
from kvledger.simulate.position_book import PositionBook
from kvledger.simulate.prompt import Prompt
from kvledger.simulate.truth import Truth
from kvledger.simulate.wire.publisher import Publisher

NO_RESET_CURE = "remove single blocks: this engine can"


@dataclass(slots=True, eq=False)
class _Removal:
    """Blocks to be taken out at the end of the step that runs."""

    hashes: tuple[EngineHash, ...]
    done: asyncio.Future[None]


class SimWorker:
    """An engine's loop, and the `EnginePort` that its hook sees. Give it `hook`, or `publisher`, before `run`.

    With a publisher the engine speaks over its sockets only; `hook` is then whichever hook a bridge has
    attached to it, if any, and this object is not its port.
    """

    capability = Capability.EVICT_BLOCKS
    admission_known = True

    def __init__(self, engine: SimEngine, truth: Truth, *, slots: int, step_s: float) -> None:
        self.engine = engine
        self.hook: Hook | None = None
        self.publisher: Publisher | None = None
        self.dead = False
        self.steps = 0
        self.events = 0
        self.served = 0
        self.hit_tokens = 0
        self.asked_tokens = 0
        self._truth = truth
        self._slots = slots
        self._step_s = step_s
        self._queue: deque[Job] = deque()
        self._running: list[Job] = []
        self._told: list[Job] = []
        self._work = asyncio.Event()
        self._free = asyncio.Event()
        self._free.set()
        self._up = asyncio.Event()
        self._up.set()
        self._admits = True
        self._stepped = asyncio.Event()
        self._in_step = False
        self._waiting: list[asyncio.Future[Confirmation]] = []
        self._removals: list[_Removal] = []
        self.positions = PositionBook()
        self._confirmed_ns = -1

    @property
    def name(self) -> str:
        """The worker's name in the log."""
        return self.engine.worker

    @property
    def busy(self) -> int:
        """Requests waiting or running."""
        return len(self._queue) + len(self._running)

    def submit(self, prompt: Prompt) -> Job:
        """Queues a request; its `done` resolves when it has left the engine."""
        job = Job(prompt, asyncio.get_running_loop().create_future())
        self._queue.append(job)
        self._work.set()
        return job

    async def run(self) -> None:
        """Steps while there is work, until cancelled."""
        while True:
            await self._work.wait()
            await self._up.wait()
            self._begin_step()
            self._in_step = True
            await asyncio.sleep(self._step_s)
            await self._free.wait()
            self._end_step()

    def hold(self) -> None:
        """From now on a step doesn't end, as on an engine that is stuck: nothing is told, nothing confirmed."""
        self._free.clear()

    def release(self) -> None:
        """The step that was held ends. Idempotent."""
        self._free.set()
        if self._waiting:
            self._work.set()

    def crash(self) -> str:
        """The process dies and another begins; what ran is started again by whoever sent it. The new life."""
        for job in reversed(self._running):
            job.running = None
            self._queue.appendleft(job)
        self._running = []
        life = self.engine.restart()
        self._answer(Unanswered())
        return life

    async def restart(self, down_s: float = 0.0) -> str:
        """`crash`, with the publisher's sockets closed for `down_s`, then bound again; the new life.

        What the engine is given meanwhile waits. Without a publisher only the waiting is left of that.
        """
        self._up.clear()
        life = self.crash()
        try:
            if self.publisher is not None:
                await self.publisher.close()
            await asyncio.sleep(down_s)
            if self.publisher is not None:
                await self.publisher.open()
        finally:
            self._up.set()
        return life

    async def rest(self) -> None:
        """What runs ends and nothing new begins until `wake`: returns when the engine is idle, without steps."""
        self._admits = False
        while self._running or self.engine.dirty:
            self._work.set()
            await self._next_step()
        self._up.clear()
        while self._in_step:
            await self._next_step()

    async def _next_step(self) -> None:
        self._stepped.clear()
        await self._stepped.wait()

    def wake(self) -> None:
        """The engine takes requests again, and with its next step tells what is untold. Idempotent."""
        self._admits = True
        self._up.set()

    def first_missing_ns(self, epoch: str, next_seq: int) -> int | None:
        """When the first mutation was made that a reader at this position doesn't know; None: it knows all."""
        return self.positions.first_missing_ns(epoch, next_seq)

    # --- EnginePort -------------------------------------------------------------------------------

    async def confirm(self, timeout_s: float) -> Confirmation:
        """Between two steps, with nothing untold: at once if so, else as of the end of the step."""
        asked_ns = self._truth.now_ns()
        if self.dead:
            return Unanswered()
        if not self._in_step and not self.engine.dirty and self._free.is_set():
            return self._confirmed(asked_ns)
        answer: asyncio.Future[Confirmation] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self._work.set()
        try:
            found = await within(answer, timeout_s)
        except TimeoutError:
            return Unanswered()
        # The hook echoes what it had seen when it asked, so no more than that is vouched for.
        return self._confirmed(asked_ns) if isinstance(found, Confirmed) else found

    async def remove(self, hashes: Sequence[EngineHash], timeout_s: float, *, request: int) -> RemovalResult:
        """Takes the blocks out between two steps; the engine tells it with the next one."""
        del request
        if self.dead:
            return RemovalResult(refused="engine_error", cure="wait until the engine answers")
        if self._in_step:
            order = _Removal(tuple(hashes), asyncio.get_running_loop().create_future())
            self._removals.append(order)
            try:
                await within(order.done, timeout_s)
            except TimeoutError:
                return RemovalResult(refused="engine_error", cure="wait until the engine's step has ended")
        else:
            self._take_out(hashes)
        return RemovalResult(removed=tuple(hashes))

    async def reset(self, timeout_s: float) -> ResetResult:
        """Not offered: single blocks can be removed."""
        del timeout_s
        return ResetResult(refused="no_delete_path", cure=NO_RESET_CURE)

    def oldest_running(self) -> int | None:
        """The oldest admission among what runs."""
        return min((job.admitted_after for job in self._running), default=None)

    def load(self) -> Load | None:
        """Asked for each pulse, so this is also when the truth learns what the pulse vouches for."""
        if self._confirmed_ns >= 0:
            self._truth.vouch(self.name, self.engine.rank, self._confirmed_ns)
        used = 1 - self.engine.free_blocks / self.engine.capacity_blocks
        return Load(running=len(self._running), waiting=len(self._queue), kv_used=min(1.0, max(0.0, used)))

    # --- a step -----------------------------------------------------------------------------------

    def _begin_step(self) -> None:
        engine = self.engine
        kept: list[Job] = []
        for job in self._running:
            assert job.running is not None
            if engine.decode(job.running):
                kept.append(job)
            else:
                engine.finish(job.running)
                self._finished(job)
        self._running = kept
        installed = -1 if self.publisher is not None else self._hook.installed
        while self._queue and self._admits and len(self._running) < self._slots:
            job = self._queue[0]
            try:
                job.running = engine.admit(job.prompt)
            except PromptTooLongError:
                self._queue.popleft()
                resolve(job.done, None)
                resolve(job.published, None)
                continue
            if job.running is None:
                break
            self._queue.popleft()
            job.admitted_after = installed
            self._running.append(job)
            if job.published is not None:
                self._told.append(job)

    def _end_step(self) -> None:
        self._in_step = False
        self._stepped.set()
        self.steps += 1
        self.publish()
        told, self._told = self._told, []
        for job in told:
            new = job.running is not None and job.running.hit_blocks < len(job.prompt.keys)
            resolve(job.published, self._truth.now_ns() if new else None)
        if not self._running and not self._queue:
            self._work.clear()
        if self._waiting:
            self._answer(Confirmed(Basis.ENGINE))
        removals, self._removals = self._removals, []
        for order in removals:
            if not order.done.done():
                self._take_out(order.hashes)
                order.done.set_result(None)

    def _take_out(self, hashes: Sequence[EngineHash]) -> None:
        self.engine.remove(hashes)
        if self.engine.dirty:
            self._work.set()

    def publish(self) -> None:
        """Puts what is untold on the wire, or tells the hook."""
        step = self.engine.take_step(told=self.publisher is None)
        if step is None:
            return
        self.events += len(step.events)
        if self.publisher is not None:
            self.publisher.publish(step)
            return
        oldest = min((job.admitted_after for job in self._running), default=self._hook.installed)
        hook = self._hook
        stream, seq = hook.stream, hook.next_seq
        hook.feed(
            EngineBatch(
                step.engine_seq,
                self.engine.rank,
                None,
                step.events,
                hashlib.sha256(b"%s/%d" % (step.life.encode(), step.engine_seq)).digest(),
            ),
            admitted_after=oldest,
        )
        if stream is not None and hook.stream == stream and hook.next_seq > seq:
            self.positions.note(stream.epoch, seq, step.made_ns)

    def _confirmed(self, asked_ns: int) -> Confirmed:
        self._confirmed_ns = max(self._confirmed_ns, asked_ns)
        return Confirmed(Basis.ENGINE)

    def _answer(self, answer: Confirmation) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(answer)

    def _finished(self, job: Job) -> None:
        assert job.running is not None
        self.served += 1
        self.hit_tokens += job.running.hit_tokens
        self.asked_tokens += job.prompt.tokens
        resolve(job.done, job.running.hit_tokens)

    @property
    def _hook(self) -> Hook:
        assert self.hook is not None, "a worker needs its hook before it runs"
        return self.hook
