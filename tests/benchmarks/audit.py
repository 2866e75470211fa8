"""Block operations a second of an audit's replay, from Kafka and from an archive; its memory; what a later audit costs.

    python -m tests.benchmarks.audit [--records 4000] [--chain 64 4] [--captured] [--json]

Starts a Kafka of its own. Four workers store chains of blocks, one a record, and evict as many once they hold 250,
then a tenant is deleted; the log is taken at one size and at four times that, with the same inventory. `--captured`
adds a log whose records store, evict and clear as many blocks as the batches of the captured vLLM streams did, over and
over: what a small engine really writes (`blocks` 0; some 6 operations a record). Each audit runs
in a process of its own, through the code of `kvledger audit run`, and must come to PROVEN. `per_cpu_s` divides by that
process' processor time, which no other load blurs. Target: 100,000 operations/s a core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from events.chain import sha256
from events.hooks.engine_event import AllBlocksCleared
from events.hooks.engine_event import BlockRemoved as EngineRemoved
from events.hooks.engine_event import BlockStored as EngineStored
from events.hooks.vllm import decode_batch
from events.ids import EvictReason, Lineage, Role
from events.kafka.connection import KafkaConnection, make_producer
from events.kafka.topic_admin import TopicAdmin
from events.model.part import BlockEvicted, BlockStored, Cleared, DomainEvent
from events.topic import CONTROL, EVENTS, SIGNATURE_HEADER, TopicNames
from kvledger.archiving import archive_log
from kvledger.checkpointing import make_checkpoint
from kvledger.command.audit import audit_requests
from kvledger.keyfile import key_path, ring_path, write_private
from kvledger.settings import Settings
from kvledger.stack.plan import Extent
from kvledger.stack.session import running_stack
from tests.support.audit_log import RING, AuditLog, HookStub
from tests.support.capture import load_capture
from tests.support.log import ControlLog
from tests.support.stack import stack_settings

WORKERS, HELD_CHAINS, PARTITIONS = 4, 250, 4
LATER_RECORDS = 100
CAPTURED = 0
"""Stands for the captured streams in place of a number of blocks."""
CAPTURES = ("A_main", "B1", "B3", "B6", "C1", "C2", "C3", "C5", "V28", "K")


@dataclass(frozen=True, slots=True)
class Row:
    """One audit. `operations`: block operations of the whole log; `read`: those of the records that were read."""

    source: str
    chain: int
    records: int
    operations: int
    read: int
    cpu_s: float
    wall_s: float
    per_cpu_s: int
    resident_mb: int


class Shape(NamedTuple):
    """Blocks that one record stores and removes; `cleared`: everything held before goes first."""

    stored: int
    removed: int
    cleared: bool = False


def captured_shapes() -> list[Shape]:
    """Of each published batch that was captured, in order; a batch becomes one record."""
    found: list[Shape] = []
    for name in CAPTURES:
        for message in load_capture(name):
            if message.channel == "pub":
                events = decode_batch(message.seq, message.payload).events
                stored = sum(len(one.hashes) for one in events if isinstance(one, EngineStored))
                removed = sum(len(one.hashes) for one in events if isinstance(one, EngineRemoved))
                found.append(Shape(stored, removed, any(isinstance(one, AllBlocksCleared) for one in events)))
    return found


class Workload:
    """A log in memory, sent to Kafka as it grows; `operations` counts blocks stored and removed, not those that a clear
    took with it."""

    def __init__(self, kafka: str, prefix: str, home: Path, chain: int) -> None:
        self.chain = chain
        self.settings = Settings(home=home, kafka=kafka, topic_prefix=prefix, partitions=PARTITIONS)
        self.connection = KafkaConnection(kafka, TopicNames(prefix))
        self.log = AuditLog(ControlLog(partitions=PARTITIONS))
        self.hooks = [self.log.hook("w" * (number + 1)).open() for number in range(WORKERS)]
        self.held: list[list[bytes]] = [[] for _ in self.hooks]
        self.shapes = captured_shapes() if chain == CAPTURED else []
        self.operations = self.records = 0
        self.rng = random.Random(7)
        self._sent: dict[str, int] = {}

    def work(self, records: int, domain: str) -> None:
        """Without a change of kv.control in between: every record names the same position of it."""
        position = self.hooks[0].position()
        for turn in range(records):
            hook, held = self.hooks[turn % WORKERS], self.held[turn % WORKERS]
            hook.position = lambda: position  # type: ignore[method-assign]
            full = len(held) >= self.chain * HELD_CHAINS
            shape = Shape(self.chain, self.chain if full else 0)
            if self.shapes:
                shape = self.shapes[turn // WORKERS % len(self.shapes)]
            self._write(hook, held, shape, domain, position.offset)
        self.records += records
        for hook in self.hooks:
            del hook.position

    def _write(self, hook: HookStub, held: list[bytes], shape: Shape, domain: str, installed: int) -> None:
        if shape.cleared:
            held.clear()
        packed = self.rng.randbytes(16 * shape.stored)
        ids = tuple(packed[at : at + 16] for at in range(0, len(packed), 16))
        gone = tuple(held[: shape.removed])
        held[: shape.removed] = []
        held += ids
        events: list[DomainEvent] = []
        if ids:
            events.append(
                BlockStored(
                    holder="gpu",
                    group=0,
                    profile=0,
                    ids=ids,
                    lineage=Lineage.PREFILL,
                    admitted_after=installed,
                )
            )
        if gone:
            events.append(BlockEvicted(holder="gpu", group=0, ids=gone, reason=EvictReason.CAPACITY))
        said = [Cleared(holders=("gpu",))] if shape.cleared else []
        hook.write(*said, parts={domain: events} if events else {})
        self.operations += len(ids) + len(gone)

    def delete(self) -> int:
        """Every worker removes what it holds and answers; the request's number."""
        request = self.log.delete()
        for hook, held in zip(self.hooks, self.held, strict=True):
            hook.held["gpu", "acme"] = dict.fromkeys(held, 0)
            self.operations += len(held)
            hook.obey(request)
            held.clear()
        nonce = self.log.nonce(request)
        for hook in self.hooks:
            hook.ack(request, nonce=nonce)
        return request

    async def send(self) -> None:
        producer = make_producer(self.connection, linger_ms=5, max_batch_bytes=1 << 20)
        await producer.start()
        try:
            await self._send(producer, self.connection.topic(CONTROL), 0, self.log.control.records)
            for partition, told in self.log.events.items():
                pairs = [(one.value, one.signature) for one in told]
                await self._send(producer, self.connection.topic(EVENTS), partition, pairs)
        finally:
            await producer.stop()

    async def _send(
        self, producer: Any, topic: str, partition: int, pairs: list[tuple[bytes, bytes | None]]
    ) -> None:
        where, waiting = f"{topic}/{partition}", []
        for value, signature in pairs[self._sent.get(where, 0) :]:
            headers = [] if signature is None else [(SIGNATURE_HEADER, signature)]
            waiting.append(await producer.send(topic, value, key=b"k", partition=partition, headers=headers))
        for one in waiting:
            await one
        self._sent[where] = len(pairs)

    def audit(self, source: str, request: int, read: int, *more: str) -> Row:
        """In a process of its own."""
        given = [str(self.settings.home), str(self.settings.kafka), self.settings.topic_prefix, str(request)]
        done = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.audit", "--child", *given, *more],
            stdout=subprocess.PIPE,
            check=True,
        )
        found = json.loads(done.stdout)
        if found["kind"] != "PROVEN":
            raise SystemExit(f"the audit from {source} says {found['kind']}")
        return Row(
            source,
            self.chain,
            self.records,
            self.operations,
            read,
            round(found["cpu_s"], 2),
            round(found["wall_s"], 2),
            round(read / found["cpu_s"]),
            found["resident_mb"],
        )


