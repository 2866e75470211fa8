"""Client of an engine's replay socket: asks for all records from a sequence number on.

vLLM answers with one message a record and then an end mark, but cuts long answers without the mark when
they are not read at once, silently starts at its oldest record if asked for an older one, and leaves out
records it could not encode. The client makes one honest answer of it, in bounded time.
"""

from __future__ import annotations

import asyncio
import math
import struct
from dataclasses import dataclass
from typing import Self

import zmq
import zmq.asyncio

from events.errors import DecodeError
from events.hooks.engine_position import EngineMessage
from events.hooks.engine_wire import END_SEQ, decode_frames

MAX_MESSAGE_BYTES = 16 << 20
MAX_ATTEMPTS = 8
MAX_RECORDS = 20_000
MAX_BYTES = 64 << 20
"""One answer holds no more than this (the last record may exceed it); the rest is another question's."""
_YIELD_EVERY = 128


@dataclass(frozen=True, slots=True)
class ReplayAnswer:
    """What the engine still holds from `start` on.

    `records` have rising, not necessarily contiguous sequence numbers; the first may be above `start`
    (the engine's buffer begins later). `complete` says that the end mark came, so that nothing published
    before the answer is missing at the end; without it the records are valid but may be too few: the
    engine fell silent, or there are more than one answer may hold.
    `contradicted` says that a record changed between two attempts: another engine life answered.
    """

    start: int
    records: tuple[EngineMessage, ...]
    complete: bool
    contradicted: bool = False


class ReplayClient:
    """One DEALER to one replay endpoint; not for concurrent use.

    The socket is kept while answers end cleanly and replaced otherwise, so that a late answer to an old
    question is never taken for the answer to a new one.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        context: zmq.asyncio.Context,
        idle_timeout_s: float = 1.0,
        max_records: int = MAX_RECORDS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.endpoint = endpoint
        self._context = context
        self._idle_timeout_s = idle_timeout_s
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._socket: zmq.asyncio.Socket | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def connect(self) -> None:
        """Connects now rather than with the first question. Raises zmq.ZMQError for an address that is none."""
        self._connected()

    def close(self) -> None:
        """Drop the connection; the next `ask` opens another. Idempotent."""
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None

    async def ask(self, start: int, timeout_s: float) -> ReplayAnswer:
        """Ask for all records from `start` on; returns after at most `timeout_s`, never raises on silence.

        A cut or holed answer is asked for again from the newest record held: that record is asked for
        once more and its bytes compared, which shows a restart between the two questions. A hole that
        is still there the second time is the engine's own and stays visible in the sequence numbers.
        A question to which nothing comes is put again at half time, on a new connection: the old one's peer
        may have gone with it.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        half_time = loop.time() + timeout_s / 2
        records: list[EngineMessage] = []
        confirmed_hole = -1
        for _ in range(MAX_ATTEMPTS):
            held = records[-1] if records else None
            first_by = half_time if loop.time() < half_time else deadline
            first = start if held is None else held.seq
            batch, ended = await self._exchange(struct.pack(">Q", first), first_by, deadline, first=first)
            if held is not None:
                if batch[0] != held if batch else ended:
                    return ReplayAnswer(start, tuple(records), complete=False, contradicted=True)
                batch = batch[1:]
            hole = self._extend(records, batch, confirmed_hole)
            if hole is None and ended:
                return ReplayAnswer(start, tuple(records), complete=True)
            if hole is not None:
                confirmed_hole = hole
            if loop.time() >= deadline or self._full(records):
                break
        return ReplayAnswer(start, tuple(records), complete=False)

    async def snapshot(self, question: bytes, timeout_s: float) -> list[EngineMessage] | None:
        """The parts of an engine's snapshot, each under the number at which the stream goes on; None if it has
        none, didn't end it in time, or its parts don't agree on that number. Never raises on silence."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        parts, ended = await self._exchange(question, deadline, deadline, rising=False)
        if not ended or not parts or any(part.seq != parts[0].seq for part in parts):
            return None
        return parts

    def _full(self, records: list[EngineMessage]) -> bool:
        return len(records) >= self._max_records or sum(len(r.payload) for r in records) >= self._max_bytes

    @staticmethod
    def _extend(records: list[EngineMessage], batch: list[EngineMessage], confirmed_hole: int) -> int | None:
        """Append up to the first hole that isn't confirmed; return the number after which it opens."""
        for message in batch:
            if records and message.seq != records[-1].seq + 1 and records[-1].seq != confirmed_hole:
                return records[-1].seq
            records.append(message)
        return None

    async def _exchange(
        self, question: bytes, first_by: float, deadline: float, *, first: int = 0, rising: bool = True
    ) -> tuple[list[EngineMessage], bool]:
        """One question and what came for it, the first of it by `first_by`: records from `first` on, rising
        unless they needn't be, and whether the end mark came."""
        loop = asyncio.get_running_loop()
        received: list[EngineMessage] = []
        taken = size = 0
        clean = False
        try:
            socket = self._connected()
            await socket.send_multipart([b"", question], zmq.NOBLOCK)
            while True:
                try:
                    frames = await socket.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    left_s = (deadline if received else first_by) - loop.time()
                    if received:
                        left_s = min(left_s, self._idle_timeout_s)
                    # Rounded up: a wait that ends before its time would have the question put once more.
                    if left_s <= 0 or not await socket.poll(math.ceil(left_s * 1000)):
                        return received, False
                    continue
                taken += 1
                if taken % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)
                    if loop.time() >= deadline:
                        return received, False
                try:
                    topic, seq, payload = decode_frames(frames)
                except DecodeError:
                    continue
                if seq == END_SEQ:
                    clean = True
                    return received, True
                if not rising or seq >= (received[-1].seq + 1 if received else first):
                    received.append(EngineMessage(topic, seq, payload))
                    size += len(payload)
                    if len(received) >= self._max_records or size >= self._max_bytes:
                        return received, False
        except zmq.ZMQError:
            # Nothing can be sent there now, or it is no address at all.
            return received, False
        finally:
            if not clean:
                self.close()

    def _connected(self) -> zmq.asyncio.Socket:
        if self._socket is None:
            socket = self._context.socket(zmq.DEALER)
            socket.set(zmq.LINGER, 0)
            socket.set(zmq.RCVHWM, self._max_records)
            socket.set(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
            socket.set(zmq.RECONNECT_IVL, 50)
            socket.set(zmq.RECONNECT_IVL_MAX, 1000)
            self._socket = socket
            socket.connect(self.endpoint)
        return self._socket
