"""Seconds until a killed indexer commits again and a killed lookup replica is current, under load.

    python -m tests.benchmarks.recovery [--copies 300000] [--kills 5] [--json]

Starts a stack of its own on free ports, fills the index, waits until PostgreSQL and the replica hold all of it,
and keeps writing while it kills (SIGKILL) the indexer and the replica in turn. The supervisor starts what was
killed. Counted from the kill, in seconds:

- commits: PostgreSQL's watermark moves past where it stood when the killed process was gone
- level:   PostgreSQL's watermarks reach the end that the log had at the kill
- ready:   the replica answers, and says what it lacks
- current: the replica's /v1/watermarks reach the end that the log had at the kill

Targets: 15 s until it commits, 10 s until it is current; goals 5 s and 3 s. The machine's load is printed beside
the figures, for they are wall-clock times; processor times of the new processes aren't blurred by it.
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
from statistics import median
from typing import Any

import asyncpg

from events.ids import EvictReason, Role
from events.kafka.connection import KafkaConnection, LogTail, make_producer
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
FILL_WITHIN_S = 1_800.0
BETWEEN_S = 2.0
NEAR_RECORDS = 50
"""Who lags by less keeps up with the load and may be killed."""
SETTLED_S = 0.2
"""A transaction whose COMMIT was sent before the kill ends by then."""


class Load:
    """Streams of `WORKERS` workers: `fill`, then `run` stores and evicts a chain every `LOAD_EVERY_S`."""

    def __init__(self, at: Endpoints) -> None:
        self._connection = KafkaConnection(at.kafka)
        self._home = at.home
        self._producer: Any = None
        self._streams: list[tuple[int, StreamBuilder, list[list[bytes]]]] = []

    async def begin(self) -> int:
        """Returns the number of partitions."""
        registry = await read_registry(self._connection)
        writer = ControlWriter(
            self._connection, registry, signers=load_signers(self._home, *Role), wall_ms=wall_ms
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
        return registry.partitions

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


async def until(holds: Callable[[], Awaitable[bool]], within_s: float = WITHIN_S) -> None:
    """Returns once it holds; raises TimeoutError."""
    begun = time.monotonic()
    while not await holds():
        if time.monotonic() - begun > within_s:
            raise TimeoutError(f"nothing within {within_s:g} s")
        await asyncio.sleep(0.05)


Positions = dict[int, int]
"""Next offset by partition of `kv.events`."""


class Gauge:
    """Where the log, PostgreSQL and the replica stand."""

    def __init__(self, at: Endpoints, partitions: int) -> None:
        connection = KafkaConnection(at.kafka)
        self._url = at.lookup_url
        self._database_url = at.database_url
        self._topic = connection.topic(EVENTS)
        self._tail = LogTail(connection, {(self._topic, number): 0 for number in range(partitions)})
        self._database: Any = None

    async def start(self) -> None:
        await self._tail.start()
        self._database = await asyncpg.connect(self._database_url)

    async def stop(self) -> None:
        await self._database.close()
        await self._tail.stop()

    async def end(self) -> Positions:
        return {number: end for (_, number), end in (await self._tail.end_offsets()).items()}

    async def indexed(self) -> Positions:
        """Partitions that nobody has claimed aren't in it."""
        rows = await self._database.fetch(
            "SELECT partition, next_offset FROM partition_progress WHERE topic = $1", self._topic
        )
        return {row["partition"]: row["next_offset"] for row in rows}

    async def applied(self) -> Positions:
        """The replica's; empty while it doesn't answer."""
        return await asyncio.to_thread(self._watermarks)

    def _watermarks(self) -> Positions:
        try:
            with urllib.request.urlopen(f"{self._url}/v1/watermarks", timeout=1) as answer:
                return {int(number): at for number, at in json.load(answer)["events"].items()}
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                raise
            return {}
        except (OSError, ValueError):
            return {}

    async def copies(self) -> int:
        return int(await self._database.fetchval("SELECT count(*) FROM copy"))

    async def ready(self) -> bool:
        return await asyncio.to_thread(is_ready, f"{self._url}/readyz")


def reached(stands: Positions, wanted: Positions, short_by: int = 0) -> bool:
    """Whether every partition has come that far, but for `short_by` records in all."""
    return sum(max(0, end - stands.get(number, 0)) for number, end in wanted.items()) <= short_by


def pid_of(home: Path, name: str) -> int:
    process = next(one for one in read_running(Home(home)).services if one.name == name).process
    assert process is not None
    return process.pid


