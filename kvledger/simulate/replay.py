"""Replays a trace through a fleet: ask the service, place the request, let the worker serve it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from kvledger.simulate.asker import Asker
from kvledger.simulate.fleet import Fleet
from kvledger.simulate.placement import Placement
from kvledger.simulate.trace import TraceRequest
from kvledger.simulate.visibility import VisibilityProbe

LONGEST_PAUSE_S = 2.0
LOOSE_EVERY = 5


@dataclass(frozen=True, slots=True)
class ReplayPace:
    """`bound_ms` of each lookup; `lanes` lookups at once; `rate` requests a second, None as fast as goes.
    Each is asked about once for each of `bases`, and routed by the last answer. With `loose_bound_ms` every
    fifth is asked about once more with that bound, only to be judged: a refusal needs a better cause there."""

    bound_ms: float = 1000.0
    lanes: int = 4
    rate: float | None = None
    bases: tuple[str, ...] = ("published",)
    loose_bound_ms: float | None = None


@dataclass(slots=True)
class ReplayCounts:
    """`answered`: requests whose lookup was answered at once, within the bound. `asked_again`: refused at
    first, which lowers the rate. `placed_blind`: no usable answer, so the least
    loaded worker got it. `too_long`: fits no pool."""

    requests: int = 0
    answered: int = 0
    asked_again: int = 0
    placed_blind: int = 0
    too_long: int = 0


class Replay:
    """One run over a trace. Requests start in the trace's order; their times are the replay's own."""

    def __init__(
        self,
        fleet: Fleet,
        asker: Asker,
        pace: ReplayPace,
        *,
        probe: VisibilityProbe | None = None,
        advanced: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.counts = ReplayCounts()
        self._fleet = fleet
        self._asker = asker
        self._pace = pace
        self._probe = probe
        self._advanced = advanced
        self._placement = Placement(len(fleet.workers))
        self._index = {(worker.name, worker.engine.rank): at for at, worker in enumerate(fleet.workers)}
        self._room = asyncio.Semaphore(2 * fleet.plan.slots * len(fleet.workers))

    async def run(self, requests: Iterable[TraceRequest]) -> None:
        """Until the last request has left its engine. Raises FleetError; cancel it to stop early."""
        source = self._paced(iter(requests))
        async with asyncio.TaskGroup() as group:
            for _ in range(self._pace.lanes):
                group.create_task(self._lane(source))
        await self._fleet.settle()

    def _paced(self, requests: Iterator[TraceRequest]) -> Iterator[tuple[float, TraceRequest]]:
        begun_s = asyncio.get_running_loop().time()
        for number, request in enumerate(requests):
            yield (begun_s + number / self._pace.rate if self._pace.rate else begun_s), request

    async def _lane(self, source: Iterator[tuple[float, TraceRequest]]) -> None:
        loop = asyncio.get_running_loop()
        for due_s, request in source:
            wait_s = due_s - loop.time()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            await self._room.acquire()
            await self._one(request)
            self._fleet.check()
            self._advanced(1)

    async def _one(self, request: TraceRequest) -> None:
        prompt = self._fleet.prompt(request)
        *before, basis = self._pace.bases
        for weaker in before:
            await self._asker.ask(prompt, bound_ms=self._pace.bound_ms, basis=weaker)
        answer = await self._asker.ask(prompt, bound_ms=self._pace.bound_ms, basis=basis)
        self.counts.answered += answer.status == 200
        if self._pace.loose_bound_ms is not None and self.counts.requests % LOOSE_EVERY == 0:
            await self._asker.ask(prompt, bound_ms=self._pace.loose_bound_ms, basis=basis, measured=False)
        if answer.status == 503:
            # As `router_client` does: once more, after the time that the service asks for.
            self.counts.asked_again += 1
            await asyncio.sleep(min(LONGEST_PAUSE_S, answer.document.get("retry_after_ms", 100) / 1000))
            answer = await self._asker.ask(prompt, bound_ms=self._pace.bound_ms, basis=basis)
        matched: dict[int, int] = {}
        for match in answer.document["matches"] if answer.status == 200 else ():
            at = self._index.get((match["worker"], match["dp_rank"]))
            if at is not None:
                matched[at] = match["matched_blocks"]
        chosen = self._placement.choose(len(prompt.keys), matched, request.arrival_s)
        self.counts.requests += 1
        self.counts.placed_blind += not matched
        job = self._fleet.submit(chosen, prompt)
        if self._probe is not None:
            self._probe.offer(self._fleet.workers[chosen], job)
        job.done.add_done_callback(lambda done: self._left(prompt.tenant, done))

    def _left(self, tenant: str, done: asyncio.Future[int | None]) -> None:
        self._room.release()
        if not done.cancelled() and done.result() is None:
            self.counts.too_long += 1
        else:
            self._asker.served(tenant)
