"""An engine's HTTP server that doesn't answer holds nobody up."""

from __future__ import annotations

import asyncio
import time

from events.hooks.engine_http import EngineHttp

CURE = "the engine's server did not answer: "


async def test_a_server_that_accepts_and_never_answers_costs_only_the_time_out() -> None:
    accepted: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: accepted.append(writer), "127.0.0.1", 0)
    http = EngineHttp(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    began_s = time.monotonic()
    answer = await http.reset(0.5)
    assert answer.refused == "engine_error"
    assert answer.cure.startswith(CURE)
    assert not await http.step(0.3)
    assert time.monotonic() - began_s < 5
    assert accepted
    for writer in accepted:
        writer.close()
    server.close()
    await server.wait_closed()


async def test_a_server_that_drips_its_answer_has_no_longer_than_one_that_is_silent() -> None:
    ended = asyncio.Event()

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        try:
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.05)
        except ConnectionError:
            writer.close()
            ended.set()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    http = EngineHttp(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    began_s = time.monotonic()
    assert (await http.reset(0.3)).refused == "engine_error"
    assert time.monotonic() - began_s < 5
    async with asyncio.timeout(10):
        await ended.wait()
    server.close()
    await server.wait_closed()


async def test_a_name_that_does_not_resolve_is_no_answer() -> None:
    http = EngineHttp("http://nobody.invalid:1")
    began_s = time.monotonic()
    assert (await http.reset(1.0)).refused == "engine_error"
    assert not await http.step(1.0)
    assert time.monotonic() - began_s < 8