def write_keys(home: Path) -> None:
    for role in Role:
        write_private(key_path(home, role), sha256(role.value.encode()).hex())
    secrets = {name: sha256(b"secret of " + name.encode()).hex() for name in RING}
    write_private(ring_path(home), json.dumps({"domains": secrets}))


async def measure(kafka: str, folder: Path, prefix: str, records: int, chain: int) -> list[Row]:
    home = folder / prefix
    write_keys(home)
    load = Workload(kafka, f"{prefix}.", home, chain)
    await TopicAdmin(load.connection, partitions=PARTITIONS, replication=1).ensure()
    load.work(records, "acme")
    request = load.delete()
    await load.send()
    await make_checkpoint(load.settings)
    rows = [load.audit("Kafka", request, load.operations)]
    load.audit("Kafka, keeping its state", request, load.operations, "--incremental")
    before = load.operations
    load.work(LATER_RECORDS, "umbrella")
    await load.send()
    rows.append(
        load.audit(
            f"what {LATER_RECORDS} records changed", request, load.operations - before, "--incremental"
        )
    )
    await make_checkpoint(load.settings)
    place = str(folder / f"{prefix}-archive")
    await archive_log(load.settings, place, write=True, release=True, keep_days=0)
    rows.append(load.audit("archive", request, load.operations, "--archive", place))
    return rows


