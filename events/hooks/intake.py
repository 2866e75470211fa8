"""One engine's items on their way into its hook, and what they show of the engine's life.

Everything that a bridge is told by its engine passes here, in the engine's order, once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from events.errors import DecodeError
from events.hooks.agent_link import AgentLink
from events.hooks.engine_event import AllBlocksCleared, EngineBatch, EngineHash
from events.hooks.engine_position import EngineMessage
from events.hooks.engine_recovery import EngineSnapshot, Heartbeat
from events.hooks.engine_source import (
    EngineRestarted,
    EngineSource,
    ForeignTopic,
    MessagesLost,
    SourceItem,
    UnreadableFrames,
)
from events.hooks.obligation import Obligations
from events.hooks.wire_alarm import WireAlarm, WireCounts
from events.ids import Capability

LOG = logging.getLogger(__name__)
RECEIVE_S = 0.05
UNTRANSLATABLE = "untranslatable"
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

    def restarted(self, engine_life: str, *, born_after: int | None = None) -> None: ...

    def engine_ended(self) -> None: ...

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


class Intake:
    """Feeds one hook. Whoever asks the engine something and then feeds, or feeds up to a number, holds `lock`
    meanwhile. `heard`: see `Bridge.heard`; `right_rank`: the engine's batches are of the rank that the bridge was
    started for; `from_birth`: all that this life holds was told, or will be; `taken_seq`: newest publication fed;
    `clears`: how many whole clears were numbered; `confirmed_after`: newest order installed when the engine last
    confirmed; `vacant`: the engine's end was seen, and nothing of another one yet."""

    hook: BridgedHook

    def __init__(
        self,
        source: EngineSource,
        decode: Callable[[int, bytes], EngineBatch],
        *,
        rank: int,
        agent: AgentLink | None,
        make_life: Callable[[], str],
    ) -> None:
        self.counts = BridgeCounts()
        self.alarm = WireAlarm(self.counts)
        self.lock = asyncio.Lock()
        self._pending: deque[SourceItem] = deque()
        self.life = ""
        self.heard = False
        self.right_rank = True
        self.from_birth = False
        self.silent_after: int | None = None
        self.taken_seq = -1
        self.clears = 0
        self.confirmed_after = -1
        self.vacant = False
        self._source = source
        self._decode = decode
        self._rank = rank
        self._agent = agent
        self._make_life = make_life
        self._began = False

    async def feed(self, items: Iterable[SourceItem]) -> None:
        """Takes the items in order; what a cancellation leaves is taken by the next call."""
        loop = asyncio.get_running_loop()
        self._pending.extend(items)
        turn_s = loop.time()
        while self._pending:
            self.take(self._pending.popleft())
            if loop.time() - turn_s > TURN_S:
                await asyncio.sleep(0)
                turn_s = loop.time()

    async def feed_upto(self, seq: int, deadline_s: float) -> None:
        """Takes items until that publication has been fed, and none behind it."""
        loop = asyncio.get_running_loop()
        while self.taken_seq < seq and (self._pending or loop.time() < deadline_s):
            if not self._pending:
                left_s = max(0.0, min(RECEIVE_S, deadline_s - loop.time()))
                self._pending.extend(await self._source.receive(left_s))
            while self._pending and self.taken_seq < seq:
                self.take(self._pending.popleft())

    async def drain(self, timeout_s: float) -> None:
        """Feeds what a process has left behind in the sockets. The caller holds `lock`."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        items = await self._source.receive(RECEIVE_S)
        while items and loop.time() < deadline_s:
            await self.feed(items)
            items = await self._source.receive(RECEIVE_S)
        await self.feed(items)

    def engine_ended(self) -> None:
        """The engine's process is known to be gone. No life is made up in its place: one that never was could never
        be attested to have ended."""
        self.vacant = True
        self._source.ended()
        self.hook.engine_ended()

    def answered(self) -> None:
        """Somebody is there. After an engine's end that is another life."""
        if self.vacant:
            self.new_life(proven=True)

    def take(self, item: SourceItem) -> None:
        if not isinstance(item, ForeignTopic | UnreadableFrames | EngineRestarted):
            self.answered()
        match item:
            case EngineMessage():
                self._message(item)
            case MessagesLost():
                self.counts.lost_messages += item.last_seq - item.first_seq + 1
                LOG.warning("engine messages %d to %d are lost", item.first_seq, item.last_seq)
                self.hook.lost(item.first_seq, item.last_seq)
            case EngineRestarted():
                LOG.warning("the engine shows another life: %s", item.sign.value)
                self.new_life(proven=item.sign.proven)
            case ForeignTopic():
                self.counts.foreign_topics += 1
                LOG.warning("another publisher's topic is left out")
            case UnreadableFrames():
                self.counts.unreadable += 1
                self.hook.unknown("frames", item.frame_count)
            case EngineSnapshot():
                for batch in item.batches:
                    self.alarm.look(batch)
                    if not self._feed(batch, None):
                        self.hook.unknown(UNTRANSLATABLE, 0)
                        self.hook.lost(0, None)
            case Heartbeat():
                # It lives and its events come through, though it may have published nothing yet.
                self.heard = True

    def new_life(self, *, proven: bool) -> None:
        """Another life answers on that address. Unless it is `proven` that it isn't the one held, as it is where
        that one was seen to end, it may hold anything, and owes what that one owes."""
        proven, self.vacant = proven or self.vacant, False
        self.counts.lives += 1
        self.taken_seq = -1
        if self._agent is not None:
            self._agent.forget()
        self.life = self._make_life()
        self.from_birth, self._began, self.silent_after, self.right_rank = proven, False, None, True
        obligations = self.hook.obligations
        discharged = [] if proven else obligations.discharged()
        self.hook.restarted(self.life, born_after=self.confirmed_after if proven else -1)
        if not proven:
            obligations.restore(discharged)
            self.hook.lost(0, None)

    def _message(self, message: EngineMessage) -> None:
        self.counts.messages += 1
        self.heard, self.taken_seq = True, message.seq
        if not self._began:
            self._began = True
            if message.seq == 0:
                self._first()
        try:
            batch = self._decode(message.seq, message.payload)
        except DecodeError as error:
            self.counts.unreadable += 1
            self.alarm.unreadable(message.seq, error.reason)
            self._skip(message, "batch")
            return
        self.right_rank = batch.rank is None or batch.rank == self._rank
        if not self.right_rank:
            if self.counts.wrong_rank == 0:
                LOG.error("the engine says rank %d, this bridge was started for %d", batch.rank, self._rank)
            self.counts.wrong_rank += 1
            self._skip(message, "rank")
            return
        self.alarm.look(batch)
        if not self._feed(batch, None if self._agent is None else self._agent.admitted(message.seq)):
            self._skip(message, UNTRANSLATABLE)
            return
        # Counted after the hook was fed, so that a counted clear is one that was numbered.
        self.clears += sum(isinstance(event, AllBlocksCleared) for event in batch.events)

    def _feed(self, batch: EngineBatch, admitted_after: int | None) -> bool:
        """Whether it could be translated."""
        try:
            self.hook.feed(batch, admitted_after)
        except (ValueError, TypeError, LookupError, ArithmeticError, AssertionError) as error:
            # Its text may hold what the message said.
            self.counts.failed += 1
            LOG.error("engine message %d can't be translated: %s", batch.engine_seq, type(error).__name__)
            return False
        return True

    def _first(self) -> None:
        """The very first record of this life is here, so all that it holds will have been told."""
        obligations = self.hook.obligations
        if not self.from_birth:
            self.from_birth = True
            discharged = obligations.discharged()
            self.hook.restarted(self.life, born_after=-1)
            obligations.restore(discharged)
        if self.silent_after is not None:
            obligations.new_life(self.silent_after)
            self.silent_after = None

    def _skip(self, message: EngineMessage, why: str) -> None:
        self.hook.unknown(why, len(message.payload))
        self.hook.lost(message.seq, message.seq)
