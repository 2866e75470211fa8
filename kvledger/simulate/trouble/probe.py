"""Looks from outside whether a worker is answered for again: by lookups, and nothing else."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from urllib.parse import urlencode

from kvledger.simulate.fault import Arena, UnrepairedError
from kvledger.simulate.fleet_plan import MODEL
from kvledger.simulate.prompt import Prompt
from kvledger.simulate.rest import RestError
from kvledger.simulate.trace import TraceRequest
from kvledger.simulate.worker import SimWorker
from router_client.wire import BINARY_TYPE, binary_query

BOUND_MS = 500.0
"""What must show as left out shows at this bound."""
REPAIRED_BOUND_MS = 2000.0
"""Whether something is whole again is asked with this one, so that a slow host isn't taken for a hole."""
ASK_EVERY_S = 0.05
FIRST_CONTENT = 1 << 24
"""Of probes: above what any workload uses."""

_content = count(FIRST_CONTENT)
_turn = count()


@dataclass(frozen=True, slots=True)
class Seen:
    """What one lookup said of one worker rank. `matched` None: it is excluded, or nothing was answered. `why`
    says why in a word. `uncertain`: every rank asked about was within the bound, and still the answer calls
    itself incomplete. Stamps are of the truth's clock."""

    matched: int | None
    why: str
    complete: bool
    uncertain: bool
    staleness_ms: float | None
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class Probe:
    """Asks about one worker rank with `candidates` and the given basis."""

    arena: Arena
    worker: SimWorker
    basis: str | None = None
    asked: int = field(default=0, init=False)

    async def ask(self, prompt: Prompt, *, bound_ms: float = REPAIRED_BOUND_MS) -> Seen:
        """One lookup."""
        now_ns = self.arena.fleet.truth.now_ns
        question: dict[str, Any] = {
            "profile": MODEL,
            "domain": prompt.tenant,
            "max_staleness_ms": bound_ms,
            "candidates": [self.worker.name],
        }
        if self.basis is not None:
            question["basis"] = self.basis
        target = f"/v1/lookup?{urlencode(binary_query(question))}"
        self.asked += 1
        start_ns = now_ns()
        try:
            reply = await self.arena.rest.request(
                "POST", target, body=prompt.token_bytes(), content_type=BINARY_TYPE
            )
            document = reply.json()
        except RestError as error:
            return Seen(None, str(error), False, False, None, start_ns, now_ns())
        end_ns = now_ns()
        if reply.status != 200:
            lagging = [entry for entry in document.get("lagging", ()) if self._mine(entry)]
            why = lagging[0].get("reason", "") if lagging else ""
            return Seen(None, why or f"status {reply.status}", False, False, None, start_ns, end_ns)
        complete, coverage = document["complete"], document["coverage"]
        uncertain = not complete and coverage["included"] == coverage["eligible"]
        for match in document["matches"]:
            if self._mine(match):
                return Seen(
                    match["matched_blocks"],
                    "",
                    complete,
                    uncertain,
                    match["staleness_ms"],
                    start_ns,
                    end_ns,
                )
        for entry in document["excluded"]:
            if self._mine(entry):
                return Seen(None, entry["reason"], complete, uncertain, None, start_ns, end_ns)
        return Seen(0, "no match", complete, uncertain, document["staleness_ms"], start_ns, end_ns)

    async def credited(self, fault: str, *, within_s: float) -> int:
        """Waits until a prompt that the engine computes anew is credited whole; when that was (ns).

        Raises UnrepairedError.
        """
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        seen: Seen | None = None
        prompt = None
        while loop.time() - begun_s < within_s:
            self.arena.fleet.check()
            if prompt is None or self.worker.engine.match(prompt) < len(prompt.keys):
                prompt = await self.serve(within_s=within_s - (loop.time() - begun_s))
                continue
            seen = await self.ask(prompt)
            if seen.matched == len(prompt.keys):
                return seen.end_ns
            await asyncio.sleep(ASK_EVERY_S)
        last = "the engine served nothing" if seen is None else f"last answer: {seen.matched} {seen.why}"
        raise UnrepairedError(fault, self.worker.name, within_s, last)

    async def left_out(self, *, within_s: float, uncertain: bool) -> Seen | None:
        """Waits until the worker is excluded, or with `uncertain` until an answer within the bound says that
        it isn't complete; None if it is still answered for as if nothing had happened."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + within_s
        prompt = fresh_prompt(self.arena)
        while loop.time() < deadline_s:
            seen = await self.ask(prompt, bound_ms=REPAIRED_BOUND_MS if uncertain else BOUND_MS)
            if seen.uncertain if uncertain else seen.matched is None:
                return seen
            await asyncio.sleep(ASK_EVERY_S)
        return None

    async def serve(
        self, *, blocks: int = 3, output_blocks: int = 0, within_s: float = 10.0
    ) -> Prompt | None:
        """Has the engine compute a prompt that nobody ever had; None if it didn't in time."""
        prompt = fresh_prompt(self.arena, blocks=blocks, output_blocks=output_blocks)
        fleet = self.arena.fleet
        job = fleet.submit(fleet.workers.index(self.worker), prompt)
        await asyncio.wait([job.done], timeout=max(0.0, within_s))
        return prompt if job.done.done() else None

    def _mine(self, entry: dict[str, Any]) -> bool:
        rank = entry.get("dp_rank")
        return entry.get("worker") == self.worker.name and rank in (None, self.worker.engine.rank)


def fresh_prompt(arena: Arena, *, blocks: int = 3, output_blocks: int = 0) -> Prompt:
    """A prompt of content that was never used before, of one tenant after the other.

    The arena's dice are left alone: how often something is asked depends on time, and the schedule may not.
    """
    size = arena.fleet.plan.block_tokens
    tenants = sorted(arena.fleet.salt_by_tenant)
    tenant = tenants[next(_turn) % len(tenants)]
    return arena.fleet.prompt(
        TraceRequest(
            arrival_s=0.0,
            session=None,
            tenant=tenant,
            prefix_ids=tuple(next(_content) for _ in range(blocks)),
            input_tokens=blocks * size,
            output_tokens=output_blocks * size + 1,
            block_tokens=size,
        )
    )


async def chatter(probe: Probe, steps: int, *, within_s: float = 20.0) -> None:
    """Has the engine put about that many steps on the wire, as one long answer does."""
    await probe.serve(blocks=1, output_blocks=steps, within_s=within_s)