def most_resident_mb() -> int:
    """The largest resident set so far; `getrusage` would count that of the process which started this one."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


async def child(given: list[str], archive: str | None, *, incremental: bool) -> None:
    home, kafka, prefix, request = given
    settings = Settings(home=Path(home), kafka=kafka, topic_prefix=prefix, partitions=PARTITIONS)
    begun, begun_cpu = time.perf_counter(), time.process_time()
    (verdict,) = await audit_requests(
        settings, [int(request)], wait_s=0.0, archive=archive, incremental=incremental
    )
    found = {
        "kind": verdict.kind,
        "cpu_s": time.process_time() - begun_cpu,
        "wall_s": time.perf_counter() - begun,
        "resident_mb": most_resident_mb(),
    }
    sys.stdout.write(json.dumps(found) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--records", type=int, default=4_000)
    parser.add_argument(
        "--chain", type=int, nargs="+", default=[64, 4], help="blocks stored by a record; one log for each"
    )
    parser.add_argument("--captured", action="store_true", help="a log of the captured streams' records too")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--archive", help=argparse.SUPPRESS)
    parser.add_argument("--incremental", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        asyncio.run(child(options.child, options.archive, incremental=options.incremental))
        return
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        running_stack(stack_settings(Path(folder) / "home"), extent=Extent.SERVICES) as at,
    ):
        for chain in [*options.chain, *([CAPTURED] if options.captured else [])]:
            for times in (1, 4):
                name, records = f"c{chain}x{times}", times * options.records
                rows += asyncio.run(measure(at.kafka, Path(folder), name, records, chain))
    load = os.getloadavg()[0]
    if options.json:
        print(json.dumps({"rows": [asdict(one) for one in rows], "load_average": load}))
        return
    print(
        f"{'read from':30}{'blocks':>7}{'records':>9}{'operations':>12}{'read':>10}{'cpu s':>8}{'wall s':>8}"
        f"{'ops/cpu s':>11}{'MB':>6}"
    )
    for one in rows:
        print(
            f"{one.source:30}{one.chain:7d}{one.records:9d}{one.operations:12d}{one.read:10d}{one.cpu_s:8.2f}"
            f"{one.wall_s:8.2f}{one.per_cpu_s:11d}{one.resident_mb:6d}"
        )
    print(f"load average {load:.1f}")


if __name__ == "__main__":
    main()
