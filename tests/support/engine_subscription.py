"""Steps of a test that subscribes to a fake engine: publish, wait until it has arrived, take what came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from events.hooks.engine_position import EngineMessage
from events.hooks.engine_source import Confirmed, SourceItem
from events.hooks.zmq_source import ZmqSource
from tests.support.fake_engine import FakeEngine

LONG_S = 10.0


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


async def arrived(source: ZmqSource) -> None:
    """Wait until what was published is in the subscription's queue; nothing is taken."""
    assert source.subscription.socket is not None
    async with asyncio.timeout(LONG_S):
        while not await source.subscription.socket.poll(10):
            pass
    # The rest of a burst follows on the same connection.
    await asyncio.sleep(0.1)


async def publish(engine: FakeEngine, count: int) -> None:
    for number in range(count):
        await engine.store(tokens(number + 1))
