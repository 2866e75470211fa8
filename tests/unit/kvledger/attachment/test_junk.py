"""What answers where an engine should, and is none, is named in one line: no traceback, no memory without bound."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from events.hooks.engine_http import MAX_ANSWER_BYTES, AnswerTooLargeError, EngineHttp, json_of
from kvledger.attachment.doctor import Lookups, examine
from kvledger.attachment.metric_page import count_of, samples
from kvledger.attachment.plan import Wanted, here, make_plan
from kvledger.attachment.report import CACHE_INFO
from kvledger.attachment.watch import PROMPTS, long_prompts
from kvledger.command.bridge import is_http
from kvledger.failure import CommandError, ExitCode

MODELS = {"data": [{"id": "tiny", "root": "/nowhere", "max_model_len": 1024}]}
SOURCES = {"0": {"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657"}}
ROUTES = {"/v1/models": json.dumps(MODELS).encode(), "/kv_event_sources": json.dumps(SOURCES).encode()}


@asynccontextmanager
async def server(routes: Mapping[str, bytes], headers: bytes = b"") -> AsyncIterator[str]:
    """Answers 200 with these bodies, 404 elsewhere; `*` stands for every other path."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        path = request.split(b" ")[1].decode().partition("?")[0]
        body = routes.get(path, routes.get("*"))
        status = b"404 Not Found" if body is None else b"200 OK"
        head = b"HTTP/1.1 %s\r\nConnection: close\r\nContent-Length: %d\r\n" % (status, len(body or b""))
        try:
            writer.write(head + headers + b"\r\n" + (body or b""))
            await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    made = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{made.sockets[0].getsockname()[1]}"
    finally:
        made.close()


async def refused(url: str, tmp_path: Path) -> CommandError:
    with pytest.raises(CommandError) as caught:
        await make_plan(Wanted(url), tmp_path)
    assert "\x1b" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"null",
        b"[" * 200_000,
        b'{"data":[{"id":"\\ud800"}]}',
        b'{"data":[{"id":"\\u001b[31mred\\nERROR forged"}]}',
        json.dumps({"data": [{"id": "n" * 100_000}]}).encode(),
        json.dumps({"data": [{"id": "n", "root": "/r" * 100_000}]}).encode(),
    ],
    ids=["html", "null", "deep", "surrogate", "control", "long", "long-path"],
)
async def test_a_server_that_lists_no_model_is_no_engine(body: bytes, tmp_path: Path) -> None:
    async with server({"*": body}) as url:
        error = await refused(url, tmp_path)
        assert (error.exit_code, "lists no model" in error.message) == (ExitCode.UNAVAILABLE, True)


@pytest.mark.parametrize(
    ("sources", "code"),
    [
        (b'{"0":' + b"[" * 100_000, ExitCode.USAGE),
        (b'{"-5": {"endpoint": "tcp://*:5557"}}', ExitCode.UNAVAILABLE),
        (b'{"99999999": {"endpoint": "tcp://*:5557"}}', ExitCode.UNAVAILABLE),
        (json.dumps({str(rank): {} for rank in range(2_000)}).encode(), ExitCode.UNAVAILABLE),
        (b'{"0": {"topic": "\\u0000"}}', ExitCode.UNAVAILABLE),
        (b'{"0": {"endpoint": "tcp://*:70000"}}', ExitCode.CONFIGURATION),
        (b'{"0": {"endpoint": "tcp://*:5557", "replay_endpoint": "nonsense"}}', ExitCode.CONFIGURATION),
        ('{"0": {"endpoint": "tcp://*:²"}}'.encode(), ExitCode.CONFIGURATION),
    ],
)
async def test_publishers_that_cant_be_are_named(sources: bytes, code: ExitCode, tmp_path: Path) -> None:
    async with server({**ROUTES, "/kv_event_sources": sources}) as url:
        assert (await refused(url, tmp_path)).exit_code is code


