"""Seconds until a killed indexer commits again and a killed lookup replica is current, under load.

    python -m tests.benchmarks.recovery [--copies 200000] [--kills 3] [--json]

Starts a stack of its own on free ports, fills the index, and keeps writing while it kills (SIGKILL). The
supervisor starts what was killed. Targets: 15 s and 10 s, goals 5 s and 3 s; the machine's load is printed
beside the figures, for they are wall-clock times.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg

from events.ids import EvictReason, Role
from events.kafka.connection import KafkaConnection, make_producer
from events.kafka.control import ControlWriter
from events.model.control import Registered
from events.model.part import BlockEvicted
from events.signing import Signer
from events.topic import EVENTS, pinned_partition
from kvledger.control import read_registry, wall_ms
from kvledger.keyfile import load_signers
from kvledger.stack.plan import Extent
from kvledger.stack.session import read_running, running_stack
from kvledger.stack.state import Endpoints, Home
from tests.support.log import StreamBuilder, declared, opened, stored
from tests.support.stack import stack_settings

WORKERS = 8
CHAIN = 64
LOAD_EVERY_S = 0.05
WITHIN_S = 90.0


class Load:
    """Streams of `WORKERS` workers: `fill`, then `run` stores and evicts a chain every `LOAD_EVERY_S`."""

    def __init__(self, at: Endpoints) -> None:
        self._connection = KafkaConnection(at.kafka)
        self._home = at.home
        self._producer: Any = None
        self._streams: list[tuple[int, StreamBuilder, list[list[bytes]]]] = []

    async def begin(self) -> None:
        registry = await read_registry(self._connection)
        writer = ControlWriter(
            self._connection, log=registry.log, signers=load_signers(self._home, *Role), wall_ms=wall_ms
        )
        await writer.start()
        for number in range(WORKERS):
            worker = f"bench-{number}"
            partition = pinned_partition(worker, 0, registry.partitions)
            body = Registered(
                worker=worker,
                rank=0,
                epoch="e1",
                engine_life="life-1",
                public_key=Signer.from_seed(worker.encode().ljust(32, b"-")).public_key,
                partition=partition,
            )
            known = await writer.append(body)
            builder = StreamBuilder(worker, 0, "e1", known.offset, prev=known.record_sha256)
            self._streams.append((partition, builder, []))
        await writer.stop()
        self._producer = make_producer(self._connection, linger_ms=5, max_batch_bytes=500_000)
        await self._producer.start()
        for partition, builder, _ in self._streams:
            await self._send(partition, builder.seal(opened(), events=[declared()]).value)

    async def end(self) -> None:
        await self._producer.stop()

    async def _send(self, partition: int, value: bytes) -> None:
        await self._producer.send(self._connection.topic(EVENTS), value, key=b"k", partition=partition)

    async def fill(self, copies: int) -> None:
        for turn in range(copies // CHAIN):
            partition, builder, held = self._streams[turn % WORKERS]
            ids = [os.urandom(16) for _ in range(CHAIN)]
            held.append(ids)
            await self._send(partition, builder.seal(events=[stored(ids)]).value)
            builder.sent.clear()
        await self._producer.flush()

    async def run(self) -> None:
        turn = 0
        while True:
            partition, builder, held = self._streams[turn % WORKERS]
            ids = [os.urandom(16) for _ in range(CHAIN)]
            gone = BlockEvicted(holder="gpu", group=0, ids=tuple(held.pop(0)), reason=EvictReason.CAPACITY)
            held.append(ids)
            await self._send(partition, builder.seal(events=[stored(ids), gone]).value)
            builder.sent.clear()
            turn += 1
            await asyncio.sleep(LOAD_EVERY_S)


async def until(holds: Callable[[], Awaitable[bool]]) -> float:
    """Seconds until it held."""
    begun = time.monotonic()
    while not await holds():
        if time.monotonic() - begun > WITHIN_S:
            raise TimeoutError(f"nothing within {WITHIN_S:g} s")
        await asyncio.sleep(0.05)
    return time.monotonic() - begun


async def lag(database: Any, log: KafkaConnection) -> int:
    from events.kafka.connection import LogTail

    rows = await database.fetch(
        "SELECT partition, next_offset FROM partition_progress WHERE topic = $1", log.topic(EVENTS)
    )
    tail = LogTail(log, {(log.topic(EVENTS), row["partition"]): 0 for row in rows})
    await tail.start()
    ends = await tail.end_offsets()
    await tail.stop()
    stored = {(log.topic(EVENTS), row["partition"]): row["next_offset"] for row in rows}
    return sum(end - stored[where] for where, end in ends.items())


def pid_of(home: Path, name: str) -> int:
    process = next(one for one in read_running(Home(home)).services if one.name == name).process
    assert process is not None
    return process.pid


def cpu_s(pid: int) -> float:
    """Processor time that a process has used, its threads included: what no other load can blur."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


async def measure(at: Endpoints, copies: int, kills: int) -> dict[str, Any]:
    load = Load(at)
    await load.begin()
    database = await asyncpg.connect(at.database_url)
    begun = time.monotonic()
    await load.fill(copies)

    async def level() -> bool:
        return await lag(database, KafkaConnection(at.kafka)) == 0

    await until(level)
    filled_s = time.monotonic() - begun
    running = asyncio.create_task(load.run())
    indexer, indexer_cpu = list[float](), list[float]()
    lookup, lookup_cpu = list[float](), list[float]()

    async def total() -> int:
        return int(await database.fetchval("SELECT sum(next_offset) FROM partition_progress"))

    for _ in range(kills):
        await asyncio.sleep(3)
        os.kill(pid_of(at.home, "indexer"), signal.SIGKILL)
        await asyncio.sleep(0.2)
        before = await total()

        async def again(before: int = before) -> bool:
            return await total() > before

        indexer.append(0.2 + await until(again))
        indexer_cpu.append(cpu_s(pid_of(at.home, "indexer")))

    async def ready() -> bool:
        return await asyncio.to_thread(is_ready, f"{at.lookup_url}/readyz")

    for _ in range(kills):
        await until(ready)
        await asyncio.sleep(1)
        os.kill(pid_of(at.home, "serve"), signal.SIGKILL)
        await asyncio.sleep(0.2)
        lookup.append(0.2 + await until(ready))
        lookup_cpu.append(cpu_s(pid_of(at.home, "serve")))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await load.end()
    await database.close()
    return {
        "copies": copies,
        "filled_s": round(filled_s, 1),
        "indexer_commits_again_s": [round(one, 2) for one in indexer],
        "indexer_cpu_s": [round(one, 2) for one in indexer_cpu],
        "lookup_cpu_s": [round(one, 2) for one in lookup_cpu],
        "lookup_current_s": [round(one, 2) for one in lookup],
        "load_average": os.getloadavg()[0],
        "cores": os.cpu_count(),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--copies", type=int, default=200_000)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        with running_stack(stack_settings(home), extent=Extent.ALL) as at:
            found = asyncio.run(measure(at, given.copies, given.kills))
    if given.json:
        sys.stdout.write(json.dumps(found) + "\n")
    else:
        for name, value in found.items():
            sys.stdout.write(f"{name:>26}  {value}\n")


if __name__ == "__main__":
    main()
