"""How long until the service answers for what an engine has just said: measured by asking until it does."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from kvledger.simulate.asker import Asker
from kvledger.simulate.fleet import Fleet
from kvledger.simulate.job import Job
from kvledger.simulate.worker import SimWorker


@dataclass(slots=True)
class Visibility:
    """Times from publication to the end of the first answer that credits the block, so never too short.
    `missed`: the block was still there after `timeout_s` and wasn't credited."""

    delay_ms: list[float] = field(default_factory=list)
    missed: int = 0


class VisibilityProbe:
    """Watches one new block at a time; while it does, others go unwatched."""

    def __init__(
        self,
        fleet: Fleet,
        asker: Asker,
        *,
        every_s: float = 0.1,
        poll_s: float = 0.002,
        timeout_s: float = 5.0,
    ) -> None:
        self.seen = Visibility()
        self._fleet = fleet
        self._asker = asker
        self._every_ns = int(every_s * 1e9)
        self._poll_s = poll_s
        self._timeout_ns = int(timeout_s * 1e9)
        self._next_ns = 0
        self._task: asyncio.Task[None] | None = None

    def offer(self, worker: SimWorker, job: Job) -> None:
        """Watches the request's last block if it is time for another one and the block will be new."""
        now_ns = self._fleet.truth.now_ns()
        busy = self._task is not None and not self._task.done()
        if busy or now_ns < self._next_ns or not job.prompt.keys:
            return
        self._next_ns = now_ns + self._every_ns
        job.published = asyncio.get_running_loop().create_future()
        self._task = asyncio.get_running_loop().create_task(self._watch(worker, job, job.published))

    async def stop(self) -> None:
        """Gives up what is being watched. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self, worker: SimWorker, job: Job, published: asyncio.Future[int | None]) -> None:
        published_ns = await published
        if published_ns is None:
            return
        prompt, life = job.prompt, worker.engine.life
        while True:
            answer = await self._asker.ask(prompt, bound_ms=None, candidates=(worker.name,), measured=False)
            if answer.matched.get(worker.name, 0) >= len(prompt.keys):
                self.seen.delay_ms.append((answer.end_ns - published_ns) / 1e6)
                return
            if worker.engine.match(prompt) < len(prompt.keys) or worker.engine.life != life:
                return
            if answer.end_ns - published_ns > self._timeout_ns:
                self.seen.missed += 1
                return
            await asyncio.sleep(self._poll_s)
