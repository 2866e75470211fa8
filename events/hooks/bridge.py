"""One engine's bridge: its ZMQ stream and replay socket on one side, a hook on the other.

Started late, it takes the engine's history from the replay socket before it registers; what can't be had is
an engine loss. It confirms by replay, and deletes, where it is given the engine's URL, by a whole reset. Where an
agent in the engine answers, the agent confirms, removes single blocks and shows the pool instead.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from events.errors import DecodeError
from events.hooks.agent_bridge import AgentBridge
from events.hooks.agent_link import AgentLink, Attest
from events.hooks.agent_wire import Hello
from events.hooks.engine_adapter import VLLM, EngineAdapter
from events.hooks.engine_event import EngineHash
from events.hooks.engine_http import EngineHttp
from events.hooks.engine_port import (
    Confirmation,
    Confirmed,
    RemovalResult,
    ResetResult,
    Unanswered,
)
from events.hooks.engine_position import Anchor, EngineMessage
from events.hooks.engine_recovery import read_snapshot
from events.hooks.engine_source import (
    Confirmed as Answered,
)
from events.hooks.engine_source import (
    Continuity,
    EngineRestarted,
    EngineSource,
    MessagesLost,
    SourceItem,
)
from events.hooks.intake import RECEIVE_S, BridgeCounts, BridgedHook, Intake
from events.hooks.life_file import KnownLife, LifeFile, digest
from events.ids import Basis, Capability
from events.model.signal import Load

LOG = logging.getLogger(__name__)
STEP_TIMEOUT_S = 5.0
REMEMBER_EVERY_S = 1.0
WATCH_S = 2.0
WATCH_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class Attachment:
    """What an engine was found to be. `from_birth`: `items` begin with the first that it ever published, or
    it has published nothing; `known` is what a former process left; `proven_new`: the engine has shown that
    it is another life than that one; `vacant`: that one's end is attested, and nobody answers in its place."""

    life: str
    items: tuple[SourceItem, ...]
    from_birth: bool
    known: KnownLife | None
    proven_new: bool = False
    vacant: bool = False


