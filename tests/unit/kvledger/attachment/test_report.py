"""What a vLLM server says of itself is read route by route; what isn't one is named."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from events.hooks.engine_http import EngineHttp
from kvledger.attachment.metric_page import samples, total
from kvledger.attachment.report import (
    EngineRefusedError,
    EngineReport,
    EngineUnreachableError,
    NotAnEngineError,
    read_report,
)
from tests.support.fake_engine import FakeEngine

CAPTURED = (
    'vllm:cache_config_info{_block_size_resolved="True",block_size="32",cache_dtype="auto",'
    'effective_attention_block_size="32",enable_prefix_caching="True",engine="0",kv_offloading_size="None",'
    'num_gpu_blocks="256",prefix_caching_hash_algo="sha256"} 1.0'
)
"""As a running vLLM 0.32.0 wrote it, some labels left out."""


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine(http_port=0) as entered:
        yield entered


async def report_of(engine: FakeEngine, api_key: str | None = None) -> EngineReport:
    return await read_report(EngineHttp(engine.http_url, api_key=api_key))


async def test_a_server_in_development_mode_tells_everything(engine: FakeEngine) -> None:
    engine.facts.adapters["ad1"] = "/adapters/one"
    report = await report_of(engine)
    assert (report.version, report.model.id, report.model.root) == ("0.32.0", "fake", "/models/fake")
    assert report.adapters == {"ad1": "/adapters/one"}
    assert report.sources is not None
    assert report.sources[0].endpoint == f"tcp://*:{engine.endpoint.rpartition(':')[2]}"
    assert report.cache_setting("block_size") == "16"
    assert report.cache_setting("kv_offloading_size") is None
    assert report.setting("model_config", "dtype") == "torch.bfloat16"
    assert report.setting("model_config", "dtype", "deeper") is None
    assert (report.weight_version, report.resets) == ("default", True)
    assert report.started_s == pytest.approx(engine.facts.started_s)


async def test_a_server_as_most_people_run_it_tells_its_publisher_and_cache() -> None:
    async with FakeEngine(http_port=0, dev_mode=False) as engine:
        report = await report_of(engine)
        assert (report.dev_mode, report.resets) == (False, False)
        assert report.sources is not None
        assert report.cache_setting("prefix_caching_hash_algo") == "sha256"


async def test_an_older_engine_has_no_event_sources_and_one_without_publisher_has_none() -> None:
    async with FakeEngine(http_port=0, version="0.28") as older:
        report = await report_of(older)
        assert (report.version, report.sources) == ("0.28.0", None)
        assert (report.dev_mode, report.resets) == (False, True)
    async with FakeEngine(http_port=0) as silent:
        silent.facts.publishes = False
        assert (await report_of(silent)).sources == {}


async def test_a_key_is_asked_for_and_used(engine: FakeEngine) -> None:
    engine.facts.api_key = "secret"
    with pytest.raises(EngineRefusedError):
        await report_of(engine)
    with pytest.raises(EngineRefusedError):
        await report_of(engine, "wrong")
    assert (await report_of(engine, "secret")).model.id == "fake"


async def test_nobody_there_is_told_from_somebody_else() -> None:
    with pytest.raises(EngineUnreachableError):
        await read_report(EngineHttp("http://127.0.0.1:1"))

    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(page, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(NotAnEngineError, match="lists no model"):
            await read_report(EngineHttp(f"http://127.0.0.1:{port}"))


def test_a_captured_line_of_metrics_is_read() -> None:
    (found,) = samples(f"# HELP x y\n{CAPTURED}\nnonsense\n")
    assert (found.labels["block_size"], found.labels["engine"], found.value) == ("32", "0", 1.0)


def test_labels_are_unescaped_and_sums_are_over_the_labels_asked_for() -> None:
    page = 'a{x="1",y="q\\"\\\\\\n"} 2\na{x="2"} 3e0\na{x="1"} NaNope\nb 7 1795983164000\n'
    found = list(samples(page))
    assert found[0].labels["y"] == 'q"\\\n'
    assert (total(found, "a"), total(found, "a", x="2"), total(found, "b"), total(found, "c")) == (
        5,
        3,
        7,
        None,
    )
