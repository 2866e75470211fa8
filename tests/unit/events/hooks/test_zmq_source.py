"""Subscription and confirmation against the fake engine, over real sockets."""

from __future__ import annotations

import asyncio

import pytest
import zmq
import zmq.asyncio

from events.hooks.engine_event import BlockStored
from events.hooks.engine_position import EngineMessage
from events.hooks.engine_source import (
    Confirmed,
    EngineRestarted,
    ForeignTopic,
    NewEngineLife,
    NoAnswer,
    SourceItem,
    UnreadableFrames,
)
from events.hooks.vllm import decode_batch
from events.hooks.zmq_source import EngineAddressError, ZmqSource
from tests.support.capture import load_capture
from tests.support.engine_subscription import LONG_S, arrived, joined, publish, receive_until, seqs, tokens
from tests.support.fake_engine import FakeEngine
from tests.support.fake_engine_wire import WIRES


@pytest.mark.parametrize("version", sorted(WIRES))
async def test_late_subscriber_gets_history_then_live_in_one_order(version: str) -> None:
    async with (
        FakeEngine(version=version) as engine,
        ZmqSource(engine.endpoint, engine.replay_endpoint) as source,
    ):
        await publish(engine, 5)
        first = await source.confirm(LONG_S)
        assert isinstance(first, Confirmed)
        assert seqs(first.items) == [0, 1, 2, 3, 4]
        assert first.seq == 4
        await joined(source, engine)
        start = engine.next_seq
        await publish(engine, 3)
        items = await receive_until(source, lambda items: len(items) >= 3)
        assert seqs(items) == [start, start + 1, start + 2]
        message = items[0]
        assert isinstance(message, EngineMessage)
        (event,) = decode_batch(message.seq, message.payload).events
        assert isinstance(event, BlockStored)
        assert event.aligned
        again = await source.confirm(LONG_S)
        assert again == Confirmed(start + 2, ())


async def test_engine_that_has_published_nothing_is_confirmed_empty() -> None:
    async with FakeEngine() as engine, ZmqSource(engine.endpoint, engine.replay_endpoint) as source:
        assert await source.confirm(LONG_S) == Confirmed(None, ())


async def test_confirmation_returns_newer_messages_once() -> None:
    async with FakeEngine() as engine, ZmqSource(engine.endpoint, engine.replay_endpoint) as source:
        await joined(source, engine)
        start = engine.next_seq
        await publish(engine, 4)
        confirmed = await source.confirm(LONG_S)
        assert isinstance(confirmed, Confirmed)
        assert seqs(confirmed.items) == [start, start + 1, start + 2, start + 3]
        await engine.clear()
        # The four are still in the subscription's queue: only the fifth is new.
        assert seqs(await receive_until(source, bool)) == [start + 4]


async def test_confirmation_asks_from_the_newest_record_held() -> None:
    async with FakeEngine() as engine:
        await publish(engine, 3)  # Before anybody subscribes, so that nothing is held at first.
        async with ZmqSource(engine.endpoint, engine.replay_endpoint) as source:
            await source.confirm(LONG_S)
            await source.confirm(LONG_S)
        assert engine.replay_questions == [0, 2]


@pytest.mark.parametrize("endpoint", ["tcp://", "nonsense", "tcp://127.0.0.1:port"])
async def test_an_address_that_is_none_is_named_at_once(endpoint: str) -> None:
    for source in (ZmqSource(endpoint), ZmqSource("tcp://127.0.0.1:5557", endpoint)):
        with pytest.raises(EngineAddressError, match="is no address"):
            async with source:
                pass


async def test_a_cancelled_call_loses_nothing() -> None:
    async with FakeEngine() as engine, ZmqSource(engine.endpoint, engine.replay_endpoint) as source:
        await joined(source, engine)
        start = engine.next_seq
        await publish(engine, 3)
        await arrived(source, start + 2)
        engine.faults.silent_replay = True
        confirming = asyncio.create_task(source.confirm(LONG_S))
        asked = len(engine.replay_questions)
        async with asyncio.timeout(LONG_S):
            while len(engine.replay_questions) == asked:
                await asyncio.sleep(0.01)
        confirming.cancel()
        await asyncio.gather(confirming, return_exceptions=True)
        assert seqs(await source.receive(0)) == [start, start + 1, start + 2]


async def test_captured_stream_with_restarts_arrives_whole() -> None:
    captured = [one for one in load_capture("A_main") if one.channel == "pub"]
    async with FakeEngine() as engine, ZmqSource(engine.endpoint, engine.replay_endpoint) as source:
        await joined(source, engine)
        await engine.restart()
        outcome = await source.confirm(LONG_S)
        assert isinstance(outcome, NewEngineLife)
        received: list[bytes] = []
        restarts = 0
        for message in captured:
            # One at a time: what an engine published just before it died need not have been received.
            await engine.publish_captured(message)
            async with asyncio.timeout(LONG_S):
                while not received or received[-1] != message.payload:
                    items = (await source.confirm(LONG_S)).items
                    received.extend(item.payload for item in items if isinstance(item, EngineMessage))
                    restarts += sum(isinstance(item, EngineRestarted) for item in items)
        assert received == [one.payload for one in captured]
        assert restarts == 2


async def test_two_engines_on_one_bound_socket_are_told_apart_by_topic() -> None:
    async with ZmqSource("tcp://127.0.0.1:*", topic="kv@w1") as source:
        assert source.subscription.socket is not None
        address = source.subscription.socket.get(zmq.LAST_ENDPOINT)
        assert isinstance(address, bytes)
        endpoint = address.rstrip(b"\0").decode()
        assert endpoint.startswith("tcp://127.0.0.1:")
        async with (
            FakeEngine(connect_to=endpoint, topic="kv@w1") as ours,
            FakeEngine(connect_to=endpoint, topic="kv@w10") as other,
        ):
            items: list[SourceItem] = []
            async with asyncio.timeout(LONG_S):
                while not {"ForeignTopic"} < set(map(str, seqs(items))):
                    await ours.store(tokens(1))
                    await other.store(tokens(2))
                    items.extend(await source.receive(0.02))
        assert [item for item in items if isinstance(item, ForeignTopic)] == [ForeignTopic("kv@w10")]
        assert {item.topic for item in items if isinstance(item, EngineMessage)} == {"kv@w1"}


async def test_unreadable_frames_are_reported_and_harm_nothing() -> None:
    context = zmq.asyncio.Context()
    publisher = context.socket(zmq.PUB)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    async with ZmqSource(f"tcp://127.0.0.1:{port}") as source:
        items: list[SourceItem] = []
        async with asyncio.timeout(LONG_S):
            while not any(isinstance(item, EngineMessage) for item in items):
                await publisher.send_multipart([b"garbage"])
                await publisher.send_multipart([b"kv", b"123", b"p"])
                await publisher.send_multipart([b"kv", bytes(8), b"p"])
                items.extend(await source.receive(0.02))
        assert items[0] in {UnreadableFrames(1), UnreadableFrames(3)}
        assert EngineMessage("kv", 0, b"p") in items
    publisher.close(linger=0)
    context.term()


async def test_publisher_that_comes_late_and_goes_away_is_waited_for() -> None:
    async with FakeEngine() as engine:
        endpoint, replay = engine.endpoint, engine.replay_endpoint
    async with ZmqSource(endpoint, replay) as source:
        assert await source.receive(0.05) == []
        assert await source.confirm(0.1) == NoAnswer(())
        port, replay_port = (int(address.rpartition(":")[2]) for address in (endpoint, replay))
        async with FakeEngine(port=port, replay_port=replay_port) as engine:
            await joined(source, engine)
