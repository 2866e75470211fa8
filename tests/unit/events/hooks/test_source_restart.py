"""An engine's new life, told from a loss and from what came late, however it shows."""

from __future__ import annotations

import asyncio
import struct

import pytest

from events.hooks.engine_position import Anchor, digest
from events.hooks.engine_source import (
    Confirmed,
    Continuity,
    EngineRestarted,
    MessagesLost,
    NewEngineLife,
    RestartSign,
    SourceItem,
)
from events.hooks.zmq_source import ZmqSource
from tests.support.engine_subscription import LONG_S, joined, publish, receive_until, seqs, tokens
from tests.support.fake_engine import FakeEngine


async def test_a_message_that_a_replay_overtook_is_no_restart() -> None:
    async with FakeEngine(buffer_steps=4) as engine:
        await publish(engine, 10)
        async with ZmqSource(engine.endpoint, engine.replay_endpoint) as source:
            assert isinstance(await source.confirm(LONG_S), Confirmed)
            async with asyncio.timeout(LONG_S):
                late: list[SourceItem] = []
                while not late:
                    # As if they had been on their way while the engine's buffer was read.
                    for seq in (3, 4, 5):
                        await engine._pub.send_multipart(  # type: ignore[union-attr]
                            [engine.topic.encode(), struct.pack(">Q", seq), b"late"]
                        )
                    await engine.store(tokens(50))
                    late = await source.receive(0.05)
            assert not [item for item in late if isinstance(item, EngineRestarted)]
            assert isinstance(await source.confirm(LONG_S), Confirmed)


async def test_an_old_number_of_another_life_is_a_restart() -> None:
    async with FakeEngine(buffer_steps=4) as engine:
        await publish(engine, 10)
        async with ZmqSource(engine.endpoint, engine.replay_endpoint) as source:
            assert isinstance(await source.confirm(LONG_S), Confirmed)
            await engine.restart()
            async with asyncio.timeout(LONG_S):
                items: list[SourceItem] = []
                while not items:
                    await engine.store(tokens(50))
                    items = await source.receive(0.05)
            assert items[0] == EngineRestarted(RestartSign.NO_RECORD, 9)


async def test_buffer_that_ran_past_our_record_is_never_confirmed() -> None:
    async with (
        FakeEngine(buffer_steps=4) as engine,
        ZmqSource(engine.endpoint, engine.replay_endpoint) as source,
    ):
        await publish(engine, 2)
        await source.confirm(LONG_S)
        engine.faults.drop_publications = 10
        await publish(engine, 10)
        outcome = await source.confirm(LONG_S)
        assert outcome == NewEngineLife((EngineRestarted(RestartSign.HISTORY_CUT, 1),))


async def test_restart_with_lower_numbers_shows_on_the_live_stream() -> None:
    async with FakeEngine() as engine, ZmqSource(engine.endpoint, engine.replay_endpoint) as source:
        await joined(source, engine)
        await publish(engine, 200)
        await receive_until(source, lambda items: len(items) >= 200)
        held = engine.next_seq - 1
        await engine.restart()
        async with asyncio.timeout(LONG_S):
            items: list[SourceItem] = []
            while not items:
                await engine.store(tokens(999))
                items = await source.receive(0.05)
        assert items[0] == EngineRestarted(RestartSign.SEQ_REUSED, held)
        assert seqs(items[1:])[0] == 0


async def test_restart_shows_at_confirmation_by_other_bytes() -> None:
    async with FakeEngine() as engine, ZmqSource(engine.endpoint, engine.replay_endpoint) as source:
        await publish(engine, 3)
        await source.confirm(LONG_S)
        await engine.restart()
        engine.faults.drop_publications = 6
        await publish(engine, 6)
        outcome = await source.confirm(LONG_S)
        assert outcome == NewEngineLife((EngineRestarted(RestartSign.OTHER_BYTES, 2),))
        after = await source.confirm(LONG_S)
        assert isinstance(after, Confirmed)
        assert seqs(after.items) == [0, 1, 2, 3, 4, 5]


async def test_restart_shows_at_confirmation_by_no_record() -> None:
    async with FakeEngine() as engine, ZmqSource(engine.endpoint, engine.replay_endpoint) as source:
        await publish(engine, 3)
        await source.confirm(LONG_S)
        await engine.restart()
        outcome = await source.confirm(LONG_S)
        assert outcome == NewEngineLife((EngineRestarted(RestartSign.NO_RECORD, 2),))
        assert await source.confirm(LONG_S) == Confirmed(None, ())


