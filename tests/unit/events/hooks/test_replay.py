"""Replay: bounded answers, cut ones, late ones, and peers that are silent, absent or nameless."""

from __future__ import annotations

import asyncio
import struct
import time

import zmq
import zmq.asyncio

from events.hooks.engine_position import EngineMessage
from events.hooks.engine_source import Confirmed, MessagesLost, NoAnswer
from events.hooks.replay import ReplayClient
from events.hooks.zmq_source import ZmqSource
from tests.support.engine_subscription import LONG_S, joined, publish, receive_until, seqs, until_live
from tests.support.fake_engine import FakeEngine

SOON_S = 5.0
"""More than any time-out here, on a machine that has other things to do; less than a wait for the peer would take."""


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
        assert time.monotonic() - started < SOON_S
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
        assert time.monotonic() - started < SOON_S


async def test_silent_replay_gives_no_answer_in_bounded_time() -> None:
    async with FakeEngine() as engine, ZmqSource(engine.endpoint, engine.replay_endpoint) as source:
        await publish(engine, 2)
        engine.faults.silent_replay = True
        started = time.monotonic()
        silent = await source.confirm(0.3)
        assert isinstance(silent, NoAnswer)
        assert time.monotonic() - started < SOON_S
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
        assert time.monotonic() - started < SOON_S


async def test_cut_replay_is_asked_again_from_the_last_record() -> None:
    async with FakeEngine() as engine:
        await publish(engine, 10)
        engine.faults.cut_replays = 2
        engine.faults.cut_replay_after = 4
        context = zmq.asyncio.Context()
        async with ReplayClient(engine.replay_endpoint, context=context, idle_timeout_s=0.5) as client:
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


async def test_late_answer_to_an_old_question_is_not_taken_for_a_new_one() -> None:
    context = zmq.asyncio.Context()
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    async with ReplayClient(f"tcp://127.0.0.1:{port}", context=context) as client, asyncio.timeout(LONG_S):
        asked = asyncio.create_task(client.ask(0, 2.0))
        # Asked again at half time, by another connection.
        first_client = (await router.recv_multipart())[0]
        old_client = (await router.recv_multipart())[0]
        assert first_client != old_client
        assert not (await asked).complete
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
        async with ReplayClient(f"tcp://127.0.0.1:{port}", context=context) as client, asyncio.timeout(60):
            asked = asyncio.create_task(client.ask(0, 2.0))
            for _ in range(2):
                assert (await router.recv_multipart())[-1] == struct.pack(">Q", 0)
            assert not (await asked).complete
            assert not await router.poll(20)
            # Time-outs that are no whole milliseconds. Who wakes up late may have put it only once.
            for number in range(1, 12):
                assert not (await client.ask(number, 0.1 + number / 5000)).complete
                seen = 0
                while await router.poll(20):
                    seen += (await router.recv_multipart())[-1] == struct.pack(">Q", number)
                assert seen <= 2
    finally:
        router.close(linger=0)
        context.term()
