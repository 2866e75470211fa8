"""Messages that a subscription misses: filled by replay in their place, or reported lost there."""

from __future__ import annotations

import asyncio
import struct

from events.hooks.engine_source import Confirmed, MessagesLost, NoAnswer
from events.hooks.zmq_source import ZmqSource
from tests.support.engine_subscription import LONG_S, arrived, joined, publish, receive_until, seqs
from tests.support.fake_engine import FakeEngine


async def test_gap_is_filled_by_replay_in_order() -> None:
    async with FakeEngine() as engine, ZmqSource(engine.endpoint, engine.replay_endpoint) as source:
        await joined(source, engine)
        start = engine.next_seq
        engine.faults.drop_publications = 3
        await publish(engine, 5)
        items = await receive_until(source, lambda items: len(items) >= 5)
        assert seqs(items) == [start, start + 1, start + 2, start + 3, start + 4]


async def test_lost_tail_shows_at_the_next_confirmation() -> None:
    async with FakeEngine() as engine, ZmqSource(engine.endpoint, engine.replay_endpoint) as source:
        await joined(source, engine)
        start = engine.next_seq
        engine.faults.drop_publications = 2
        await publish(engine, 2)
        assert await source.receive(0.1) == []
        confirmed = await source.confirm(LONG_S)
        assert isinstance(confirmed, Confirmed)
        assert seqs(confirmed.items) == [start, start + 1]


async def test_message_that_vanished_everywhere_is_reported_lost_in_its_place() -> None:
    async with FakeEngine() as engine, ZmqSource(engine.endpoint, engine.replay_endpoint) as source:
        await joined(source, engine)
        start = engine.next_seq
        engine.faults.lose_publications = 2
        await publish(engine, 3)
        items = await receive_until(source, lambda items: len(items) >= 2)
        assert items[0] == MessagesLost(start, start + 1)
        assert seqs(items[1:]) == [start + 2]
        assert await source.confirm(LONG_S) == Confirmed(start + 2, ())


async def test_history_older_than_the_engines_buffer_is_reported_lost() -> None:
    async with FakeEngine(buffer_steps=4) as engine:
        await publish(engine, 10)
        async with ZmqSource(engine.endpoint, engine.replay_endpoint) as source:
            confirmed = await source.confirm(LONG_S)
        assert isinstance(confirmed, Confirmed)
        assert confirmed.items[0] == MessagesLost(0, 5)
        assert seqs(confirmed.items[1:]) == [6, 7, 8, 9]


async def test_what_the_subscription_holds_is_taken_before_a_short_buffer_is_asked() -> None:
    async with (
        FakeEngine(buffer_steps=10) as engine,
        ZmqSource(engine.endpoint, engine.replay_endpoint) as source,
    ):
        await joined(source, engine)
        start = engine.next_seq
        await publish(engine, 60)
        await arrived(source, start + 59)
        confirmed = await source.confirm(LONG_S)
        assert isinstance(confirmed, Confirmed)
        assert seqs(confirmed.items) == list(range(start, start + 60))


async def test_a_burst_of_three_hundred_lost_messages_is_replayed_in_order() -> None:
    async with FakeEngine() as engine, ZmqSource(engine.endpoint, engine.replay_endpoint) as source:
        await joined(source, engine)
        start = engine.next_seq
        engine.faults.drop_publications = 300
        await publish(engine, 301)
        items = await receive_until(source, lambda items: len(items) >= 301)
        assert seqs(items) == list(range(start, start + 301))


async def test_without_replay_nothing_is_confirmed_and_gaps_are_lost() -> None:
    async with FakeEngine() as engine, ZmqSource(engine.endpoint) as source:
        assert not source.has_replay
        assert await source.confirm(LONG_S) == NoAnswer(())
        async with asyncio.timeout(LONG_S):
            while not await source.receive(0.02):
                await engine.clear()
        await receive_until(source, lambda _: source.newest is not None)
        while await source.receive(0.05):
            pass
        engine.faults.drop_publications = 1
        start = engine.next_seq
        await publish(engine, 2)
        items = await receive_until(source, lambda items: len(items) >= 2)
        assert items[0] == MessagesLost(start, start)


async def test_ten_thousand_records_come_whole_and_in_time() -> None:
    async with FakeEngine() as engine, ZmqSource(engine.endpoint, engine.replay_endpoint) as source:
        for number in range(10_000):
            await engine.publish_raw(struct.pack(">I", number))
        confirmed = await source.confirm(6 * LONG_S)
        assert isinstance(confirmed, Confirmed)
        assert seqs(confirmed.items) == list(range(10_000))
