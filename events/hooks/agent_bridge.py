"""What a bridge does through the agent in its engine: confirm, remove single blocks, look at the pool, and see the
engine's process end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from events.hooks.agent_link import AgentLink, Attest, ProcessEnd
from events.hooks.engine_event import EngineHash
from events.hooks.engine_port import Confirmation, Confirmed, RemovalResult, Unanswered
from events.hooks.intake import Intake
from events.ids import Basis

LOG = logging.getLogger(__name__)
INSPECT_TIMEOUT_S = 2.0
DRAIN_TIMEOUT_S = 2.0


class AgentBridge:
    """One bridge's agent, beside the engine's stream: nothing that it says counts before what it has published
    was fed. `attest` is told of an engine life whose process was seen to end."""

    def __init__(self, link: AgentLink, intake: Intake, attest: Attest | None) -> None:
        self.link = link
        self._intake = intake
        self._attest = attest
        self._inspected_s = 0.0

    async def confirm(self, timeout_s: float) -> Confirmation | None:
        """None: no word in time, or its publications haven't come; the replay socket knows more then."""
        loop = asyncio.get_running_loop()
        intake = self._intake
        deadline_s = loop.time() + timeout_s / 2
        installed, lives = intake.hook.installed, intake.counts.lives
        word = await self.link.stand(installed, intake.hook.log, timeout_s / 2)
        if word is None:
            return None
        async with intake.lock:
            await intake.feed_upto(word.seq, deadline_s)
        if intake.taken_seq < word.seq or not self.link.trusted:
            return None
        if lives != intake.counts.lives or not intake.right_rank:
            return Unanswered()
        intake.confirmed_after = installed
        return Confirmed(Basis.ENGINE, upto=word.seq)

    async def remove(self, hashes: Sequence[EngineHash], timeout_s: float, *, request: int) -> RemovalResult:
        """Nothing is fed meanwhile, so that what is removed is told as that, and not as the engine's own
        eviction."""
        async with self._intake.lock:
            await self._intake.feed(())
            word = await self.link.remove(hashes, request, timeout_s)
        if word is None:
            return RemovalResult(refused="engine_error", cure="wait until the engine's agent answers again")
        return RemovalResult(removed=tuple(hashes))

    async def settled(self, now_s: float) -> bool:
        """Whether it is certain that there is an agent to rely on, or that there is none. A process that has
        ended is attested here."""
        end = self.link.ended()
        if end is not None:
            await self._process_ended(end)
        return not self._intake.vacant and (self.link.trusted or self.link.lost(now_s))

    async def look(self, now_s: float) -> None:
        """Looks at the pool itself where events leave doubt."""
        link = self.link
        if link.trusted and self._intake.hook.doubtful and now_s - self._inspected_s > link.inspect_every_s:
            self._inspected_s = now_s
            await self._inspect()

    async def _inspect(self) -> None:
        loop = asyncio.get_running_loop()
        intake = self._intake
        lives = intake.counts.lives
        async with intake.lock:
            await intake.feed(())
            found = await self.link.inspect(INSPECT_TIMEOUT_S)
            if found is None:
                return
            await intake.feed_upto(found.seq, loop.time() + INSPECT_TIMEOUT_S)
            if intake.taken_seq == found.seq and lives == intake.counts.lives and self.link.trusted:
                intake.hook.inspected(found.copies)
            await intake.feed(())

    async def _process_ended(self, end: ProcessEnd) -> None:
        """The process that was trusted is gone, and its cache with it; what answers next is another life, unless
        the stream has shown that one already."""
        LOG.warning("the engine's process has ended: %s", end.process)
        intake = self._intake
        if self._attest is not None:
            for life in end.lives:
                self._attest(life, f"process {end.process} ended, held by its bridge")
        if intake.life not in end.lives:
            return
        self.link.forget()
        lives = intake.counts.lives
        async with intake.lock:
            await intake.drain(DRAIN_TIMEOUT_S)
            if intake.counts.lives == lives:
                intake.engine_ended()
