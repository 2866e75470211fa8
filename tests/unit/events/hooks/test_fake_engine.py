"""The fake engine says what its pool holds, and runs alone as a process."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from typing import Any

import httpx
import pytest

from events.hooks.engine_event import AllBlocksCleared, BlockRemoved, BlockStored, EngineEvent
from events.hooks.engine_position import EngineMessage
from events.hooks.engine_source import Confirmed
from events.hooks.engine_wire import engine_hash
from events.hooks.vllm import decode_batch
from events.hooks.zmq_source import ZmqSource
from tests.support.fake_engine import FakeEngine

LONG_S = 20.0


def tokens(seed: int, blocks: int = 2) -> list[int]:
    return list(range(seed * 1000, seed * 1000 + 16 * blocks))


async def everything(engine: FakeEngine) -> list[EngineEvent]:
    async with ZmqSource(engine.endpoint, engine.replay_endpoint) as source:
        confirmed = await source.confirm(LONG_S)
    assert isinstance(confirmed, Confirmed)
    return [
        event
        for item in confirmed.items
        if isinstance(item, EngineMessage)
        for event in decode_batch(item.seq, item.payload).events
    ]


def copies(events: list[EngineEvent]) -> Counter[bytes]:
    held: Counter[bytes] = Counter()
    for event in events:
        match event:
            case BlockStored():
                held.update(event.hashes)
            case BlockRemoved():
                held.subtract(event.hashes)
                assert min(held.values()) >= 0
            case AllBlocksCleared():
                held.clear()
            case _:
                pytest.fail(f"unexpected {event}")
    return +held


async def test_events_fold_to_what_the_pool_holds_through_evictions_and_duplicates() -> None:
    async with FakeEngine(blocks=24) as engine:
        for seed in [1, 2, 1, 3, 4, 1, 5, 6, 7, 1, 1]:
            await engine.complete(tokens(seed, 3), generate=range(20), salt="s" if seed % 2 else None)
        events = await everything(engine)
        truth = Counter(
            {
                bytes(engine_hash(engine.wire_hash(one))): engine.pool.resident(one)
                for one in engine.pool.blocks_of
            }
        )
    assert copies(events) == truth
    assert any(isinstance(event, BlockRemoved) for event in events)
    assert max(truth.values()) > 1


async def test_aligned_prompt_sent_again_stores_its_last_block_again() -> None:
    async with FakeEngine() as engine:
        first = await engine.complete(tokens(1, 2))
        second = await engine.complete(tokens(1, 2))
        stores = [event for event in await everything(engine) if isinstance(event, BlockStored)]
    assert (first.cached_tokens, second.cached_tokens) == (0, 16)
    assert stores[1].hashes == stores[0].hashes[1:]
    assert stores[1].parent == stores[0].hashes[0]


async def test_reset_is_refused_while_a_request_runs_and_said_with_the_next_step() -> None:
    async with FakeEngine() as engine:
        request = await engine.begin(tokens(1))
        assert not engine.reset()
        engine.finish(request)
        before = engine.next_seq
        assert engine.reset()
        assert engine.next_seq == before
        await engine.complete(tokens(2))
        events = await everything(engine)
    assert [type(event) for event in events] == [BlockStored, AllBlocksCleared, BlockStored]


async def test_salts_and_adapters_part_the_hashes() -> None:
    async with FakeEngine() as engine:
        for salt, lora in [(None, None), ("a", None), ("b", None), ("a", "ad")]:
            await engine.complete(tokens(1), salt=salt, lora=lora)
        stores = [event for event in await everything(engine) if isinstance(event, BlockStored)]
    assert len({one for event in stores for one in event.hashes}) == 8
    last = stores[-1].extra_keys
    assert last is not None
    assert (last[0].salt, last[0].lora, last[1].salt, last[1].lora) == ("a", "ad", None, "ad")


async def test_process_serves_completions_events_and_ends_on_a_signal() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.support.fake_engine",
        "--block-size",
        "16",
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(LONG_S):
            ready: dict[str, Any] = json.loads(await process.stdout.readline())
            async with (
                httpx.AsyncClient(base_url=ready["http"], timeout=LONG_S, trust_env=False) as http,
                ZmqSource(ready["endpoint"], ready["replay"]) as source,
            ):
                body = {"prompt": tokens(1, 3), "max_tokens": 1}
                for cached in (0, 32):
                    answer = (await http.post("/v1/completions", json=body)).json()
                    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == cached
                assert (await http.post("/v1/completions", json={"prompt": []})).status_code == 400
                assert (await http.post("/reset_prefix_cache")).json() == {"success": True}
                confirmed = await source.confirm(LONG_S)
                assert isinstance(confirmed, Confirmed)
                assert confirmed.seq == 1
                assert (await http.post("/fake", json={"silent_replay": True})).status_code == 200
                assert (await http.post("/fake", json={"unknown": 1})).status_code == 400
                assert (await http.get("/nowhere")).status_code == 404
                assert (await http.post("/fake", json={"restart": True})).json() == {"next_seq": 0}
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