class Bridge:
    """An `EnginePort` over an `EngineSource`, and an agent if there is one. Call `attach` once, give its answer to
    the hook, then `run`. `attest` is told of an engine life whose process was seen to end."""

    def __init__(
        self,
        source: EngineSource,
        *,
        rank: int = 0,
        adapter: EngineAdapter = VLLM,
        http: EngineHttp | None = None,
        agent: AgentLink | None = None,
        attest: Attest | None = None,
        life_file: LifeFile | None = None,
        make_life: Callable[[], str] = lambda: f"life-{secrets.token_hex(8)}",
    ) -> None:
        self._source = source
        self._intake = Intake(source, adapter.decode, rank=rank, agent=agent, make_life=make_life)
        self._agent = None if agent is None else AgentBridge(agent, self._intake, attest)
        self._decode = adapter.decode
        self._http = http
        self._file = life_file
        self._make_life = make_life
        self._remembered_s = 0.0
        self._asked_s = 0.0

    @property
    def counts(self) -> BridgeCounts:
        return self._intake.counts

    @property
    def capability(self) -> Capability:
        """What can be removed: single blocks as long as an agent is expected to answer."""
        if self._agent is not None and self._agent.link.expected:
            return Capability.EVICT_BLOCKS
        return Capability.NONE if self._http is None else Capability.RESET

    @property
    def admission_known(self) -> bool:
        return self._agent is not None and self._agent.link.expected

    @property
    def hello(self) -> Hello | None:
        """What the agent that is trusted says of its engine."""
        return self._agent.link.hello if self._agent is not None and self._agent.link.trusted else None

    @property
    def agent_absent(self) -> bool:
        """Whether an agent should be there and can't be relied on."""
        return self._agent is not None and not self._agent.link.trusted

    @property
    def basis(self) -> Basis:
        """What a confirmation rests on now, if there is one."""
        if self._agent is not None and self._agent.link.trusted:
            return Basis.ENGINE
        return Basis.PUBLISHED if self._source.has_replay else Basis.UNCONFIRMED

    @property
    def heard(self) -> bool:
        """Whether anything was ever received from this engine, in this life or one before. Until then nobody
        can tell an idle engine from one whose events don't come through, so nothing is confirmed."""
        return self._intake.heard

    @property
    def confirmable(self) -> bool:
        """Whether its source can ever vouch for having all that was published."""
        return self._source.has_replay

    async def attach(self, timeout_s: float, *, ended: Callable[[str], bool] = lambda _: False) -> Attachment:
        """Asks for the engine's history: the life that it belongs to, and what is to be fed before the hook
        registers. Without an answer the history is empty, nothing is known of the engine's memory, and the
        life counts as the one that a former process knew until the engine shows another. `ended`: whether
        the end of that life is attested, so that whoever answers now is another."""
        known = self._file.load() if self._file is not None else None
        if known is not None:
            self._intake.heard = True
            self._intake.confirmed_after = known.confirmed_after
            self._source.resume(Anchor(known.seq, bytes.fromhex(known.digest)))
        hello = await self._agent.link.present() if self._agent is not None else None
        outcome = await self._source.confirm(timeout_s)
        items = outcome.items
        over = known is not None and ended(known.life)
        other = over or self._source.continuity is Continuity.OTHER
        if other:
            items = tuple(item for item in items if not isinstance(item, EngineRestarted))
        from_birth = _begins_at_birth(items) or (isinstance(outcome, Answered) and not items)
        if not from_birth and isinstance(outcome, Answered):
            items = await self._with_snapshot(items, timeout_s)
        keeps = known is not None and not other
        life = known.life if known is not None and keeps else self._make_life()
        self._intake.life, self._intake.from_birth = life, from_birth
        if self._agent is not None and hello is not None and isinstance(outcome, Answered):
            self._agent.link.trust(hello, life)
        vacant = over and not items and not isinstance(outcome, Answered)
        return Attachment(life, items, from_birth, known, other, vacant)

    async def _with_snapshot(self, items: tuple[SourceItem, ...], timeout_s: float) -> tuple[SourceItem, ...]:
        """What the engine itself says that it holds, in place of what it has said before. That nothing else is
        there isn't taken from it: the holders stay partial."""
        parts = await self._source.snapshot(timeout_s)
        if parts is None:
            return items
        resume_seq = parts[0].seq
        try:
            snapshot = read_snapshot([self._decode(resume_seq, part.payload) for part in parts])
        except DecodeError as error:
            self._intake.alarm.unreadable(resume_seq, error.reason)
            return items
        LOG.info("the engine's own snapshot stands for what came before message %d", resume_seq)
        lost = [item for item in items if isinstance(item, MessagesLost) and item.first_seq < resume_seq]
        later = [item for item in items if item not in lost and _seq_of(item, resume_seq) >= resume_seq]
        return (*lost, snapshot, *later)

    def bind(self, hook: BridgedHook, attachment: Attachment) -> None:
        """Names the hook to feed and feeds it with the history. Its orders: those discharged in this life
        stay so; a life that began after the last one confirmed owes nothing older; one that had published
        nothing yet owes what is older than this only once its first record has come."""
        intake, known = self._intake, attachment.known
        intake.hook = hook
        for item in attachment.items:
            intake.take(item)
        if known is not None and not attachment.proven_new:
            hook.obligations.restore(known.discharged)
        else:
            hook.obligations.new_life(intake.confirmed_after if attachment.proven_new else -1)
        if known is None and attachment.from_birth and not attachment.items:
            intake.silent_after = hook.installed
        if attachment.vacant:
            intake.engine_ended()

    async def run(self) -> None:
        """Feeds the hook until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            async with self._intake.lock:
                items = await self._source.receive(RECEIVE_S)
                await self._intake.feed(items)
            # A confirmation may be waiting for the source.
            await asyncio.sleep(0)
            if self._source.has_replay and loop.time() - self._asked_s > WATCH_S:
                # No reader asks: look all the same, or a silent restart would go unnoticed.
                await self.confirm(WATCH_TIMEOUT_S)
            await self._tend_agent(loop.time())
            if items or loop.time() - self._remembered_s > REMEMBER_EVERY_S:
                self._remember(loop.time())

    # --- EnginePort ---------------------------------------------------------------------------------

    async def confirm(self, timeout_s: float) -> Confirmation:
        """See `EnginePort`: by the agent's word, else by a replay from the newest record held. Nothing is
        confirmed by replay of an engine of which nothing was ever received, or whose records are another rank's."""
        intake = self._intake
        hello = await self._agent.link.present() if self._agent is not None else None
        if self._agent is not None and self._agent.link.trusted:
            self._asked_s = asyncio.get_running_loop().time()
            word = await self._agent.confirm(timeout_s)
            if word is not None:
                return word
        if not self._source.has_replay:
            there = intake.heard and intake.right_rank and not intake.vacant
            return Confirmed(Basis.UNCONFIRMED) if there else Unanswered()
        self._asked_s = asyncio.get_running_loop().time()
        async with intake.lock:
            await intake.feed(())
            installed, lives = intake.hook.installed, self.counts.lives
            outcome = await self._source.confirm(timeout_s)
            await intake.feed(outcome.items)
            if isinstance(outcome, Answered):
                intake.answered()
        answered = isinstance(outcome, Answered) and lives == self.counts.lives
        if self._agent is not None and hello is not None and answered and intake.right_rank:
            self._agent.link.trust(hello, intake.life)
        if not answered or not intake.heard or not intake.right_rank:
            return Unanswered()
        intake.confirmed_after = installed
        return Confirmed(Basis.PUBLISHED)

    async def remove(self, hashes: Sequence[EngineHash], timeout_s: float, *, request: int) -> RemovalResult:
        """By the agent; an engine without one removes nothing singly."""
        if self._agent is None:
            return RemovalResult(refused="no_delete_path", cure="install the agent in the engine")
        return await self._agent.remove(hashes, timeout_s, request=request)

    async def reset(self, timeout_s: float) -> ResetResult:
        """Resets, forces a step, confirms; the last clear on the wire by then is the barrier."""
        if self._http is None or not self._source.has_replay:
            return ResetResult("no_delete_path", "give the bridge --engine-url and --replay")
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        before, lives = self._intake.clears, self.counts.lives
        answer = await self._http.reset(min(timeout_s, STEP_TIMEOUT_S))
        if answer.refused is not None:
            return ResetResult(answer.refused, answer.cure)
        while loop.time() < deadline_s:
            stepped = await self._http.step(min(STEP_TIMEOUT_S, deadline_s - loop.time()))
            confirmed = stepped and isinstance(await self.confirm(2.0), Confirmed)
            if self.counts.lives != lives:
                break
            if confirmed and self._intake.clears > before:
                return ResetResult()
            await asyncio.sleep(0.1)
        return ResetResult("engine_error", "the reset was not seen on the engine's event socket in time")

    def oldest_running(self) -> int | None:
        """Unknown without an agent; `admission_known` says so."""
        return None if self._agent is None else self._agent.link.oldest_running()

    def load(self) -> Load | None:
        """Unknown without an agent."""
        return None if self._agent is None else self._agent.link.load()

    # --- inside -------------------------------------------------------------------------------------

    async def _tend_agent(self, now_s: float) -> None:
        """The log is told which way there is to the engine whenever that changes."""
        if self._agent is None:
            return
        if await self._agent.settled(now_s):
            self._intake.hook.reachable_by(self.capability, admission_known=self.admission_known)
        await self._agent.look(now_s)

    def _remember(self, now_s: float) -> None:
        newest = self._source.newest
        if self._file is not None and newest is not None and now_s - self._remembered_s > REMEMBER_EVERY_S:
            self._remembered_s = now_s
            self._file.store(
                KnownLife(
                    self._intake.life,
                    newest.seq,
                    digest(newest.payload),
                    self._intake.confirmed_after,
                    tuple(self._intake.hook.obligations.discharged()),
                )
            )


def _seq_of(item: SourceItem, otherwise: int) -> int:
    return item.seq if isinstance(item, EngineMessage) else otherwise


def _begins_at_birth(items: tuple[SourceItem, ...]) -> bool:
    """Whether these are all of a life from its first record on, without a hole."""
    messages = [item for item in items if isinstance(item, EngineMessage)]
    holes = any(isinstance(item, MessagesLost | EngineRestarted) for item in items)
    return bool(messages) and messages[0].seq == 0 and not holes
