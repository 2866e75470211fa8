"""What an engine's old life sent arrives when its new life is known already: by replay, which is another wire."""

from __future__ import annotations

import asyncio

import pytest

from events.hooks.engine_position import EngineMessage
from events.hooks.engine_source import Confirmed, EngineRestarted, NewEngineLife, SourceItem
from events.hooks.zmq_source import ZmqSource
from tests.support.engine_subscription import LONG_S, arrived, joined, publish, receive_until, seqs, tokens
from tests.support.fake_engine import FakeEngine
from tests.support.held_wire import HeldWire


async def _held(wire: HeldWire) -> None:
    async with asyncio.timeout(LONG_S):
        while not wire.held:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("told_by", ["replay", "reader"])
@pytest.mark.parametrize("before", [0, 1, 3], ids=["ahead", "next", "used"])
@pytest.mark.parametrize("history_first", [True, False], ids=["behind its history", "before its history"])
async def test_a_message_of_the_old_life_that_comes_late_is_not_the_new_lifes(
    told_by: str, before: int, history_first: bool
) -> None:
    """Its number is ahead of the new life's, the next one there, or in use there with other bytes."""
    async with (
        FakeEngine() as engine,
        HeldWire(engine.endpoint) as wire,
        ZmqSource(wire.endpoint, engine.replay_endpoint) as source,
    ):
        await joined(source, engine)
        late = engine.next_seq
        wire.hold()
        await engine.store(tokens(777))
        await _held(wire)
        await engine.restart()
        await publish(engine, max(0, late - 1) if before == 0 else late + before - 1)
        if told_by == "replay":
            outcome = await source.confirm(LONG_S)
            assert isinstance(outcome, NewEngineLife)
            assert len(outcome.items) == 1
        else:
            source.ended()
        items: list[SourceItem] = []
        if history_first:
            items += (await source.confirm(LONG_S)).items
        wire.release()
        await arrived(source, late)
        items += await source.receive(LONG_S)
        confirmed = await source.confirm(LONG_S)
        assert isinstance(confirmed, Confirmed)
        items += confirmed.items
        history = list(range(engine.next_seq))
        assert seqs(items) == history
        # And the new life is followed: by replay until its own messages come, then without asking.
        items += await receive_until_live(source, engine)
        assert seqs(items) == list(range(engine.next_seq))
        asked = len(engine.replay_questions)
        start = engine.next_seq
        await publish(engine, 3)
        more = await receive_until(source, lambda found: len(found) >= 3)
        assert seqs(more) == [start, start + 1, start + 2]
        assert len(engine.replay_questions) == asked
        assert not any(isinstance(item, EngineRestarted) for item in items)


async def receive_until_live(source: ZmqSource, engine: FakeEngine) -> list[SourceItem]:
    """Publishes until a message has come by subscription; all that came."""
    items: list[SourceItem] = []
    async with asyncio.timeout(LONG_S):
        while not any(isinstance(item, EngineMessage) for item in items):
            await engine.clear()
            items += await source.receive(0.05)
    return items


async def test_while_replay_is_silent_nothing_is_taken_from_a_wire_that_may_hold_another_life() -> None:
    async with (
        FakeEngine() as engine,
        ZmqSource(
            engine.endpoint, engine.replay_endpoint, repair_timeout_s=0.1, repair_pause_s=0.1
        ) as source,
    ):
        await joined(source, engine)
        source.ended()
        engine.faults.silent_replay = True
        await publish(engine, 3)
        await arrived(source, engine.next_seq - 1)
        assert await source.receive(0.1) == []
        engine.faults.silent_replay = False
        confirmed = await source.confirm(LONG_S)
        assert isinstance(confirmed, Confirmed)
        assert seqs(confirmed.items) == list(range(engine.next_seq))


async def test_a_message_that_the_engine_never_heard_of_is_none_of_its() -> None:
    """A complete answer holds all that this life has published: a message that isn't in it is another life's."""
    async with FakeEngine() as engine, ZmqSource(engine.endpoint, engine.replay_endpoint) as source:
        await joined(source, engine)
        start = engine.next_seq
        assert engine._pub is not None
        await engine._pub.send_multipart([engine.topic.encode(), (start + 40).to_bytes(8, "big"), b"x"])
        await publish(engine, 2)
        items = await receive_until(source, lambda found: len(found) >= 2)
        assert seqs(items) == [start, start + 1]
        assert await source.confirm(LONG_S) == Confirmed(start + 1, ())
