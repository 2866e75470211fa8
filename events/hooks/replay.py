"""Client of an engine's replay socket: asks for all records from a sequence number on.

vLLM answers with one message a record and then an end mark, but cuts long answers without the mark when
they are not read at once, silently starts at its oldest record if asked for an older one, and leaves out
records it could not encode. The client makes one honest answer of it, in bounded time.
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass
from typing import Self

import zmq
import zmq.asyncio

from events.errors import DecodeError
from events.hooks.engine_position import EngineMessage
from events.hooks.vllm import END_SEQ, decode_frames

MAX_MESSAGE_BYTES = 64 << 20
MAX_ATTEMPTS = 8
_YIELD_EVERY = 128


@dataclass(frozen=True, slots=True)
class ReplayAnswer:
    """What the engine still holds from `start` on.

    `records` have rising, not necessarily contiguous sequence numbers; the first may be above `start`
    (the engine's buffer begins later). `complete` says that the end mark came, so that nothing published
    before the answer is missing at the end; without it the records are valid but may be too few.
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

    def __init__(self, endpoint: str, *, context: zmq.asyncio.Context, idle_timeout_s: float = 1.0) -> None:
        self.endpoint = endpoint
        self._context = context
        self._idle_timeout_s = idle_timeout_s
        self._socket: zmq.asyncio.Socket | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

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
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        records: list[EngineMessage] = []
        confirmed_hole = -1
        for _ in range(MAX_ATTEMPTS):
            held = records[-1] if records else None
            batch, ended = await self._exchange(start if held is None else held.seq, deadline)
            if held is not None:
                if batch[0] != held if batch else ended:
                    return ReplayAnswer(start, tuple(records), complete=False, contradicted=True)
                batch = batch[1:]
            hole = self._extend(records, batch, confirmed_hole)
            if hole is None and ended:
                return ReplayAnswer(start, tuple(records), complete=True)
            if hole is not None:
                confirmed_hole = hole
            if loop.time() >= deadline:
                break
        return ReplayAnswer(start, tuple(records), complete=False)

    @staticmethod
    def _extend(records: list[EngineMessage], batch: list[EngineMessage], confirmed_hole: int) -> int | None:
        """Append up to the first hole that isn't confirmed; return the number after which it opens."""
        for message in batch:
            if records and message.seq != records[-1].seq + 1 and records[-1].seq != confirmed_hole:
                return records[-1].seq
            records.append(message)
        return None

    async def _exchange(self, start: int, deadline: float) -> tuple[list[EngineMessage], bool]:
        """One question and what came for it: rising records, and whether the end mark came."""
        loop = asyncio.get_running_loop()
        socket = self._connected()
        received: list[EngineMessage] = []
        taken = 0
        clean = False
        try:
            await socket.send_multipart([b"", struct.pack(">Q", start)], zmq.NOBLOCK)
            while True:
                try:
                    frames = await socket.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    left_s = deadline - loop.time()
                    if received:
                        left_s = min(left_s, self._idle_timeout_s)
                    if left_s <= 0 or not await socket.poll(max(1, int(left_s * 1000))):
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
                if seq >= (received[-1].seq + 1 if received else start):
                    received.append(EngineMessage(topic, seq, payload))
        except zmq.Again:
            return received, False
        finally:
            if not clean:
                self.close()

    def _connected(self) -> zmq.asyncio.Socket:
        if self._socket is None:
            socket = self._context.socket(zmq.DEALER)
            socket.set(zmq.LINGER, 0)
            socket.set(zmq.RCVHWM, 0)
            socket.set(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
            socket.set(zmq.RECONNECT_IVL, 50)
            socket.set(zmq.RECONNECT_IVL_MAX, 1000)
            socket.connect(self.endpoint)
            self._socket = socket
        return self._socket
