"""The keep-alive client against a server that behaves, and some that don't."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from kvledger.simulate.rest import RestClient, RestError

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def served(handler: Handler, **options: float) -> AsyncIterator[RestClient]:
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = RestClient(f"http://127.0.0.1:{port}", **options)  # type: ignore[arg-type]
    try:
        yield client
    finally:
        await client.close()
        server.close()
        await server.wait_closed()


class Echo:
    """Answers each request with its body; counts connections. `head` replaces the answer's head."""

    def __init__(self, head: bytes | None = None, *, close_after: int = 0) -> None:
        self.connections = 0
        self._head = head
        self._close_after = close_after

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        served = 0
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                break
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            body = await reader.readexactly(length)
            writer.write(self._head or b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
            writer.write(body)
            served += 1
            if served == self._close_after:
                break
        writer.close()


async def test_one_connection_is_kept_for_many_requests() -> None:
    echo = Echo()
    async with served(echo, connections=1) as client:
        for number in range(20):
            reply = await client.post("/x", {"number": number})
            assert (reply.status, reply.json()) == (200, {"number": number})
    assert echo.connections == 1


async def test_more_requests_than_connections_wait_for_their_turn() -> None:
    echo = Echo()
    async with served(echo, connections=2) as client:
        replies = await asyncio.gather(*(client.post("/x", [number]) for number in range(20)))
    assert [reply.json() for reply in replies] == [[number] for number in range(20)]
    assert echo.connections <= 2


async def test_a_closed_connection_costs_one_request_and_is_opened_again() -> None:
    echo = Echo(close_after=1)
    async with served(echo, connections=1) as client:
        assert (await client.post("/x", 1)).json() == 1
        outcomes = []
        for _ in range(3):
            try:
                outcomes.append((await client.post("/x", 2)).json())
            except RestError:
                outcomes.append("error")
        assert 2 in outcomes


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
    ],
)
async def test_what_is_no_answer_is_an_error(head: bytes) -> None:
    async with served(Echo(head)) as client:
        with pytest.raises(RestError, match="no answer"):
            await client.post("/x", 1)


async def test_silence_ends_with_the_time_out() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with served(silent, timeout_s=0.1) as client:
        with pytest.raises(RestError, match="TimeoutError"):
            await client.get("/x")


async def test_a_body_that_is_not_json_is_an_error() -> None:
    async with served(Echo()) as client:
        reply = await client.request("POST", "/x", body=b"{")
        with pytest.raises(RestError, match="not JSON"):
            reply.json()


async def test_nobody_there_is_an_error() -> None:
    client = RestClient("http://127.0.0.1:9")
    with pytest.raises(RestError, match="no answer"):
        await client.get("/x")
