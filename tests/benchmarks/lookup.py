"""Speed of lookups: the match, the whole answer in process, and REST on one machine.

    python -m tests.benchmarks.lookup [--seconds 2] [--connections 1 8] [--json]

Eight workers hold a prompt, all of it (`agree`) or an eighth more each (`depths`). REST runs the real service
under uvicorn in a process of its own over a view without feeds; the client is a bare socket that sends prepared
bytes, in this process. Compare only figures of one run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import statistics
import struct
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlencode

import uvicorn

from events.identity import profile_digest
from events.ids import ROOT_PARENT
from events.kafka.connection import KafkaConnection
from indexer.service.app import LookupService
from indexer.service.clock import monotonic_ns
from indexer.service.config import ServiceConfig
from indexer.service.server import bound_socket
from router_client.answer import answer
from router_client.index import PrefixIndex
from router_client.problem import Problem
from router_client.query import Query, make_query
from router_client.wire import LookupRequest
from tests.support.log import PROFILE
from tests.support.reader_world import RING, World, chain_of

BLOCKS = (64, 512, 6_400)
HOLDERS = 8
MODEL = "tiny"


@dataclass(frozen=True, slots=True)
class Figure:
    """`rate` per second; times in microseconds of wall clock."""

    name: str
    blocks: int
    rate: float
    p50_us: float
    p99_us: float


def depths_of(shape: str, blocks: int) -> list[int]:
    return [blocks if shape == "agree" else blocks * (n + 1) // HOLDERS for n in range(HOLDERS)]


def fleet(shape: str, blocks: int) -> World:
    """Eight streams that were confirmed just now, on the real clock."""
    world = World()
    world.now_ns = monotonic_ns()
    chain = chain_of(range(blocks * 16))
    hooks = [world.join(f"w{n}") for n in range(HOLDERS)]
    for hook, depth in zip(hooks, depths_of(shape, blocks), strict=True):
        hook.store(chain[:depth])
    world.round(*hooks)
    return world


def measure(name: str, blocks: int, call: Callable[[], Any], seconds: float) -> Figure:
    call()
    taken: list[float] = []
    until = time.perf_counter() + seconds
    while (began := time.perf_counter()) < until:
        call()
        taken.append(time.perf_counter() - began)
    return figure(name, blocks, taken, sum(taken))


def figure(name: str, blocks: int, taken: list[float], total: float) -> Figure:
    ranked = statistics.quantiles(taken, n=100) if len(taken) > 1 else taken * 99
    return Figure(name, blocks, len(taken) / total, ranked[49] * 1e6, ranked[98] * 1e6)


def match_only(shape: str, blocks: int, seconds: float) -> Figure:
    index, chain = PrefixIndex(), chain_of(range(blocks * 16))
    bits = [index.new_bit() for _ in range(HOLDERS)]
    for bit, depth in zip(bits, depths_of(shape, blocks), strict=True):
        index.store(bit, chain[:depth], [ROOT_PARENT, *chain[: depth - 1]])
    live = sum(bits)
    return measure(f"match, {shape}", blocks, lambda: index.match(chain, live), seconds)


def in_process(shape: str, blocks: int, seconds: float, *, tokens: bool) -> Figure:
    world = fleet(shape, blocks)
    query = question(blocks, tokens=tokens)

    def call() -> None:
        found = answer(world.view, query, world.now_ns, 0)
        assert not isinstance(found, Problem), found

    return measure(f"answer by {'tokens' if tokens else 'ids'}, {shape}", blocks, call, seconds)


def question(blocks: int, *, tokens: bool) -> Query:
    document = document_of(blocks, tokens=tokens)
    query = make_query(LookupRequest.model_validate_json(json.dumps(document)), "default")
    assert not isinstance(query, Problem)
    return query


def document_of(blocks: int, *, tokens: bool) -> dict[str, Any]:
    document: dict[str, Any] = {"max_staleness_ms": 3_600_000, "domain": "default"}
    if tokens:
        return {**document, "profile": MODEL, "token_ids": list(range(blocks * 16))}
    ids = [block.hex() for block in chain_of(range(blocks * 16))]
    return {**document, "profile": profile_digest(PROFILE), "block_ids": ids}


def serve(listener: socket.socket, shape: str, blocks: int) -> None:
    """Runs in a process of its own: the service over a view that nobody feeds any more."""
    world = fleet(shape, blocks)
    config = ServiceConfig(connection=KafkaConnection("127.0.0.1:9"), keyring=RING, reader="reader")
    service = LookupService(config)
    view = service.view
    for offset, (value, signature) in enumerate(world.log.records):
        view.control_folded(*view.registry.fold(offset, value, signature))
    view.streams.update(world.view.streams)
    view.index, view.positions = world.view.index, world.view.positions
    view.control_current_ns = monotonic_ns
    service.feed.state.control_read = True
    server = uvicorn.Server(
        uvicorn.Config(
            service, http="httptools", loop="auto", lifespan="off", access_log=False, log_level="warning"
        )
    )
    asyncio.run(server.serve(sockets=[listener]))


def request_bytes(blocks: int, form: str) -> bytes:
    if form == "binary tokens":
        asked = {"profile": MODEL, "domain": "default", "max_staleness_ms": 3_600_000}
        path, media = f"/v1/lookup?{urlencode(asked)}", "application/octet-stream"
        body = struct.pack(f"<{blocks * 16}I", *range(blocks * 16))
    else:
        path, media = "/v1/lookup", "application/json"
        body = json.dumps(document_of(blocks, tokens=form == "json tokens")).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {media}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def load(port: int, message: bytes, connections: int, seconds: float) -> tuple[list[float], float]:
    taken: list[float] = []
    began = time.perf_counter()
    until = began + seconds

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < until:
            start = time.perf_counter()
            writer.write(message)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            taken.append(time.perf_counter() - start)
        writer.close()

    await asyncio.gather(*(one() for _ in range(connections)))
    return taken, time.perf_counter() - began


def over_rest(blocks: int, connections: list[int], seconds: float) -> list[Figure]:
    figures: list[Figure] = []
    listener = bound_socket("127.0.0.1", 0)
    port = listener.getsockname()[1]
    process = multiprocessing.get_context("fork").Process(target=serve, args=(listener, "depths", blocks))
    process.start()
    listener.listen(128)
    try:
        for form in ("binary tokens", "json tokens", "json ids"):
            message = request_bytes(blocks, form)
            for count in connections:
                asyncio.run(load(port, message, count, 0.3))
                taken, total = asyncio.run(load(port, message, count, seconds))
                figures.append(figure(f"REST, {form}, {count} conn.", blocks, taken, total))
    finally:
        process.terminate()
        process.join()
        listener.close()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="per figure")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures: list[Figure] = []
    for blocks in BLOCKS:
        for shape in ("agree", "depths"):
            figures.append(match_only(shape, blocks, options.seconds))
            figures.append(in_process(shape, blocks, options.seconds, tokens=False))
        figures.append(in_process("depths", blocks, options.seconds, tokens=True))
        figures.extend(over_rest(blocks, options.connections, options.seconds))
    if options.json:
        print(json.dumps([asdict(entry) for entry in figures]))
        return
    print(f"{'':32}{'blocks':>8}{'per s':>12}{'p50 µs':>12}{'p99 µs':>12}")
    for entry in figures:
        print(
            f"{entry.name:32}{entry.blocks:8d}{entry.rate:12,.0f}{entry.p50_us:12,.1f}{entry.p99_us:12,.1f}"
        )


if __name__ == "__main__":
    main()