async def test_restart_that_ran_ahead_while_we_were_away_is_no_gap() -> None:
    async with FakeEngine() as engine, ZmqSource(engine.endpoint, engine.replay_endpoint) as source:
        await joined(source, engine)
        held = engine.next_seq - 1
        await engine.restart()
        engine.faults.drop_publications = held + 5
        await publish(engine, held + 5)
        async with asyncio.timeout(LONG_S):
            items: list[SourceItem] = []
            while not items:
                await engine.store(tokens(99))
                items = await source.receive(0.05)
        assert items[0] == EngineRestarted(RestartSign.OTHER_BYTES, held)
        numbers = seqs(items[1:])
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= held + 6


async def test_a_restart_behind_a_loss_that_nobody_could_fill_shows_once_replay_answers() -> None:
    async with (
        FakeEngine() as engine,
        ZmqSource(engine.endpoint, engine.replay_endpoint, repair_timeout_s=0.2) as source,
    ):
        await joined(source, engine)
        held = engine.next_seq - 1
        await engine.restart()
        engine.faults.silent_replay = True
        engine.faults.drop_publications = held + 4
        await publish(engine, held + 4)
        async with asyncio.timeout(LONG_S):
            items: list[SourceItem] = []
            while not items:
                await engine.store(tokens(99))
                items = await source.receive(0.05)
        assert items[0] == MessagesLost(held + 1, items[1].seq - 1)  # type: ignore[union-attr]
        engine.faults.silent_replay = False
        outcome = await source.confirm(LONG_S)
        assert isinstance(outcome, NewEngineLife)
        assert [item for item in outcome.items if isinstance(item, EngineRestarted)] == [
            EngineRestarted(RestartSign.OTHER_BYTES, items[-1].seq)  # type: ignore[union-attr]
        ]
        after = await source.confirm(LONG_S)
        assert isinstance(after, Confirmed)
        assert seqs(after.items) == list(range(engine.next_seq))


async def test_a_loss_within_one_life_is_no_restart_once_replay_answers() -> None:
    async with (
        FakeEngine() as engine,
        ZmqSource(engine.endpoint, engine.replay_endpoint, repair_timeout_s=0.2) as source,
    ):
        await joined(source, engine)
        engine.faults.silent_replay = True
        engine.faults.drop_publications = 2
        await publish(engine, 3)
        items = await receive_until(source, lambda items: len(items) >= 2)
        assert isinstance(items[0], MessagesLost)
        engine.faults.silent_replay = False
        assert await source.confirm(LONG_S) == Confirmed(engine.next_seq - 1, ())
        asked = engine.replay_questions[-1]
        assert asked < engine.next_seq - 1
        assert isinstance(await source.confirm(LONG_S), Confirmed)
        assert engine.replay_questions[-1] == engine.next_seq - 1


@pytest.mark.parametrize("buffer_steps", [1_000, 4])
async def test_a_reader_that_comes_back_knows_whether_it_is_the_same_life(buffer_steps: int) -> None:
    async with FakeEngine(buffer_steps=buffer_steps) as engine:
        await publish(engine, 3)
        async with ZmqSource(engine.endpoint, engine.replay_endpoint) as source:
            await source.confirm(LONG_S)
            assert source.newest is not None
            anchor = Anchor(source.newest.seq, digest(source.newest.payload))
        await publish(engine, 5)
        async with ZmqSource(engine.endpoint, engine.replay_endpoint) as source:
            source.resume(anchor)
            assert isinstance(await source.confirm(LONG_S), Confirmed)
            same = Continuity.SAME if buffer_steps > 8 else Continuity.UNKNOWABLE
            assert source.continuity is same
        await engine.restart()
        for count in (0, 12):
            async with ZmqSource(engine.endpoint, engine.replay_endpoint) as source:
                source.resume(anchor)
                outcome = await source.confirm(LONG_S)
                if buffer_steps > 8 or count == 0:
                    assert source.continuity is Continuity.OTHER
                    assert isinstance(outcome, NewEngineLife)
                    assert isinstance(outcome.items[0], EngineRestarted)
                    assert seqs(outcome.items[1:]) == list(range(engine.next_seq))
                else:
                    assert source.continuity is Continuity.UNKNOWABLE
            await publish(engine, 12)
