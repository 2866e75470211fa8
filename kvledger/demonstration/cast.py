"""What every scene plays with, and how it watches one worker's standing change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from events.errors import KvledgerError
from events.kafka.deadline import within
from kvledger.demonstration.stage import Stage
from kvledger.settings import Settings
from kvledger.simulate.asker import Answered, Asker
from kvledger.simulate.fleet import Fleet
from kvledger.simulate.prompt import MAX_CONTENT, Prompt
from kvledger.simulate.rest import RestClient
from kvledger.simulate.trace import TraceRequest
from kvledger.simulate.worker import SimWorker
from kvledger.stack.state import Endpoints

BOUND_MS = 1000.0
POLL_S = 0.02
PROMPT_BLOCKS = 24


class SceneError(KvledgerError):
    """Something that the scene waits for didn't happen in time; the message says what. The run has failed."""


@dataclass(slots=True)
class Cast:
    """The running system. Prompts made here are of content that no trace has."""

    settings: Settings
    at: Endpoints
    fleet: Fleet
    rest: RestClient
    asker: Asker
    stage: Stage
    _content: count[int] = field(default_factory=lambda: count(MAX_CONTENT // 2))

    def prompt(self, tenant: str, blocks: int = PROMPT_BLOCKS) -> Prompt:
        """A new prompt of so many whole blocks and a little more."""
        size = self.fleet.plan.block_tokens
        ids = tuple(next(self._content) for _ in range(blocks + 1))
        return self.fleet.planner.plan(
            TraceRequest(0.0, None, tenant, ids, blocks * size + 1, 1, size),
            self.fleet.salt_by_tenant[tenant],
        )

    def beginning(self, prompt: Prompt, blocks: int) -> Prompt:
        """The first blocks of a prompt as a prompt."""
        size = self.fleet.plan.block_tokens
        ids = (*prompt.contents[:blocks], next(self._content))
        return self.fleet.planner.plan(
            TraceRequest(0.0, None, prompt.tenant, ids, blocks * size + 1, 1, size), prompt.salt
        )

    async def serve(self, worker: SimWorker, prompt: Prompt) -> None:
        """The worker computes the prompt. Raises SceneError if it takes too long."""
        job = worker.submit(prompt)
        try:
            await within(asyncio.shield(job.done), 30)
        except TimeoutError as error:
            raise SceneError(f"{worker.name} did not serve a prompt within 30 s") from error

    async def ask(self, prompt: Prompt, worker: SimWorker) -> Answered:
        """What the service says of this one worker, within the usual bound."""
        return await self.asker.ask(
            prompt, bound_ms=BOUND_MS, candidates=(worker.name,), min_coverage=0, measured=False
        )

    async def watch(
        self,
        prompt: Prompt,
        worker: SimWorker,
        until: Callable[[str], bool],
        *,
        since_ns: int | None = None,
        shown: Callable[[float, str], None] = lambda _at, _what: None,
        timeout_s: float = 30.0,
    ) -> None:
        """Asks again and again, telling each change, until one satisfies `until`. Raises SceneError."""
        began_ns = self.fleet.truth.now_ns()
        last = ""
        while True:
            what = standing(await self.ask(prompt, worker), worker, len(prompt.keys))
            now_ns = self.fleet.truth.now_ns()
            if what != last:
                shown((now_ns - (began_ns if since_ns is None else since_ns)) / 1e6, what)
                last = what
            if until(what):
                return
            if now_ns - began_ns > timeout_s * 1e9:
                raise SceneError(f"waited {timeout_s:.0f} s; the service still says: {what}")
            self.fleet.check()
            await asyncio.sleep(POLL_S)

    async def visible(self, prompt: Prompt, worker: SimWorker) -> None:
        """Waits until the service credits the worker with the whole prompt. Raises SceneError."""
        await self.watch(prompt, worker, lambda what: what.startswith("credited with all"))


def standing(answer: Answered, worker: SimWorker, blocks: int) -> str:
    """One worker's part of an answer, in words."""
    if answer.status != 200:
        return f"refused with {answer.status}"
    for entry in answer.document["excluded"]:
        if entry["worker"] == worker.name:
            return f"excluded, reason {entry['reason']}"
    matched = answer.matched.get(worker.name, 0)
    if matched == blocks:
        return f"credited with all {blocks} blocks"
    return f"credited with {matched} of {blocks} blocks" if matched else "answered for: it has none of it"