def cpu_s(pid: int) -> float:
    """Processor time that a process has used, its threads included: what no other load can blur."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_running(pid: int) -> bool:
    """Not gone, and not waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


class Trial:
    """Kills and clocks; each figure has an entry per kill."""

    def __init__(self, at: Endpoints, gauge: Gauge) -> None:
        self._home, self._gauge = at.home, gauge
        self.figures: dict[str, list[float]] = {}

    def _note(self, name: str, value: float) -> None:
        self.figures.setdefault(name, []).append(round(value, 2))

    async def kill_indexer(self) -> None:
        gauge = self._gauge

        async def keeps_up() -> bool:
            return reached(await gauge.indexed(), await gauge.end(), NEAR_RECORDS)

        await until(keeps_up, FILL_WITHIN_S)
        killed_s, end = await self._kill("indexer"), await gauge.end()
        await asyncio.sleep(max(0.0, SETTLED_S - (time.monotonic() - killed_s)))
        before = await gauge.indexed()

        async def commits() -> bool:
            return any(at > before.get(number, 0) for number, at in (await gauge.indexed()).items())

        async def level() -> bool:
            return reached(await gauge.indexed(), end)

        await until(commits)
        self._note("indexer_commits_s", time.monotonic() - killed_s)
        self._note("indexer_cpu_s", cpu_s(pid_of(self._home, "indexer")))
        await until(level)
        self._note("indexer_level_s", time.monotonic() - killed_s)

    async def kill_replica(self) -> None:
        gauge = self._gauge

        async def keeps_up() -> bool:
            return reached(await gauge.applied(), await gauge.end(), NEAR_RECORDS)

        await until(keeps_up, FILL_WITHIN_S)
        killed_s, end = await self._kill("serve"), await gauge.end()

        async def current() -> bool:
            return reached(await gauge.applied(), end)

        await until(gauge.ready)
        self._note("replica_ready_s", time.monotonic() - killed_s)
        await until(current)
        self._note("replica_current_s", time.monotonic() - killed_s)
        self._note("replica_cpu_s", cpu_s(pid_of(self._home, "serve")))

    async def _kill(self, name: str) -> float:
        """Returns when it was; the process is gone."""
        await asyncio.sleep(BETWEEN_S)
        pid = pid_of(self._home, name)
        killed_s = time.monotonic()
        os.kill(pid, signal.SIGKILL)

        async def gone() -> bool:
            await asyncio.sleep(0)
            return not is_running(pid)

        await until(gone)
        return killed_s


async def measure(at: Endpoints, copies: int, kills: int) -> dict[str, Any]:
    load = Load(at)
    partitions = await load.begin()
    gauge = Gauge(at, partitions)
    await gauge.start()
    trial = Trial(at, gauge)
    begun = time.monotonic()
    await load.fill(copies)
    filled = await gauge.end()

    async def level() -> bool:
        return reached(await gauge.indexed(), filled) and reached(await gauge.applied(), filled)

    await until(level, FILL_WITHIN_S)
    filled_s, held = time.monotonic() - begun, await gauge.copies()
    running = asyncio.create_task(load.run())
    try:
        for _ in range(kills):
            await trial.kill_indexer()
            await trial.kill_replica()
    finally:
        running.cancel()
        ended = (await asyncio.gather(running, return_exceptions=True))[0]
        await load.end()
        await gauge.stop()
    if isinstance(ended, Exception):
        raise ended
    summary = {
        name: {"median": round(median(values), 2), "max": max(values), "all": values}
        for name, values in trial.figures.items()
    }
    return {
        "copies": held,
        "filled_s": round(filled_s, 1),
        "kills": kills,
        **summary,
        "load_average": os.getloadavg()[0],
        "cores": os.cpu_count(),
    }


def shown(value: object) -> str:
    if isinstance(value, dict):
        return f"median {value['median']:g}, max {value['max']:g}  {value['all']}"
    return str(value)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--copies", type=int, default=300_000)
    parser.add_argument("--kills", type=int, default=5, help="of each of the two")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.copies < WORKERS * CHAIN or given.kills < 1:
        parser.error(f"at least {WORKERS * CHAIN} copies and one kill")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        with running_stack(stack_settings(home), extent=Extent.ALL) as at:
            found = asyncio.run(measure(at, given.copies, given.kills))
    if given.json:
        sys.stdout.write(json.dumps(found) + "\n")
    else:
        for name, value in found.items():
            sys.stdout.write(f"{name:>20}  {shown(value)}\n")


if __name__ == "__main__":
    main()
