"""Subscribes to one engine's event publisher and makes one gapless order of publications and replays.

A subscriber alone can't know that it missed a message until the next one, nor that the engine was
restarted; the replay socket closes both holes. `receive` repairs what it can and reports what it can't;
`confirm` is the question behind an echo: "is what I hold all that you have published?".
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

import zmq
import zmq.asyncio

from events.errors import DecodeError
from events.hooks.engine_position import EngineMessage, EnginePosition, Sighting
from events.hooks.replay import MAX_MESSAGE_BYTES, ReplayAnswer, ReplayClient
from events.hooks.vllm import END_SEQ, decode_frames

_QUEUE_MESSAGES = 10_000
"""Below the number of digests that a position remembers, so that a repeat in the queue is known as one."""


@dataclass(frozen=True, slots=True)
class MessagesLost:
    """Messages `first_seq`…`last_seq` were published and can't be had: the engine's inventory is unknown."""

    first_seq: int
    last_seq: int


class RestartSign(StrEnum):
    """How a new engine life showed."""

    SEQ_REUSED = "seq_reused"
    OTHER_BYTES = "other_bytes"
    NO_RECORD = "no_record"
    HISTORY_CUT = "history_cut"


@dataclass(frozen=True, slots=True)
class EngineRestarted:
    """A new engine life: all that was held before is void. What follows belongs to the new life.

    HISTORY_CUT (the engine's buffer begins after our newest record) may also be one life that ran far
    ahead; it is treated alike, because nothing can prove the contrary.
    """

    sign: RestartSign
    last_seq: int | None


@dataclass(frozen=True, slots=True)
class ForeignTopic:
    """Somebody else publishes here under `topic`; said once a topic, its messages are left out."""

    topic: str


@dataclass(frozen=True, slots=True)
class UnreadableFrames:
    """A message that isn't one of an engine (frame count only; never its bytes)."""

    frame_count: int


SourceItem = EngineMessage | MessagesLost | EngineRestarted | ForeignTopic | UnreadableFrames


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The engine answered with our newest record byte for byte; `items` are newer: number them, then echo.

    `seq` is the engine's newest sequence number, None if it has published nothing yet.
    """

    seq: int | None
    items: tuple[SourceItem, ...]


@dataclass(frozen=True, slots=True)
class NewEngineLife:
    """Our newest record isn't the engine's; `items` ends with the `EngineRestarted`. No echo: ask again."""

    items: tuple[SourceItem, ...]


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """No complete answer in time (or no replay socket). `items` are valid but may be too few: no echo."""

    items: tuple[SourceItem, ...]


Confirmation = Confirmed | NewEngineLife | NoAnswer


class ZmqSource:
    """One engine's event stream; used by one task at a time.

    `endpoint` is connected to, or, if it holds a `*`, bound: on the loopback address unless
    `bind_all_interfaces`. `topic` names the engine where several publish into one socket; empty takes
    the first topic that is seen. Without `replay_endpoint` nothing can be repaired or confirmed.
    Enter it as an async context manager; the sockets belong to the running loop.
    """

    def __init__(
        self,
        endpoint: str,
        replay_endpoint: str | None = None,
        topic: str = "",
        *,
        bind_all_interfaces: bool = False,
        repair_timeout_s: float = 2.0,
        repair_pause_s: float = 5.0,
    ) -> None:
        self.endpoint = endpoint
        self.topic: str | None = topic or None
        self._bind_all_interfaces = bind_all_interfaces
        self._repair_timeout_s = repair_timeout_s
        self._repair_pause_s = repair_pause_s
        self._repair_from_s = 0.0
        self._position = EnginePosition()
        self._foreign: set[str] = set()
        self._context = zmq.asyncio.Context()
        self._subscriber: zmq.asyncio.Socket | None = None
        self._replay = (
            ReplayClient(replay_endpoint, context=self._context) if replay_endpoint is not None else None
        )

    async def __aenter__(self) -> Self:
        self._subscribe()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all sockets. Idempotent; the source can't be used again."""
        if self._subscriber is not None:
            self._subscriber.close(linger=0)
            self._subscriber = None
        if self._replay is not None:
            self._replay.close()
        self._context.term()

    @property
    def has_replay(self) -> bool:
        """Whether confirmation is possible at all (`basis: published` rather than `unconfirmed`)."""
        return self._replay is not None

    @property
    def newest(self) -> EngineMessage | None:
        """The newest message handed out in this engine life."""
        return self._position.newest

    async def receive(self, timeout_s: float, limit: int = 256) -> list[SourceItem]:
        """Return what came, in the engine's order; empty after `timeout_s` of silence.

        Repeats are left out. A hole is filled by replay before what follows it is returned, or reported
        as `MessagesLost` in its place; this takes at most `repair_timeout_s` more, and after a replay
        without answer no other is tried for `repair_pause_s`. Messages are returned once: a caller that
        is cancelled meanwhile must start over with a new source.
        """
        items: list[SourceItem] = []
        subscriber = self._subscribe()
        if not await subscriber.poll(max(0, int(timeout_s * 1000))):
            return items
        for _ in range(limit):
            try:
                frames = await subscriber.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            try:
                topic, seq, payload = decode_frames(frames)
            except DecodeError:
                items.append(UnreadableFrames(len(frames)))
                continue
            if len(frames) != 3 or seq == END_SEQ:
                items.append(UnreadableFrames(len(frames)))
                continue
            if not self._is_ours(topic, items):
                continue
            items.extend(await self._accept(EngineMessage(topic, seq, payload)))
        return items

    async def replay(self, start: int, timeout_s: float) -> ReplayAnswer:
        """Ask for all records from `start` on; changes nothing here. Incomplete without a replay socket."""
        if self._replay is None:
            return ReplayAnswer(start, (), complete=False)
        return await self._replay.ask(start, timeout_s)

    async def confirm(self, timeout_s: float) -> Confirmation:
        """Ask the engine whether what was handed out is all it has published.

        The caller has numbered all that `receive` returned. It numbers the returned items first, and
        may echo what it saw *before* this call only after `Confirmed`. The question starts at the newest
        record held, so that another life can't pass for this one by its numbers. With nothing held the
        question is for all records: that is how a late subscriber gets its history.
        """
        held = self._position.newest
        answer = await self.replay(0 if held is None else held.seq, timeout_s)
        records = answer.records
        if held is not None:
            sign = _restart_sign(held, answer)
            if sign is not None:
                return NewEngineLife((await self._restart_behind_the_queue(sign),))
            records = records[1:]
        items = self._take_all(records)
        if answer.contradicted:
            items.append(await self._restart_behind_the_queue(RestartSign.OTHER_BYTES))
            return NewEngineLife(tuple(items))
        if not answer.complete:
            return NoAnswer(tuple(items))
        newest = self._position.newest
        return Confirmed(None if newest is None else newest.seq, tuple(items))

    async def _accept(self, message: EngineMessage) -> list[SourceItem]:
        """Place one published message, repairing the hole before it if there is one."""
        items: list[SourceItem] = []
        match self._position.sight(message):
            case Sighting.KNOWN:
                return items
            case Sighting.NEXT:
                return self._take_all((message,))
            case Sighting.RESTARTED:
                items.append(self._restart(RestartSign.SEQ_REUSED))
            case Sighting.AHEAD:
                pass
        if message.seq > self._position.next_seq:
            items.extend(await self._repair())
            if self._position.newest is None and items and isinstance(items[-1], EngineRestarted):
                # The repair found another life: take its history, then see what this message is in it.
                items.extend(await self._repair())
        if self._position.sight(message) in {Sighting.NEXT, Sighting.AHEAD}:
            items.extend(self._take_all((message,)))
        return items

    async def _repair(self) -> tuple[SourceItem, ...]:
        """Fill up by replay, unless the engine's replay was silent a short while ago."""
        loop = asyncio.get_running_loop()
        if self._replay is None or loop.time() < self._repair_from_s:
            return ()
        outcome = await self.confirm(self._repair_timeout_s)
        if isinstance(outcome, NoAnswer):
            self._repair_from_s = loop.time() + self._repair_pause_s
        return outcome.items

    def _take_all(self, records: tuple[EngineMessage, ...]) -> list[SourceItem]:
        items: list[SourceItem] = []
        for record in records:
            if record.seq > self._position.next_seq:
                items.append(MessagesLost(self._position.next_seq, record.seq - 1))
            self._position.take(record)
            items.append(record)
        return items

    def _restart(self, sign: RestartSign) -> EngineRestarted:
        newest = self._position.newest
        self._position.reset()
        return EngineRestarted(sign, None if newest is None else newest.seq)

    async def _restart_behind_the_queue(self, sign: RestartSign) -> EngineRestarted:
        """As `_restart`, when replay told it: what the subscription still holds may be the old life's.

        The new life's part of it comes again by replay, as the position is 0 now.
        """
        subscriber = self._subscribe()
        with contextlib.suppress(zmq.Again):
            for _ in range(_QUEUE_MESSAGES):
                await subscriber.recv_multipart(zmq.NOBLOCK)
        return self._restart(sign)

    def _is_ours(self, topic: str, items: list[SourceItem]) -> bool:
        if self.topic is None:
            self.topic = topic
        if topic == self.topic:
            return True
        if topic not in self._foreign and len(self._foreign) < 64:
            self._foreign.add(topic)
            items.append(ForeignTopic(topic))
        return False

    def _subscribe(self) -> zmq.asyncio.Socket:
        if self._subscriber is None:
            socket = self._context.socket(zmq.SUB)
            socket.set(zmq.LINGER, 0)
            socket.set(zmq.RCVHWM, _QUEUE_MESSAGES)
            socket.set(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
            socket.set(zmq.RECONNECT_IVL, 50)
            socket.set(zmq.RECONNECT_IVL_MAX, 1000)
            socket.set(zmq.HEARTBEAT_IVL, 5000)
            socket.set(zmq.HEARTBEAT_TIMEOUT, 15_000)
            socket.subscribe((self.topic or "").encode())
            if "*" in self.endpoint:
                host = "*" if self._bind_all_interfaces else "127.0.0.1"
                socket.bind(self.endpoint.replace("*", host, 1))
            else:
                socket.connect(self.endpoint)
            self._subscriber = socket
        return self._subscriber


def _restart_sign(held: EngineMessage, answer: ReplayAnswer) -> RestartSign | None:
    if not answer.records:
        return RestartSign.NO_RECORD if answer.complete else None
    first = answer.records[0]
    if first.seq != held.seq:
        return RestartSign.HISTORY_CUT
    return None if first.payload == held.payload else RestartSign.OTHER_BYTES
