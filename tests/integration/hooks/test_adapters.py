"""SGLang's own publisher and LMCache's own bytes through the real `kvledger bridge`, a real Kafka and a real door."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from events.hooks.engine_adapter import adapter_of
from events.hooks.engine_config import EngineConfig
from events.identity import pack_tokens, profile_digest, root_parent
from events.ids import Basis
from kvledger.failure import CommandError, ExitCode
from kvledger.lmcache_input import lmcache_inputs
from kvledger.stack.port import choose
from tests.support.bridge_command import bridge, bridge_home
from tests.support.bridged_stream import LONG_S, attached
from tests.support.folded_stream import CONTENT, RING
from tests.support.hook_log import HookLog, until
from tests.support.lmcache_events import CHUNK, recorded
from tests.support.sglang_publisher import sglang_publisher

RECORDED = recorded()
A, B, C = (RECORDED.prompts[name] for name in "ABC")
CONTENT_LMCACHE = CONTENT.model_copy(update={"block_tokens": CHUNK})
CONFIG = EngineConfig(engine="lmcache", content=CONTENT_LMCACHE, connectors=("LMCacheServer",))


@pytest.fixture
async def log(kafka: str, topic_prefix: str) -> AsyncIterator[HookLog]:
    async with HookLog(kafka, topic_prefix) as entered:
        yield entered


def ids(tokens: list[int]) -> set[bytes]:
    parent = root_parent(profile_digest(CONTENT_LMCACHE))
    return set(RING["default"].hasher().chain(parent, pack_tokens(tokens), CHUNK))


class LmcacheKafka:
    """A topic as LMCache's sink writes it: a record a batch, by server, acknowledged."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.endpoint = f"kafka://{bootstrap}/{topic}"
        self._bootstrap, self._topic = bootstrap, topic

    async def make(self) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await admin.start()
        try:
            await admin.create_topics([NewTopic(self._topic, 3, 1)])
        finally:
            await admin.close()

    async def write(self, bodies: list[bytes], server: str = "lmc-0") -> None:
        producer = AIOKafkaProducer(bootstrap_servers=self._bootstrap, acks="all")
        await producer.start()
        try:
            for body in bodies:
                await producer.send_and_wait(self._topic, body, key=server.encode())
        finally:
            await producer.stop()


async def test_a_topic_is_read_from_its_start_and_confirmed_to_its_end(kafka: str, topic_prefix: str) -> None:
    topic = LmcacheKafka(kafka, f"{topic_prefix}lmcache")
    await topic.make()
    first = RECORDED.upto("A stored")
    await topic.write(first)
    async with lmcache_inputs([topic.endpoint, topic.endpoint]) as inputs:
        assert len(inputs) == 1
        source = inputs[topic.endpoint].source("lmc-0")
        reader = await attached(source, CONFIG, adapter=adapter_of("lmcache", "tiny"))
        assert reader.folded.credited("cpu") == ids(A)
        assert await reader.confirmed()
        await topic.write([b"no batch at all"])
        await topic.write(RECORDED.upto("B and C stored")[len(first) :])
        # What is written by now is read by the time that this is confirmed.
        assert await reader.confirmed()
        assert reader.folded.credited("cpu") == ids(A) | ids(B) | ids(C)
        assert reader.folded.state.unknown_events == 1
        await topic.write(RECORDED.upto("C stored by both ranks", "lmc-1"), "lmc-1")
        assert await reader.confirmed()
        assert reader.folded.credited("cpu") == ids(A) | ids(B) | ids(C)


async def test_a_broker_that_is_not_there_is_a_clear_error() -> None:
    with pytest.raises(CommandError, match="can't be read") as caught:
        async with lmcache_inputs(["kafka://127.0.0.1:1/events"]):
            pass
    assert caught.value.exit_code is ExitCode.UNAVAILABLE


async def test_a_door_takes_what_the_servers_post_and_confirms_nothing() -> None:
    endpoint = f"http://127.0.0.1:{choose(0, service='door', setting='port')}"
    async with lmcache_inputs([endpoint]) as inputs:
        with pytest.raises(CommandError, match="taken"):
            async with lmcache_inputs([endpoint]):
                pass
        reader = await attached(
            inputs[endpoint].source("lmc-0"), CONFIG, adapter=adapter_of("lmcache", "tiny"), attach_s=0.5
        )
        assert not reader.bridge.confirmable
        async with httpx.AsyncClient(base_url=endpoint) as client:
            for body in RECORDED.upto("A stored"):
                answer = await client.post("/events", content=body)
                assert (answer.status_code, answer.json()["applied"]) == (200, 1)
        async with asyncio.timeout(LONG_S):
            while len(reader.folded.copies("cpu")) < len(ids(A)):
                await reader.drain()
        assert reader.folded.credited("cpu") == ids(A)
        # Numbered from the first on, so all of its life is known.
        assert reader.bridge.counts.lost_messages == 0


async def test_the_command_carries_both_into_the_log(
    log: HookLog, home: Path, tmp_path: Path, kafka: str, topic_prefix: str
) -> None:
    keys = bridge_home(home)
    topic = LmcacheKafka(kafka, f"{topic_prefix}lmcache")
    await topic.make()
    await topic.write(RECORDED.upto("A stored"))
    (tmp_path / "sglang.toml").write_text('[content]\nblock_tokens = 16\n[engine]\nname = "sglang"\n')
    (tmp_path / "lmcache.toml").write_text(f'[content]\nblock_tokens = {CHUNK}\n[engine]\nname = "lmcache"\n')
    with sglang_publisher() as engine:
        engine.publish(engine.stored([-1, -2], list(range(32)), 16))
        (tmp_path / "engines.toml").write_text(
            f"""
[[engine]]
worker = "s0"
model = "tiny"
endpoint = "{engine.endpoint}"
replay = "{engine.replay_endpoint}"
profile = "{tmp_path / "sglang.toml"}"

[[engine]]
worker = "l0"
server = "lmc-0"
model = "tiny"
endpoint = "{topic.endpoint}"
profile = "{tmp_path / "lmcache.toml"}"
"""
        )
        async with bridge(log, keys, "--config", str(tmp_path / "engines.toml")) as running:
            opened = {(await running.opened())["worker"] for _ in range(2)}
            assert opened == {"s0", "l0"}
            assert {one["basis"] for one in running.announced if one["state"] == "open"} == {"published"}
            engine.publish(engine.stored([-3], [7] * 16, 16))
            await topic.write(RECORDED.upto("B and C stored")[3:])
            await until(lambda: len(log.copies("s0")) == 3)
            await until(lambda: len(log.copies("l0", holder="cpu")) == len(ids(A) | ids(B) | ids(C)))
            for worker in ("s0", "l0"):
                first = await log.beacon()
                async with asyncio.timeout(30):
                    while not log.echoed(worker, first):
                        await asyncio.sleep(0.1)
                        await log.beacon()
                assert log.pulses[worker, 0].basis is Basis.PUBLISHED
            assert await running.stop() == 0
