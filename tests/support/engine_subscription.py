"""Steps of a test that subscribes to a fake engine: publish, wait until it has arrived, take what came."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import cast

import zmq.asyncio

from events.hooks.engine_position import EngineMessage
from events.hooks.engine_source import Confirmed, SourceItem
from events.hooks.zmq_source import ZmqSource
from tests.support.fake_engine import FakeEngine

LONG_S = 30.0


def tokens(seed: int, blocks: int = 2) -> list[int]:
    return list(range(seed * 1000, seed * 1000 + 16 * blocks))


def seqs(items: list[SourceItem] | tuple[SourceItem, ...]) -> list[int | str]:
    """Numbers of the messages; the names of everything else."""
    return [item.seq if isinstance(item, EngineMessage) else type(item).__name__ for item in items]


async def receive_until(source: ZmqSource, done: Callable[[list[SourceItem]], bool]) -> list[SourceItem]:
    items: list[SourceItem] = []
    async with asyncio.timeout(LONG_S):
        while not done(items):
            items.extend(await source.receive(0.05))
    return items


async def joined(source: ZmqSource, engine: FakeEngine) -> None:
    """Wait until the subscription is in place: publish until one message comes by it."""
    async with asyncio.timeout(LONG_S):
        while not await source.receive(0.02):
            await engine.clear()
    assert isinstance(await source.confirm(LONG_S), Confirmed)


async def until_live(source: ZmqSource, engine: FakeEngine) -> None:
    """Wait until a message comes by subscription alone."""
    async with asyncio.timeout(LONG_S):
        while not any(isinstance(item, EngineMessage) for item in await source.receive(0.02)):
            await engine.clear()


async def arrived(source: ZmqSource, seq: int) -> None:
    """Wait until the message of this number is in the subscription's queue, with all before it; nothing is taken."""
    socket = source.subscription.socket
    assert socket is not None
    frames: list[list[bytes]] = []
    async with asyncio.timeout(LONG_S):
        while not frames or frames[-1][1] != struct.pack(">Q", seq):
            frames.append(await socket.recv_multipart())
    source.subscription.socket = cast("zmq.asyncio.Socket", Refilled(socket, frames))


class Refilled:
    """A socket into whose queue was put back what had been taken, for a reader that doesn't wait."""

    def __init__(self, socket: zmq.asyncio.Socket, frames: list[list[bytes]]) -> None:
        self._socket = socket
        self._frames = frames

    async def poll(self, timeout_ms: int) -> bool:
        return bool(self._frames) or bool(await self._socket.poll(timeout_ms))

    async def recv_multipart(self, flags: int) -> list[bytes]:
        return self._frames.pop(0) if self._frames else await self._socket.recv_multipart(flags)

    def close(self, linger: int) -> None:
        self._socket.close(linger=linger)


async def publish(engine: FakeEngine, count: int) -> None:
    for number in range(count):
        await engine.store(tokens(number + 1))
