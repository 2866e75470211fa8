"""One engine's bridge: its ZMQ stream and replay socket on one side, a hook on the other.

Started late, it takes the engine's history from the replay socket before it registers; what can't be had is
an engine loss. It confirms by replay, and deletes, where it is given the engine's URL, by a whole reset.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from events.errors import DecodeError
from events.hooks.engine_event import AllBlocksCleared, EngineBatch
from events.hooks.engine_http import EngineHttp
from events.hooks.engine_port import (
    Confirmation,
    Confirmed,
    RemovalResult,
    ResetResult,
    Unanswered,
)
from events.hooks.engine_position import EngineMessage
from events.hooks.life_file import KnownLife, LifeFile, digest
from events.hooks.obligation import Obligations
from events.hooks.vllm import decode_batch
from events.hooks.zmq_source import (
    Confirmed as Answered,
)
from events.hooks.zmq_source import (
    EngineRestarted,
    ForeignTopic,
    MessagesLost,
    SourceItem,
    UnreadableFrames,
    ZmqSource,
)
from events.ids import Basis, Capability
from events.model.signal import Load

LOG = logging.getLogger(__name__)
RECEIVE_S = 0.05
STEP_TIMEOUT_S = 5.0
REMEMBER_EVERY_S = 1.0
WATCH_S = 2.0
WATCH_TIMEOUT_S = 1.0


class BridgedHook(Protocol):
    """`events.hooks.hook.Hook`, as far as its bridge feeds it."""

    @property
    def installed(self) -> int: ...

    @property
    def obligations(self) -> Obligations: ...

    def feed(self, batch: EngineBatch, admitted_after: int | None = None) -> None: ...

    def lost(self, first: int, last: int | None) -> None: ...

    def unknown(self, kind: str, length: int) -> None: ...

    def restarted(self, engine_life: str, *, ended: bool, born_after: int | None = None) -> None: ...


@dataclass(slots=True)
class BridgeCounts:
    """Since the start."""

    messages: int = 0
    unreadable: int = 0
    lost_messages: int = 0
    lives: int = 1
    foreign_topics: int = 0
    wrong_rank: int = 0


@dataclass(frozen=True, slots=True)
class Attachment:
    """What an engine was found to be. `from_birth`: `items` are all it ever published; `known` is set if the
    life is one that a former process was attached to."""

    life: str
    items: tuple[SourceItem, ...]
    from_birth: bool
    known: KnownLife | None


class Bridge:
    """An `EnginePort` over a `ZmqSource`. Call `attach` once, give its answer to the hook, then `run`."""

    admission_known = False

    def __init__(
        self,
        source: ZmqSource,
        *,
        rank: int = 0,
        http: EngineHttp | None = None,
        life_file: LifeFile | None = None,
        make_life: Callable[[], str] = lambda: f"life-{secrets.token_hex(8)}",
    ) -> None:
        self.counts = BridgeCounts()
        self.capability = Capability.NONE if http is None else Capability.RESET
        self._source = source
        self._rank = rank
        self._http = http
        self._file = life_file
        self._make_life = make_life
        self._life = ""
        self._hook: BridgedHook
        self._lock = asyncio.Lock()
        self._clears = 0
        self._confirmed_after = -1
        self._from_birth = False
        self._remembered_s = 0.0
        self._asked_s = 0.0

    async def attach(self, timeout_s: float) -> Attachment:
        """Asks for the engine's history: the life that it belongs to, and what is to be fed before the hook
        registers. Without an answer the history is empty and nothing is known of the engine's memory."""
        known = self._file.load() if self._file is not None else None
        outcome = await self._source.confirm(timeout_s) if self._source.has_replay else None
        items: tuple[SourceItem, ...] = outcome.items if outcome is not None else ()
        same = known is not None and any(
            isinstance(item, EngineMessage) and item.seq == known.seq and digest(item.payload) == known.digest
            for item in items
        )
        self._life = known.life if known is not None and same else self._make_life()
        if known is not None:
            self._confirmed_after = known.confirmed_after
        self._from_birth = isinstance(outcome, Answered) and not any(
            isinstance(item, MessagesLost) for item in items
        )
        return Attachment(self._life, items, self._from_birth, known if same else None)

    def bind(self, hook: BridgedHook, attachment: Attachment) -> None:
        """Names the hook to feed and feeds it with the history. Its orders: those discharged in this life
        stay so; an engine that never published holds nothing; a life that began after the last one confirmed
        owes nothing older."""
        self._hook = hook
        self._take_all(attachment.items)
        if attachment.known is not None:
            hook.obligations.restore(attachment.known.discharged)
        elif attachment.from_birth and not attachment.items:
            hook.obligations.new_life(hook.installed)
        else:
            hook.obligations.new_life(self._confirmed_after)

    async def run(self) -> None:
        """Feeds the hook until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            async with self._lock:
                items = await self._source.receive(RECEIVE_S)
                self._take_all(items)
            # A confirmation may be waiting for the source.
            await asyncio.sleep(0)
            if self._source.has_replay and loop.time() - self._asked_s > WATCH_S:
                # No reader asks: look all the same, or a silent restart would go unnoticed.
                await self.confirm(WATCH_TIMEOUT_S)
            if items or loop.time() - self._remembered_s > REMEMBER_EVERY_S:
                self._remember(loop.time())

    # --- EnginePort ---------------------------------------------------------------------------------

    async def confirm(self, timeout_s: float) -> Confirmation:
        """See `EnginePort`: by a replay from the newest record held."""
        if not self._source.has_replay:
            return Confirmed(Basis.UNCONFIRMED)
        self._asked_s = asyncio.get_running_loop().time()
        async with self._lock:
            installed = self._hook.installed
            outcome = await self._source.confirm(timeout_s)
            self._take_all(outcome.items)
        if not isinstance(outcome, Answered):
            return Unanswered()
        self._confirmed_after = installed
        return Confirmed(Basis.PUBLISHED)

    async def remove(self, hashes: object, timeout_s: float) -> RemovalResult:
        """An engine without an agent removes nothing singly."""
        del hashes, timeout_s
        return RemovalResult(refused="no_delete_path", cure="install the agent in the engine")

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
        return None

    def load(self) -> Load | None:
        """Unknown without an agent."""
        return None

    # --- inside -------------------------------------------------------------------------------------

    def _take_all(self, items: tuple[SourceItem, ...] | list[SourceItem]) -> None:
        for item in items:
            match item:
                case EngineMessage():
                    self._message(item)
                case MessagesLost():
                    self.counts.lost_messages += item.last_seq - item.first_seq + 1
                    LOG.warning("engine messages %d to %d are lost", item.first_seq, item.last_seq)
                    self._hook.lost(item.first_seq, item.last_seq)
                case EngineRestarted():
                    LOG.warning("the engine shows another life: %s", item.sign.value)
                    self._new_life()
                case ForeignTopic():
                    self.counts.foreign_topics += 1
                    LOG.warning("another publisher's topic is left out")
                case UnreadableFrames():
                    self.counts.unreadable += 1
                    self._hook.unknown("frames", item.frame_count)

    def _new_life(self) -> None:
        self.counts.lives += 1
        self._life = self._make_life()
        self._from_birth = True
        # Another life answers on that address; that the old process is gone nobody has attested.
        self._hook.restarted(self._life, ended=False, born_after=self._confirmed_after)

    def _message(self, message: EngineMessage) -> None:
        if message.seq == 0 and not self._from_birth and self.counts.messages == 0:
            # Nothing was known of this engine, and here is its very first message.
            self._new_life()
        self.counts.messages += 1
        try:
            batch = decode_batch(message.seq, message.payload)
        except DecodeError as error:
            self.counts.unreadable += 1
            LOG.warning("engine message %d can't be read: %s", message.seq, error.reason)
            self._hook.unknown("batch", len(message.payload))
            self._hook.lost(message.seq, message.seq)
            return
        if batch.rank is not None and batch.rank != self._rank and self.counts.wrong_rank == 0:
            LOG.error("the engine says rank %d, this bridge was started for %d", batch.rank, self._rank)
        self.counts.wrong_rank += batch.rank is not None and batch.rank != self._rank
        self._hook.feed(batch, None)
        # Counted after the hook was fed, so that a counted clear is one that was numbered.
        self._clears += sum(isinstance(event, AllBlocksCleared) for event in batch.events)

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
