"""What one connection may cost: heads and bodies have a size and a time, connections a number."""

from __future__ import annotations

import asyncio
import json

import httpx

from indexer.service.connection import ConnectionLimits
from tests.support.live_log import until
from tests.support.lookup_http import ASKED, service
from tests.support.served import served


async def raw(port: int, text: bytes, *, more: bytes = b"") -> bytes:
    """Sends and reads until the service closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(text)
        if more:
            await writer.drain()
            writer.write(more)
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def test_a_head_that_does_not_end_is_cut_off() -> None:
    made = service(connections=ConnectionLimits(head_s=0.2))
    async with served(made) as port:
        assert await raw(port, b"") == b""
        assert await raw(port, b"POST /v1/lookup HTTP/1.1\r\nHost:") == b""
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            first = await http.post("/v1/lookup", json=ASKED)
            await until(lambda: made.connections.late_heads == 2)
            second = await http.post("/v1/lookup", json=ASKED)
        assert (first.status_code, second.status_code) == (200, 200)


async def test_a_head_that_is_too_large_is_refused() -> None:
    made = service(connections=ConnectionLimits(head_bytes=2_000))
    async with served(made) as port:
        answer = await raw(port, b"GET /healthz HTTP/1.1\r\nX-A: " + b"a" * 3_000)
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["type"] == "/problems/head-too-large"
        many = b"GET /healthz HTTP/1.1\r\n" + b"".join(b"X-%d: a\r\n" % n for n in range(1_000))
        assert (await raw(port, many)).startswith(b"HTTP/1.1 431 ")
    assert made.connections.large_heads == 2


async def test_a_body_that_does_not_arrive_is_408() -> None:
    made = service(connections=ConnectionLimits(body_s=0.2))
    async with served(made) as port:
        head = (
            b"POST /v1/lookup HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 90\r\nConnection: close\r\n\r\n"
        )
        answer = await raw(port, head + b'{"profile"')
        assert answer.startswith(b"HTTP/1.1 408 ")
    assert (made.connections.late_bodies, made.connections.bodies_bytes) == (1, 0)


async def test_bodies_in_flight_share_one_budget() -> None:
    made = service(connections=ConnectionLimits(bodies_bytes=50))
    async with served(made) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        response = await http.post("/v1/lookup", json=ASKED)
        assert (response.status_code, response.json()["type"]) == (503, "/problems/too-busy")
        assert (await http.get("/healthz")).status_code == 200
    assert made.connections.bodies_bytes == 0


async def test_more_connections_than_allowed_are_refused_and_those_before_are_served() -> None:
    made = service(connections=ConnectionLimits(connections=1))
    async with served(made) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        assert (await http.get("/healthz")).status_code == 200
        answer = await raw(port, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer == b"" or answer.startswith(b"HTTP/1.1 503 ")
        assert (await http.get("/healthz")).status_code == 200
        page = (await http.get("/metrics")).text
    assert 'kvledger_cut_off_total{reason="too_many_connections"} 1.0' in page
    assert 'kvledger_held{kind="connections"} 1.0' in page
    assert 'kvledger_held_bound{kind="connections"} 1.0' in page
