"""The doctor's prompts: new ones each time, and what the engine found of them however it says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from events.hooks.engine_http import EngineHttp
from kvledger.attachment.probe import ProbeError, Prober
from kvledger.attachment.report import read_report
from tests.support.fake_engine import FakeEngine


async def prober_of(engine: FakeEngine, rank: int = 0, *, wire_s: float = 20.0) -> Prober:
    http = EngineHttp(engine.http_url, rank=rank)
    return Prober(http, await read_report(http), rank, wire_s=wire_s)


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine(http_port=0) as entered:
        yield entered


async def test_a_prompt_is_new_and_found_the_second_time(engine: FakeEngine) -> None:
    prober = await prober_of(engine)
    tokens = await prober.prompt(73)
    assert tokens != await prober.prompt(73)
    first, second = await prober.send(tokens), await prober.send(tokens)
    assert (first.cached, second.cached, second.source, second.prompt_tokens) == (0, 64, "usage", 73)


async def test_an_engine_without_details_is_read_by_its_counters(engine: FakeEngine) -> None:
    engine.facts.details = False
    prober = await prober_of(engine)
    tokens = await prober.prompt(73)
    await prober.send(tokens)
    second = await prober.send(tokens)
    assert (second.cached, second.source) == (64, "metrics")


async def test_counters_say_nothing_while_others_are_served(engine: FakeEngine) -> None:
    engine.facts.details = False
    prober = await prober_of(engine)
    tokens = await prober.prompt(73)

    async def others() -> None:
        while True:
            await engine.complete([1] * 20)
            await asyncio.sleep(0)

    busy = asyncio.create_task(others())
    try:
        assert (await prober.send(tokens)).cached is None
    finally:
        busy.cancel()
        with suppress(asyncio.CancelledError):
            await busy


async def test_a_rank_is_asked_by_its_number(engine: FakeEngine) -> None:
    async with FakeEngine(rank=1) as second:
        engine.ranks.append(second)
        engine.facts.details = False
        prober = await prober_of(engine, 1)
        tokens = await prober.prompt(40)
        await prober.send(tokens)
        assert (await prober.send(tokens)).cached == 32
        assert (len(engine.served.prompts), len(second.served.prompts)) == (0, 2)


async def test_a_prompt_that_is_refused_is_an_error(engine: FakeEngine) -> None:
    prober = await prober_of(engine)
    with pytest.raises(ProbeError, match="400"):
        await prober.send([])
    with pytest.raises(ProbeError, match="503"):
        await prober.send([1] * 16 * 300)


async def test_the_wire_is_heard_with_its_topic_and_block_size(engine: FakeEngine) -> None:
    wire = await (await prober_of(engine)).watch_wire(engine.endpoint, 40)
    assert (wire.listening, wire.ours, wire.topic, wire.block_tokens) == (True, True, engine.topic, 16)


async def test_another_engines_wire_is_told_from_a_silent_and_a_dead_one(engine: FakeEngine) -> None:
    prober = await prober_of(engine, wire_s=2.0)
    async with FakeEngine(topic="other") as other:

        async def serve() -> None:
            while True:
                await other.complete([len(other.served.prompts) % 1_000] * 32)
                await asyncio.sleep(0.05)

        busy = asyncio.create_task(serve())
        try:
            wire = await prober.watch_wire(other.endpoint, 40)
        finally:
            busy.cancel()
            with suppress(asyncio.CancelledError):
                await busy
        assert (wire.listening, wire.ours, wire.topics) == (True, False, ("other",))
    assert not (await prober.watch_wire("tcp://127.0.0.1:1", 40)).listening
    engine.facts.publishes = False
    wire = await prober.watch_wire(engine.endpoint, 40)
    assert (wire.listening, wire.ours, wire.topics) == (True, False, ())
