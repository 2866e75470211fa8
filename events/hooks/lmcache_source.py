"""The batches of LMCache servers, sorted by server: what is new, what is missing, and who has begun anew."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from events.errors import DecodeError
from events.hooks.engine_position import Anchor, EngineMessage, digest
from events.hooks.engine_source import (
    Confirmation,
    Confirmed,
    Continuity,
    EngineRestarted,
    MessagesLost,
    NoAnswer,
    RestartSign,
    SourceItem,
    UnreadableFrames,
)
from events.hooks.lmcache import LmcacheBatch, decode_request

LOG = logging.getLogger(__name__)
ITEMS_KEPT = 10_000
BYTES_KEPT = 64 << 20
"""What waits for a bridge. A transport that keeps its batches waits, too; what another one brings beyond is told
as lost."""

ReadToEnd = Callable[[float], Awaitable[bool]]
"""Reads what its transport holds when asked, within so many seconds; False if it couldn't."""


@dataclass(slots=True)
class Offered:
    """What became of the batches of one request, in LMCache's own words."""

    applied: int = 0
    duplicates: int = 0
    stale: int = 0


class LmcacheSource:
    """An `EngineSource` over one server's batches. `read_to_end`: of a transport that keeps them; without one
    nothing is ever confirmed."""

    def __init__(self, instance: str, read_to_end: ReadToEnd | None = None) -> None:
        self.instance = instance
        self.continuity = Continuity.UNASKED
        self._read_to_end = read_to_end
        self._incarnation = -1
        self._newest: EngineMessage | None = None
        self._anchor: Anchor | None = None
        self._handed_out = False
        self._overrun: int | None = None
        self._items: list[SourceItem] = []
        self._bytes = 0
        self._arrived = asyncio.Event()
        self.room = asyncio.Event()
        self.room.set()

    @property
    def has_replay(self) -> bool:
        return self._read_to_end is not None

    @property
    def newest(self) -> EngineMessage | None:
        return self._newest

    def resume(self, anchor: Anchor) -> None:
        self._anchor = anchor

    def ended(self) -> None:
        self._newest = self._anchor = None

    def offer(self, batch: LmcacheBatch, offered: Offered) -> None:
        """Takes a batch unless it is older than what was taken. LMCache numbers from 1, a source from 0."""
        seq = batch.seq - 1
        if batch.incarnation < self._incarnation:
            offered.stale += 1
            return
        if batch.incarnation > self._incarnation:
            self._begin(batch.incarnation)
        due = 0 if self._newest is None else self._newest.seq + 1
        if seq < due:
            offered.duplicates += 1
            return
        offered.applied += 1
        message = EngineMessage(self.instance, seq, batch.body)
        if seq > due and self._overrun is None:
            self._put(MessagesLost(due, seq - 1))
        self._newest = message
        if self._anchor is not None and self._anchor.seq == seq:
            same = self._anchor.digest == digest(batch.body)
            self.continuity, self._anchor = (Continuity.SAME if same else Continuity.OTHER), None
        if not self.room.is_set():
            self._overrun = seq if self._overrun is None else self._overrun
            return
        self._bytes += len(batch.body)
        self._put(message)
        if len(self._items) >= ITEMS_KEPT or self._bytes >= BYTES_KEPT:
            self.room.clear()

    def unreadable(self) -> None:
        """Something came that must have been this server's."""
        self._put(UnreadableFrames(1))

    async def receive(self, timeout_s: float) -> list[SourceItem]:
        if not self._items:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._arrived.wait()
            except TimeoutError:
                return []
        return self._hand_out()

    async def snapshot(self, timeout_s: float) -> list[EngineMessage] | None:
        """LMCache's servers send none to their coordinator."""
        del timeout_s
        return None

    async def confirm(self, timeout_s: float) -> Confirmation:
        whole = self._read_to_end is not None and await self._read_to_end(timeout_s)
        if whole and self._anchor is not None:
            # All that is kept was read, and the record isn't there: it may be older than what is kept.
            self._anchor, self.continuity = None, Continuity.UNKNOWABLE
        items = tuple(self._hand_out())
        if not whole:
            return NoAnswer(items)
        return Confirmed(None if self._newest is None else self._newest.seq, items)

    def _begin(self, incarnation: int) -> None:
        """The server was started anew: its own memory is empty."""
        first = self._incarnation < 0
        last = None if self._newest is None else self._newest.seq
        self._incarnation, self._newest, self._overrun = incarnation, None, None
        if first:
            return
        if self._handed_out or self._anchor is not None or self.continuity is not Continuity.UNASKED:
            self._put(EngineRestarted(RestartSign.NAMED, last))
        else:
            # Nobody has seen anything of what was before.
            self._items.clear()
            self._bytes = 0
            self.room.set()

    def _put(self, item: SourceItem) -> None:
        self._items.append(item)
        self._arrived.set()

    def _hand_out(self) -> list[SourceItem]:
        items, self._items = self._items, []
        self._bytes = 0
        self.room.set()
        if self._overrun is not None and self._newest is not None:
            items.append(MessagesLost(self._overrun, self._newest.seq))
            self._overrun = None
        self._handed_out = self._handed_out or bool(items)
        self._arrived.clear()
        return items


class LmcacheIntake:
    """Where all batches of a coordinator's topic or door arrive; servers that nobody asked for are told once."""

    def __init__(self) -> None:
        self.unreadable = 0
        self._sources: dict[str, list[LmcacheSource]] = {}
        self._strangers: set[str] = set()

    def add(self, source: LmcacheSource) -> None:
        """One server may have several sources: one for each model that it serves."""
        self._sources.setdefault(source.instance, []).append(source)

    @property
    def full(self) -> LmcacheSource | None:
        """A source that has no room, if there is one; its `room` tells when it has."""
        return next((s for sources in self._sources.values() for s in sources if not s.room.is_set()), None)

    def offer(self, body: bytes, *, server: str | None = None) -> Offered:
        """Sorts one request's batches. `server`: whose it is, where its transport knows that. Raises DecodeError
        ("lmcache_request") for a body that is none, after having told the server's sources."""
        offered = Offered()
        try:
            batches, lost = decode_request(body)
        except DecodeError:
            self._lose(server)
            raise
        if lost:
            self._lose(server)
        for batch in batches:
            sources = self._sources.get(batch.instance)
            if sources is None:
                self._stranger(batch.instance)
                continue
            for source in sources[1:]:
                source.offer(batch, Offered())
            sources[0].offer(batch, offered)
        return offered

    def _lose(self, server: str | None) -> None:
        self.unreadable += 1
        LOG.error("cache events of LMCache server %s can't be read", server or "unknown")
        for source in self._sources.get(server or "", ()):
            source.unreadable()

    def _stranger(self, instance: str) -> None:
        if instance not in self._strangers and len(self._strangers) < 64:
            self._strangers.add(instance)
            LOG.warning("LMCache server %s sends cache events, and no engine is configured for it", instance)