@pytest.mark.parametrize("size", ["²", "9" * 5_000, "-1", "", "1e3", "16"])
async def test_labels_that_are_no_counts_are_left_out(size: str, tmp_path: Path) -> None:
    page = f'{CACHE_INFO}{{engine="²",block_size="{size}"}} 1\n'
    page += f'{CACHE_INFO}{{engine="0",block_size="{size}",num_gpu_blocks="{size}",'
    page += f'cache_hit_alignment_tokens="{size}"}} 1\nprocess_start_time_seconds nan\n'
    async with server({**ROUTES, "/metrics": page.encode()}) as url:
        plan = await make_plan(Wanted(url), tmp_path)
        assert plan.profile.content.block_tokens == (16 if size == "16" else None)
        assert plan.report.started_s is None
        with pytest.raises(CommandError, match="answered a prompt of"):
            await examine(url, NoWorkers("http://127.0.0.1:1"), tmp_path, None, None)


async def test_a_block_of_more_tokens_than_any_has_is_no_engines(tmp_path: Path) -> None:
    page = f'{CACHE_INFO}{{engine="0",block_size="999999999"}} 1\n'
    async with server({**ROUTES, "/metrics": page.encode()}) as url:
        error = await refused(url, tmp_path)
        assert (error.exit_code, "block_tokens" in error.message) == (ExitCode.UNAVAILABLE, True)
        with pytest.raises(CommandError, match="block_tokens"):
            await examine(url, NoWorkers("http://127.0.0.1:1"), tmp_path, None, None)


@pytest.mark.parametrize("packed", [False, True])
async def test_an_answer_without_end_is_given_up(packed: bool, tmp_path: Path) -> None:
    body = b"[" * (MAX_ANSWER_BYTES + 1)
    headers = b"Content-Encoding: gzip\r\n" if packed else b""
    async with server({"*": gzip.compress(body, 1) if packed else body}, headers) as url:
        with pytest.raises(AnswerTooLargeError):
            await EngineHttp(url).ask("GET", "/metrics", None, 30)
        assert (await EngineHttp(url).reset(30)).refused == "engine_error"
        assert not await EngineHttp(url).step(30)
        assert (await refused(url, tmp_path)).exit_code is ExitCode.UNAVAILABLE


@pytest.mark.parametrize("url", ["http://exa mple", "http://a..b", "http://\x00", "http://[::1%]"])
async def test_an_address_that_is_none_is_no_answer(url: str, tmp_path: Path) -> None:
    with pytest.raises((httpx.HTTPError, TimeoutError)):
        await EngineHttp(url).ask("GET", "/", None, 2)
    assert (await refused(url, tmp_path)).exit_code is ExitCode.UNAVAILABLE


@pytest.mark.parametrize(
    "url",
    ["http://me:secret@host:8000", "http://me@host", "http://exa mple", "http://a\n", "ftp://a", "http://"],
)
def test_such_a_url_is_wrong_usage(url: str) -> None:
    assert not is_http(url)


def test_json_of_raises_one_kind_of_error() -> None:
    for body in (b"[" * 200_000, b'"\\ud800"', b"\xff", b""):
        with pytest.raises(ValueError):
            json_of(httpx.Response(200, content=body))
    assert json_of(httpx.Response(200, content=b'{"a": "\\ud83d\\ude00"}')) == {"a": "😀"}


def test_counters_that_are_no_numbers_alarm_nobody() -> None:
    page = f'{CACHE_INFO}{{engine="0",block_size="16"}} 1\n{PROMPTS}_count{{engine="0"}} nan\n'
    page += f'{PROMPTS}_bucket{{engine="0",le="abc"}} 3\n{PROMPTS}_bucket{{engine="0",le="nan"}} 3\n'
    assert long_prompts(list(samples(page)), "0") is None
    assert [count_of(text) for text in (None, "", "²", "-1", "9" * 20, "12")] == [None] * 5 + [12]


def test_a_folder_with_a_name_that_no_folder_has_is_not_here() -> None:
    for path in ("/r" * 100_000, "/a\0b", "/nowhere", "relative"):
        assert here(path, "http://127.0.0.1:1") is None


class NoWorkers(Lookups):
    """A service that knows nobody."""

    async def workers(self) -> list[Mapping[str, object]]:
        return []
