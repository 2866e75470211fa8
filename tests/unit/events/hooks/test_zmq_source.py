"""Subscription, replay and confirmation against the fake engine, over real sockets."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable

import pytest
import zmq
import zmq.asyncio

from events.hooks.engine_event import BlockStored
from events.hooks.engine_position import Anchor, EngineMessage, digest
from events.hooks.replay import ReplayClient
from events.hooks.vllm import decode_batch
from events.hooks.zmq_source import (
    Confirmed,
    Continuity,
    EngineAddressError,
    EngineRestarted,
    ForeignTopic,
    MessagesLost,
    NewEngineLife,
    NoAnswer,
    RestartSign,
    SourceItem,
    UnreadableFrames,
    ZmqSource,
)
from tests.support.capture import load_capture
from tests.support.fake_engine import WIRES, FakeEngine

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
    assert source._subscriber is not None
    async with asyncio.timeout(LONG_S):
        while not await source._subscriber.poll(10):
            pass
    # The rest of a burst follows on the same connection.
    await asyncio.sleep(0.1)


async def publish(engine: FakeEngine, count: int) -> None:
    for number in range(count):
        await engine.store(tokens(number + 1))


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
        await arrived(source)
        confirmed = await source.confirm(LONG_S)
        assert isinstance(confirmed, Confirmed)
        assert seqs(confirmed.items) == list(range(start, start + 60))


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


async def test_a_burst_of_three_hundred_lost_messages_is_replayed_in_order() -> None:
    async with FakeEngine() as engine, ZmqSource(engine.endpoint, engine.replay_endpoint) as source:
        await joined(source, engine)
        start = engine.next_seq
        engine.faults.drop_publications = 300
        await publish(engine, 301)
        items = await receive_until(source, lambda items: len(items) >= 301)
        assert seqs(items) == list(range(start, start + 301))


async def test_an_answer_is_bounded_and_the_rest_is_another_questions() -> None:
    async with FakeEngine() as engine:
        await publish(engine, 40)
        context = zmq.asyncio.Context()
        async with ReplayClient(engine.replay_endpoint, context=context, max_records=16) as client:
            first = await client.ask(0, LONG_S)
            rest = await client.ask(30, LONG_S)
        async with ReplayClient(engine.replay_endpoint, context=context, max_bytes=1_000) as client:
            small = await client.ask(0, LONG_S)
        context.term()
        assert not first.complete
        assert [record.seq for record in first.records] == list(range(16))
        assert rest.complete
        assert not small.complete
        assert 1_000 <= sum(len(record.payload) for record in small.records) < 3_000


async def test_a_replay_peer_that_accepts_and_never_answers_costs_only_the_time_out() -> None:
    accepted: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: accepted.append(writer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with FakeEngine() as engine, ZmqSource(engine.endpoint, f"tcp://127.0.0.1:{port}") as source:
        started = time.monotonic()
        for _ in range(3):
            assert await source.confirm(0.2) == NoAnswer(())
        assert time.monotonic() - started < 2.0
        await until_live(source, engine)
    for writer in accepted:
        writer.close()
    server.close()
    await server.wait_closed()


async def test_a_name_that_does_not_resolve_stops_neither_the_live_stream_nor_the_end() -> None:
    async with FakeEngine() as engine:
        async with ZmqSource(engine.endpoint, "tcp://nobody.invalid:5558") as source:
            assert await source.confirm(0.2) == NoAnswer(())
            await until_live(source, engine)
            started = time.monotonic()
        assert time.monotonic() - started < 1.0


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
        await arrived(source)
        engine.faults.silent_replay = True
        confirming = asyncio.create_task(source.confirm(LONG_S))
        asked = len(engine.replay_questions)
        async with asyncio.timeout(LONG_S):
            while len(engine.replay_questions) == asked:
                await asyncio.sleep(0.01)
        confirming.cancel()
        await asyncio.gather(confirming, return_exceptions=True)
        assert seqs(await source.receive(0)) == [start, start + 1, start + 2]


async def test_silent_replay_gives_no_answer_in_bounded_time() -> None:
    async with FakeEngine() as engine, ZmqSource(engine.endpoint, engine.replay_endpoint) as source:
        await publish(engine, 2)
        engine.faults.silent_replay = True
        started = time.monotonic()
        silent = await source.confirm(0.3)
        assert isinstance(silent, NoAnswer)
        assert time.monotonic() - started < 2.0
        engine.faults.silent_replay = False
        confirmed = await source.confirm(LONG_S)
        assert isinstance(confirmed, Confirmed)
        assert seqs((*silent.items, *confirmed.items)) == [0, 1]


async def test_silent_replay_never_stops_the_live_stream() -> None:
    async with (
        FakeEngine() as engine,
        ZmqSource(engine.endpoint, engine.replay_endpoint, repair_timeout_s=0.2) as source,
    ):
        await joined(source, engine)
        engine.faults.silent_replay = True
        start = engine.next_seq
        for _ in range(3):
            engine.faults.drop_publications = 1
            await publish(engine, 2)
        items = await receive_until(source, lambda items: len(items) >= 6)
        assert seqs(items) == [
            "MessagesLost",
            start + 1,
            "MessagesLost",
            start + 3,
            "MessagesLost",
            start + 5,
        ]
        assert items[0] == MessagesLost(start, start)


async def test_absent_replay_peer_gives_no_answer_in_bounded_time() -> None:
    async with FakeEngine() as engine, ZmqSource(engine.endpoint, "tcp://127.0.0.1:9") as source:
        started = time.monotonic()
        assert await source.confirm(0.3) == NoAnswer(())
        assert time.monotonic() - started < 2.0


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


async def test_cut_replay_is_asked_again_from_the_last_record() -> None:
    async with FakeEngine() as engine:
        await publish(engine, 10)
        engine.faults.cut_replays = 2
        engine.faults.cut_replay_after = 4
        context = zmq.asyncio.Context()
        async with ReplayClient(engine.replay_endpoint, context=context, idle_timeout_s=0.1) as client:
            answer = await client.ask(0, LONG_S)
        context.term()
        assert answer.complete
        assert [record.seq for record in answer.records] == list(range(10))
        assert engine.replay_questions == [0, 3, 6]


async def test_replay_that_is_always_cut_ends_incomplete_with_what_came() -> None:
    async with FakeEngine() as engine:
        await publish(engine, 40)
        engine.faults.cut_replays = 1000
        engine.faults.cut_replay_after = 2
        context = zmq.asyncio.Context()
        async with ReplayClient(engine.replay_endpoint, context=context, idle_timeout_s=0.05) as client:
            answer = await client.ask(0, LONG_S)
        context.term()
        assert not answer.complete
        numbers = [record.seq for record in answer.records]
        assert numbers == list(range(len(numbers)))
        assert numbers


async def test_restart_between_two_attempts_of_one_replay_is_a_contradiction() -> None:
    async with FakeEngine() as engine:
        await publish(engine, 10)
        engine.faults.cut_replays = 1
        engine.faults.cut_replay_after = 4
        context = zmq.asyncio.Context()
        async with ReplayClient(engine.replay_endpoint, context=context, idle_timeout_s=0.3) as client:
            asked = asyncio.create_task(client.ask(0, LONG_S))
            async with asyncio.timeout(LONG_S):
                await engine.replay_asked.wait()
            await engine.restart()
            answer = await asked
        context.term()
        assert answer.contradicted
        assert not answer.complete


async def test_ten_thousand_records_come_whole_and_in_time() -> None:
    async with FakeEngine() as engine, ZmqSource(engine.endpoint, engine.replay_endpoint) as source:
        for number in range(10_000):
            await engine.publish_raw(struct.pack(">I", number))
        confirmed = await source.confirm(6 * LONG_S)
        assert isinstance(confirmed, Confirmed)
        assert seqs(confirmed.items) == list(range(10_000))


async def test_late_answer_to_an_old_question_is_not_taken_for_a_new_one() -> None:
    context = zmq.asyncio.Context()
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    async with ReplayClient(f"tcp://127.0.0.1:{port}", context=context) as client:
        assert not (await client.ask(0, 0.2)).complete
        # Asked again at half time, by another connection.
        first_client = (await router.recv_multipart())[0]
        old_client = (await router.recv_multipart())[0]
        assert first_client != old_client
        asked = asyncio.create_task(client.ask(7, LONG_S))
        new_client, _delimiter, start = await router.recv_multipart()
        assert start == struct.pack(">Q", 7)
        await router.send_multipart([old_client, b"", b"", struct.pack(">q", -1), b""])
        await router.send_multipart([new_client, b"", b"kv", start, b"record"])
        await router.send_multipart([new_client, b"", b"", struct.pack(">q", -1), b""])
        answer = await asked
    router.close(linger=0)
    context.term()
    assert answer.records == (EngineMessage("kv", 7, b"record"),)
    assert answer.complete


async def test_unanswered_question_is_put_twice_and_no_more() -> None:
    context = zmq.asyncio.Context()
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    try:
        async with ReplayClient(f"tcp://127.0.0.1:{port}", context=context) as client:
            for number in range(12):
                assert not (await client.ask(number, 0.1 + number / 5000)).complete
                for _ in range(2):
                    assert (await router.recv_multipart())[-1] == struct.pack(">Q", number)
                assert not await router.poll(20)
    finally:
        router.close(linger=0)
        context.term()


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
        assert source._subscriber is not None
        address = source._subscriber.get(zmq.LAST_ENDPOINT)
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
