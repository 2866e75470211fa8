"""An event socket and a replay socket that say exactly what a test wants, byte for byte."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable
from typing import Self

import zmq
import zmq.asyncio

Answer = Callable[[int], list[list[bytes]]]
"""The frames of each part of an answer to a question for all from a number on, the end mark among them."""


def numbered(seq: int, payload: bytes, topic: bytes = b"kv") -> list[bytes]:
    return [topic, struct.pack(">q", seq), payload]


END = numbered(-1, b"", b"")
SNAPSHOT = b"snapshot"
"""The question that vllm-project/vllm #50134 proposes."""


class RawEngine:
    """Publishes frames as they are, answers replay as `answer` says; by default with what was published."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes]] = []
        self.answer: Answer = self.honest
        self.snapshot: list[list[bytes]] = [END]
        self._context = zmq.asyncio.Context()

    async def __aenter__(self) -> Self:
        self._pub = self._context.socket(zmq.PUB)
        self._router = self._context.socket(zmq.ROUTER)
        for socket in (self._pub, self._router):
            socket.set(zmq.LINGER, 0)
            socket.bind("tcp://127.0.0.1:*")
        self.endpoint = self._pub.get_string(zmq.LAST_ENDPOINT)
        self.replay_endpoint = self._router.get_string(zmq.LAST_ENDPOINT)
        self._task = asyncio.create_task(self._serve())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._pub.close()
        self._router.close()
        self._context.term()

    async def publish(self, payload: bytes, *, topic: bytes = b"kv", seq: int | None = None) -> None:
        """Under the next number, and kept for replay, unless a number is given: then as it is."""
        number = seq
        if number is None:
            number = len(self.sent)
            self.sent.append((number, payload))
        await self._pub.send_multipart(numbered(number, payload, topic))

    async def send(self, *frames: bytes) -> None:
        await self._pub.send_multipart(frames)

    def honest(self, start: int) -> list[list[bytes]]:
        return [numbered(seq, payload) for seq, payload in self.sent if seq >= start] + [END]

    async def _serve(self) -> None:
        while True:
            who, _, question = await self._router.recv_multipart()
            answer = self.snapshot if question == SNAPSHOT else self.answer(int.from_bytes(question, "big"))
            for frames in answer:
                await self._router.send_multipart([who, b"", *frames])
