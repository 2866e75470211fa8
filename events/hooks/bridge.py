"""One engine's bridge: its ZMQ stream and replay socket on one side, a hook on the other.

Started late, it takes the engine's history from the replay socket before it registers; what can't be had is
an engine loss. It confirms by replay, and deletes, where it is given the engine's URL, by a whole reset. Where an
agent in the engine answers, the agent confirms, removes single blocks and shows the pool instead.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from events.errors import DecodeError
from events.hooks.agent_link import AgentLink, Attest
from events.hooks.agent_wire import Hello
from events.hooks.engine_adapter import VLLM, EngineAdapter
from events.hooks.engine_event import AllBlocksCleared, EngineBatch, EngineHash
from events.hooks.engine_http import EngineHttp
from events.hooks.engine_port import (
    Confirmation,
    Confirmed,
    RemovalResult,
    ResetResult,
    Unanswered,
)
from events.hooks.engine_position import Anchor, EngineMessage
from events.hooks.engine_recovery import EngineSnapshot, Heartbeat, read_snapshot
from events.hooks.engine_source import EngineSource
from events.hooks.life_file import KnownLife, LifeFile, digest
from events.hooks.obligation import Obligations
from events.hooks.wire_alarm import WireAlarm, WireCounts
from events.hooks.zmq_source import (
    Confirmed as Answered,
)
from events.hooks.zmq_source import (
    Continuity,
    EngineRestarted,
    ForeignTopic,
    MessagesLost,
    SourceItem,
    UnreadableFrames,
)
from events.ids import Basis, Capability
from events.model.signal import Load

LOG = logging.getLogger(__name__)
RECEIVE_S = 0.05
STEP_TIMEOUT_S = 5.0
REMEMBER_EVERY_S = 1.0
INSPECT_TIMEOUT_S = 2.0
WATCH_S = 2.0
WATCH_TIMEOUT_S = 1.0
TURN_S = 0.01
"""Feeding a long replay, a bridge lets others of its process have a turn so often."""


class BridgedHook(Protocol):
    """`events.hooks.hook.Hook`, as far as its bridge feeds it."""

    @property
    def installed(self) -> int: ...

    @property
    def log(self) -> str: ...

    @property
    def obligations(self) -> Obligations: ...

    def feed(self, batch: EngineBatch, admitted_after: int | None = None) -> None: ...

    def lost(self, first: int, last: int | None) -> None: ...

    def unknown(self, kind: str, length: int) -> None: ...

    def restarted(self, engine_life: str, *, ended: bool, born_after: int | None = None) -> None: ...

    @property
    def doubtful(self) -> bool: ...

    def inspected(self, resident: Mapping[int, Mapping[EngineHash, int]]) -> None: ...

    def reachable_by(self, removal: Capability, *, admission_known: bool) -> None: ...


@dataclass(slots=True)
class BridgeCounts(WireCounts):
    """Since the start. `refused` messages were of another rank; `failed` could be read and not be translated:
    both count as lost, too."""

    messages: int = 0
    unreadable: int = 0
    lost_messages: int = 0
    lives: int = 1
    foreign_topics: int = 0
    wrong_rank: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Attachment:
    """What an engine was found to be. `from_birth`: `items` begin with the first that it ever published, or
    it has published nothing; `known` is what a former process left; `proven_new`: the engine has shown that
    it is another life than that one."""

    life: str
    items: tuple[SourceItem, ...]
    from_birth: bool
    known: KnownLife | None
    proven_new: bool = False


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
        self.counts = BridgeCounts()
        self._source = source
        self._rank = rank
        self._decode = adapter.decode
        self._alarm = WireAlarm(self.counts)
        self._http = http
        self._agent = agent
        self._attest = attest
        self._inspected_s = 0.0
        self._taken_seq = -1
        self._file = life_file
        self._make_life = make_life
        self._life = ""
        self._hook: BridgedHook
        self._lock = asyncio.Lock()
        self._pending: deque[SourceItem] = deque()
        self._clears = 0
        self._confirmed_after = -1
        self._silent_after: int | None = None
        self._heard = False
        self._began = False
        self._right_rank = True
        self._from_birth = False
        self._remembered_s = 0.0
        self._asked_s = 0.0

    @property
    def capability(self) -> Capability:
        """What can be removed: single blocks as long as an agent is expected to answer."""
        if self._agent is not None and self._agent.expected:
            return Capability.EVICT_BLOCKS
        return Capability.NONE if self._http is None else Capability.RESET

    @property
    def admission_known(self) -> bool:
        return self._agent is not None and self._agent.expected

    @property
    def hello(self) -> Hello | None:
        """What the agent that is trusted says of its engine."""
        return self._agent.hello if self._agent is not None and self._agent.trusted else None

    @property
    def agent_absent(self) -> bool:
        """Whether an agent should be there and can't be relied on."""
        return self._agent is not None and not self._agent.trusted

    @property
    def basis(self) -> Basis:
        """What a confirmation rests on now, if there is one."""
        if self._agent is not None and self._agent.trusted:
            return Basis.ENGINE
        return Basis.PUBLISHED if self._source.has_replay else Basis.UNCONFIRMED

    @property
    def heard(self) -> bool:
        """Whether anything was ever received from this engine, in this life or one before. Until then nobody
        can tell an idle engine from one whose events don't come through, so nothing is confirmed."""
        return self._heard

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
            self._heard = True
            self._confirmed_after = known.confirmed_after
            self._source.resume(Anchor(known.seq, bytes.fromhex(known.digest)))
        hello = await self._agent.present() if self._agent is not None else None
        outcome = await self._source.confirm(timeout_s)
        if self._agent is not None and hello is not None and isinstance(outcome, Answered):
            self._agent.trust(hello)
        items = outcome.items
        other = self._source.continuity is Continuity.OTHER or (known is not None and ended(known.life))
        if other:
            items = tuple(item for item in items if not isinstance(item, EngineRestarted))
        self._from_birth = _begins_at_birth(items) or (isinstance(outcome, Answered) and not items)
        if not self._from_birth and isinstance(outcome, Answered):
            items = await self._with_snapshot(items, timeout_s)
        keeps = known is not None and not other
        self._life = known.life if known is not None and keeps else self._make_life()
        return Attachment(self._life, items, self._from_birth, known, other)

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
            self._alarm.unreadable(resume_seq, error.reason)
            return items
        LOG.info("the engine's own snapshot stands for what came before message %d", resume_seq)
        lost = [item for item in items if isinstance(item, MessagesLost) and item.first_seq < resume_seq]
        later = [item for item in items if item not in lost and _seq_of(item, resume_seq) >= resume_seq]
        return (*lost, snapshot, *later)

    def bind(self, hook: BridgedHook, attachment: Attachment) -> None:
        """Names the hook to feed and feeds it with the history. Its orders: those discharged in this life
        stay so; a life that began after the last one confirmed owes nothing older; one that had published
        nothing yet owes what is older than this only once its first record has come."""
        self._hook = hook
        known = attachment.known
        self._pending.extend(attachment.items)
        while self._pending:
            self._take(self._pending.popleft())
        if known is not None and not attachment.proven_new:
            hook.obligations.restore(known.discharged)
        else:
            hook.obligations.new_life(self._confirmed_after if attachment.proven_new else -1)
        if known is None and attachment.from_birth and not attachment.items:
            self._silent_after = hook.installed

    async def run(self) -> None:
        """Feeds the hook until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            async with self._lock:
                items = await self._source.receive(RECEIVE_S)
                await self._feed(items)
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
        hello = await self._agent.present() if self._agent is not None else None
        if self._agent is not None and self._agent.trusted:
            word = await self._confirm_by_agent(self._agent, timeout_s)
            if word is not None:
                return word
        if not self._source.has_replay:
            return Confirmed(Basis.UNCONFIRMED) if self._heard and self._right_rank else Unanswered()
        self._asked_s = asyncio.get_running_loop().time()
        async with self._lock:
            await self._feed(())
            installed, lives = self._hook.installed, self.counts.lives
            outcome = await self._source.confirm(timeout_s)
            await self._feed(outcome.items)
        answered = isinstance(outcome, Answered) and lives == self.counts.lives
        if self._agent is not None and hello is not None and answered and self._right_rank:
            self._agent.trust(hello)
        if not answered or not self._heard or not self._right_rank:
            return Unanswered()
        self._confirmed_after = installed
        return Confirmed(Basis.PUBLISHED)

    async def _confirm_by_agent(self, agent: AgentLink, timeout_s: float) -> Confirmation | None:
        """None: no word in time, or its publications haven't come; the replay socket knows more then."""
        loop = asyncio.get_running_loop()
        self._asked_s = loop.time()
        deadline_s = loop.time() + timeout_s / 2
        installed, lives = self._hook.installed, self.counts.lives
        word = await agent.stand(installed, self._hook.log, timeout_s / 2)
        if word is None:
            return None
        async with self._lock:
            await self._feed_upto(word.seq, deadline_s)
        if self._taken_seq < word.seq or not agent.trusted:
            return None
        if lives != self.counts.lives or not self._right_rank:
            return Unanswered()
        self._confirmed_after = installed
        return Confirmed(Basis.ENGINE, upto=word.seq)

    async def remove(self, hashes: Sequence[EngineHash], timeout_s: float, *, request: int) -> RemovalResult:
        """By the agent; an engine without one removes nothing singly. Nothing is fed meanwhile, so that what is
        removed is told as that, and not as the engine's own eviction."""
        agent = self._agent
        if agent is None:
            return RemovalResult(refused="no_delete_path", cure="install the agent in the engine")
        async with self._lock:
            await self._feed(())
            word = await agent.remove(hashes, request, timeout_s)
        if word is None:
            return RemovalResult(refused="engine_error", cure="wait until the engine's agent answers again")
        return RemovalResult(removed=tuple(hashes))

    async def reset(self, timeout_s: float) -> ResetResult:
        """Resets, forces a step, confirms; the last clear on the wire by then is the barrier."""
        if self._http is None or not self._source.has_replay:
            return ResetResult("no_delete_path", "give the bridge --engine-url and --replay")
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        before, lives = self._clears, self.counts.lives
        answer = await self._http.reset(min(timeout_s, STEP_TIMEOUT_S))
        if answer.refused is not None:
            return ResetResult(answer.refused, answer.cure)
        while loop.time() < deadline_s:
            stepped = await self._http.step(min(STEP_TIMEOUT_S, deadline_s - loop.time()))
            confirmed = stepped and isinstance(await self.confirm(2.0), Confirmed)
            if self.counts.lives != lives:
                break
            if confirmed and self._clears > before:
                return ResetResult()
            await asyncio.sleep(0.1)
        return ResetResult("engine_error", "the reset was not seen on the engine's event socket in time")

    def oldest_running(self) -> int | None:
        """Unknown without an agent; `admission_known` says so."""
        return None if self._agent is None else self._agent.oldest_running()

    def load(self) -> Load | None:
        """Unknown without an agent."""
        return None if self._agent is None else self._agent.load()

    # --- inside -------------------------------------------------------------------------------------

    async def _feed(self, items: Iterable[SourceItem]) -> None:
        """Takes the items in order; what a cancellation leaves is taken by the next call."""
        loop = asyncio.get_running_loop()
        self._pending.extend(items)
        turn_s = loop.time()
        while self._pending:
            self._take(self._pending.popleft())
            if loop.time() - turn_s > TURN_S:
                await asyncio.sleep(0)
                turn_s = loop.time()

    async def _feed_upto(self, seq: int, deadline_s: float) -> None:
        """Takes items until that publication has been fed, and none behind it."""
        loop = asyncio.get_running_loop()
        while self._taken_seq < seq and (self._pending or loop.time() < deadline_s):
            if not self._pending:
                left_s = max(0.0, min(RECEIVE_S, deadline_s - loop.time()))
                self._pending.extend(await self._source.receive(left_s))
            while self._pending and self._taken_seq < seq:
                self._take(self._pending.popleft())

    async def _tend_agent(self, now_s: float) -> None:
        """What the agent is for beside questions: the pool itself where events leave doubt, and the end of the
        engine's process. The log is told which way there is to the engine whenever that changes."""
        agent = self._agent
        if agent is None:
            return
        evidence = agent.ended()
        if evidence is not None:
            self._process_ended(agent, evidence)
        elif agent.trusted or agent.lost(now_s):
            self._hook.reachable_by(self.capability, admission_known=self.admission_known)
        if agent.trusted and self._hook.doubtful and now_s - self._inspected_s > agent.inspect_every_s:
            self._inspected_s = now_s
            await self._inspect(agent)

    async def _inspect(self, agent: AgentLink) -> None:
        loop = asyncio.get_running_loop()
        lives = self.counts.lives
        async with self._lock:
            await self._feed(())
            found = await agent.inspect(INSPECT_TIMEOUT_S)
            if found is None:
                return
            await self._feed_upto(found.seq, loop.time() + INSPECT_TIMEOUT_S)
            if self._taken_seq == found.seq and lives == self.counts.lives and agent.trusted:
                self._hook.inspected(found.copies)
            await self._feed(())

    def _process_ended(self, agent: AgentLink, evidence: str) -> None:
        """The process that was trusted is gone, and its cache with it; what answers next is another life."""
        LOG.warning("the engine's process has ended: %s", evidence)
        agent.forget()
        if self._attest is not None:
            self._attest(self._life, f"process {evidence} ended, held by its bridge")
        self._new_life(proven=True, ended=True)

    def _take(self, item: SourceItem) -> None:
        match item:
            case EngineMessage():
                self._message(item)
            case MessagesLost():
                self.counts.lost_messages += item.last_seq - item.first_seq + 1
                LOG.warning("engine messages %d to %d are lost", item.first_seq, item.last_seq)
                self._hook.lost(item.first_seq, item.last_seq)
            case EngineRestarted():
                LOG.warning("the engine shows another life: %s", item.sign.value)
                self._new_life(proven=item.sign.proven)
            case ForeignTopic():
                self.counts.foreign_topics += 1
                LOG.warning("another publisher's topic is left out")
            case UnreadableFrames():
                self.counts.unreadable += 1
                self._hook.unknown("frames", item.frame_count)
            case EngineSnapshot():
                for batch in item.batches:
                    self._alarm.look(batch)
                    self._hook.feed(batch, None)
            case Heartbeat():
                # It lives and its events come through, though it may have published nothing yet.
                self._heard = True

    def _new_life(self, *, proven: bool, ended: bool = False) -> None:
        """Another life answers on that address; that the old process is gone nobody has attested. Unless it
        is `proven` that it isn't the one held, it may hold anything, and owes what that one owes."""
        self.counts.lives += 1
        self._taken_seq = -1
        if self._agent is not None:
            self._agent.forget()
        self._life = self._make_life()
        self._from_birth, self._began, self._silent_after, self._right_rank = proven, False, None, True
        obligations = self._hook.obligations
        discharged = [] if proven else obligations.discharged()
        self._hook.restarted(self._life, ended=ended, born_after=self._confirmed_after if proven else -1)
        if not proven:
            obligations.restore(discharged)
            self._hook.lost(0, None)

    def _message(self, message: EngineMessage) -> None:
        self.counts.messages += 1
        self._heard, self._taken_seq = True, message.seq
        if not self._began:
            self._began = True
            if message.seq == 0:
                self._first()
        try:
            batch = self._decode(message.seq, message.payload)
        except DecodeError as error:
            self.counts.unreadable += 1
            self._alarm.unreadable(message.seq, error.reason)
            self._skip(message, "batch")
            return
        self._right_rank = batch.rank is None or batch.rank == self._rank
        if not self._right_rank:
            if self.counts.wrong_rank == 0:
                LOG.error("the engine says rank %d, this bridge was started for %d", batch.rank, self._rank)
            self.counts.wrong_rank += 1
            self._skip(message, "rank")
            return
        self._alarm.look(batch)
        try:
            self._hook.feed(batch, None if self._agent is None else self._agent.admitted(message.seq))
        except (ValueError, TypeError, LookupError, ArithmeticError, AssertionError) as error:
            # Its text may hold what the message said.
            self.counts.failed += 1
            LOG.error("engine message %d can't be translated: %s", message.seq, type(error).__name__)
            self._skip(message, "untranslatable")
            return
        # Counted after the hook was fed, so that a counted clear is one that was numbered.
        self._clears += sum(isinstance(event, AllBlocksCleared) for event in batch.events)

    def _first(self) -> None:
        """The very first record of this life is here, so all that it holds will have been told."""
        obligations = self._hook.obligations
        if not self._from_birth:
            self._from_birth = True
            discharged = obligations.discharged()
            self._hook.restarted(self._life, ended=False, born_after=-1)
            obligations.restore(discharged)
        if self._silent_after is not None:
            obligations.new_life(self._silent_after)
            self._silent_after = None

    def _skip(self, message: EngineMessage, why: str) -> None:
        self._hook.unknown(why, len(message.payload))
        self._hook.lost(message.seq, message.seq)

    def _remember(self, now_s: float) -> None:
        newest = self._source.newest
        if self._file is not None and newest is not None and now_s - self._remembered_s > REMEMBER_EVERY_S:
            self._remembered_s = now_s
            self._file.store(
                KnownLife(
                    self._life,
                    newest.seq,
                    digest(newest.payload),
                    self._confirmed_after,
                    tuple(self._hook.obligations.discharged()),
                )
            )


def _seq_of(item: SourceItem, otherwise: int) -> int:
    return item.seq if isinstance(item, EngineMessage) else otherwise


def _begins_at_birth(items: tuple[SourceItem, ...]) -> bool:
    """Whether these are all of a life from its first record on, without a hole."""
    messages = [item for item in items if isinstance(item, EngineMessage)]
    holes = any(isinstance(item, MessagesLost | EngineRestarted) for item in items)
    return bool(messages) and messages[0].seq == 0 and not holes
