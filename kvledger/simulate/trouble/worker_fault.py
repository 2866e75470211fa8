"""The frame of every fault that hits one worker: announced, done, repaired as seen from outside, calmed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from kvledger.simulate.fault import Arena, Strike, UnrepairedError
from kvledger.simulate.prompt import Prompt
from kvledger.simulate.trouble.probe import Probe, Seen

REPAIR_WITHIN_S = 15.0
LEFT_OUT_WITHIN_S = 8.0

Act = Callable[[Arena, Probe], Awaitable[str]]
"""Does the trouble until it is over, and says in a few words what it was."""


@dataclass(slots=True)
class WorkerFault:
    """`act` on a worker rank by the arena's dice; repaired once each rank of that worker is credited again.

    `basis`: what its lookups ask for. `repair`: whether anything is to be repaired at all. Once over,
    everybody has `repair_within_s`.
    """

    name: str
    act: Act
    basis: str | None = None
    repair_within_s: float = REPAIR_WITHIN_S

    async def strike(self, arena: Arena) -> Strike:
        """See `Fault`."""
        fleet = arena.fleet
        truth = fleet.truth
        worker = arena.rng.choice([worker for worker in fleet.workers if not worker.dead])
        begun_ns = truth.now_ns()
        arena.journal.append(f"{self.name}: {worker.name}/{worker.engine.rank}")
        truth.disturb(worker.name, kind=self.name)
        try:
            detail = await self.act(arena, Probe(arena, worker, self.basis))
            over_ns = truth.now_ns()
            arena.journal.append(f"{self.name}: over, {detail}")
            probes = [Probe(arena, rank, self.basis) for rank in fleet.ranks(worker.name)]
            repaired = await asyncio.gather(
                *(probe.credited(self.name, within_s=self.repair_within_s) for probe in probes)
            )
        finally:
            truth.calm(worker.name)
        arena.journal.append(f"{self.name}: repaired")
        return Strike(self.name, worker.name, begun_ns, over_ns, max(repaired), detail)


async def must_be_left_out(fault: str, probe: Probe, *, uncertain: bool = False) -> str:
    """What cannot be known must show: the reason of its exclusion, or with `uncertain` that it is answered
    for, but not completely. Raises UnrepairedError if it doesn't show."""
    seen = await probe.left_out(within_s=LEFT_OUT_WITHIN_S, uncertain=uncertain)
    if seen is None:
        raise UnrepairedError(
            fault, probe.worker.name, LEFT_OUT_WITHIN_S, "it is answered for as if nothing had happened"
        )
    return "uncertain" if seen.uncertain else seen.why


async def reset_whole(fault: str, probe: Probe) -> None:
    """The operator's cure of a loss that nothing can fill: the idle engine's cache is reset, and told with its
    next step. Waits until answers about it are complete again; raises UnrepairedError."""
    worker = probe.worker
    await worker.rest()
    try:
        worker.engine.reset()
    finally:
        worker.wake()
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + REPAIR_WITHIN_S
    seen: Seen | None = None
    prompt: Prompt | None = None
    while loop.time() < deadline_s:
        if prompt is None or worker.engine.match(prompt) < len(prompt.keys):
            prompt = await probe.serve()
            continue
        seen = await probe.ask(prompt)
        if seen.matched == len(prompt.keys) and seen.complete:
            return
        await asyncio.sleep(0.1)
    raise UnrepairedError(fault, worker.name, REPAIR_WITHIN_S, f"not whole after a reset: {seen}")
