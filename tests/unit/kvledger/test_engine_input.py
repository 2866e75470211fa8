"""Which adapter a bridge takes, and what it says when the profile and the address don't agree."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from events.model.profile import ContentProfile
from kvledger.bridging import EngineAddress
from kvledger.engine_input import adapter_for, with_page_size
from kvledger.engine_profile import EngineFacts, EngineProfile
from kvledger.failure import CommandError, ExitCode
from kvledger.lmcache_input import is_input

TCP, TOPIC, DOOR = "tcp://127.0.0.1:5557", "kafka://127.0.0.1:9092/events", "http://127.0.0.1:9300"


def engine(name: str, endpoint: str) -> tuple[EngineAddress, EngineProfile]:
    address = EngineAddress(worker="w0", model="tiny", endpoint=endpoint)
    return address, EngineProfile(engine=EngineFacts(name=name))


@pytest.mark.parametrize(
    ("name", "endpoint"), [("vllm", TCP), ("SGLang", TCP), ("lmcache", TOPIC), ("lmcache", DOOR)]
)
def test_the_profile_names_the_engine(name: str, endpoint: str) -> None:
    assert adapter_for(*engine(name, endpoint)).engine == name.lower()


@asynccontextmanager
async def answering(documents: Mapping[str, object]) -> AsyncIterator[str]:
    """A server that gives each path its document, and 404 to all others."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
        body = json.dumps(documents.get(path)).encode()
        status = "200 OK" if path in documents else "404 Not Found"
        writer.write(
            f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n".encode()
        )
        writer.write(body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def learned_size(url: str | None, *, configured: int | None = None) -> int | None:
    address, profile = engine("sglang", TCP)
    address = address.model_copy(update={"engine_url": url})
    profile = profile.model_copy(update={"content": ContentProfile(block_tokens=configured)})
    told = await with_page_size(address, adapter_for(address, profile), profile)
    return told.content.block_tokens


@pytest.mark.parametrize(
    ("documents", "size"),
    [
        ({"/server_info": {"page_size": 16, "kv_events": {"block_size": 64}}}, 64),
        ({"/get_server_info": {"page_size": 16, "dcp_size": 4}}, 64),
        ({"/server_info": {"page_size": 16}}, 16),
    ],
)
async def test_a_page_size_that_nobody_configured_is_the_servers_own(
    documents: Mapping[str, object], size: int
) -> None:
    async with answering(documents) as url:
        assert await learned_size(url) == size
        assert await learned_size(url, configured=32) == 32


@pytest.mark.parametrize(
    "documents", [{}, {"/server_info": []}, {"/server_info": {"kv_events": {"block_size": True}}}]
)
async def test_a_page_size_that_nobody_told_is_warned_of(
    documents: Mapping[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    async with answering(documents) as url:
        assert await learned_size(url) is None
    assert "block_tokens" in caplog.text


async def test_without_a_server_to_ask_it_is_warned_of_too_and_vllm_is_never_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    address, profile = engine("vllm", TCP)
    assert await with_page_size(address, adapter_for(address, profile), profile) is profile
    assert not caplog.text
    assert await learned_size(None) is None
    assert await learned_size("http://127.0.0.1:1") is None
    assert "block_tokens" in caplog.text


@pytest.mark.parametrize(
    ("name", "endpoint", "said"),
    [
        ("trtllm", TCP, "lmcache, sglang, vllm"),
        ("lmcache", TCP, "lmcache doesn't speak at tcp://"),
        ("vllm", TOPIC, "vllm doesn't speak at kafka://"),
    ],
)
def test_another_engine_is_refused_with_what_can_be_read(name: str, endpoint: str, said: str) -> None:
    with pytest.raises(CommandError, match=said) as caught:
        adapter_for(*engine(name, endpoint))
    assert caught.value.exit_code is ExitCode.CONFIGURATION
    assert "[engine]" in (caught.value.advice or "")


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        (TOPIC, True),
        (DOOR, True),
        (f"{DOOR}/", True),
        ("kafka://broker:9092", False),
        ("http://127.0.0.1", False),
        ("http://127.0.0.1:9300/events", False),
        ("http://127.0.0.1:port", False),
        ("kafka://broker:9092/topic?x=1", False),
        (TCP, False),
        ("ipc:///tmp/events", False),
    ],
)
def test_an_address_of_lmcache_s_events_is_a_topic_or_a_door(endpoint: str, expected: bool) -> None:
    assert is_input(endpoint) is expected
