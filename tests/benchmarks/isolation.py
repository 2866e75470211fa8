"""What a fault on one stream costs the others: ingest and lookups of healthy streams, with and without it.

    python -m tests.benchmarks.isolation [--seconds 3] [--only FAULT …] [--json]

The real feed applies records to a real view in turns with lookups, as in the service; the log is a list.
One healthy stream writes a record of 8 blocks every 5 ms and is asked for a prompt of
512 blocks every 2 ms. `lag`: from the moment a healthy record is in the log until it is applied. `wait`: from the
moment a lookup is due until its answer is there, so a turn of the event loop that lasts too long shows there.
All times are processor time of this one process, which never sleeps: neighbours on the machine count little.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice

from events.codec import EncodedBatch
from events.fold.change import Changes
from events.hooks.stream import RECORD_BYTES
from events.ids import Inventory
from events.kafka.connection import KafkaConnection, RawRecord
from events.model.part import (
    BlockEvicted,
    BlockStored,
    CopyRun,
    DomainEvent,
    HolderInventory,
    ProfileDeclared,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotPart,
    SnapshotRange,
    StreamEvent,
)
from indexer.service.feed import ViewFeed
from router_client.answer import answer
from router_client.limit import ViewLimits
from router_client.problem import Problem
from router_client.query import Query, make_query
from router_client.view import LocalView
from router_client.wire import LookupRequest
from tests.support.log import PROFILE, declared, opened
from tests.support.reader_world import RING, Hook, World, chain_of

HEALTHY_EVERY_S, LOOKUP_EVERY_S = 0.005, 0.002
KIDS = 400_000
READY = {"popular block": 400, "largest of hooks": 80, "largest records": 15, "gap with snapshots": 150}
"""Faulty records made beforehand, for a second of the run; 400 where not said."""
Fault = Callable[[Hook], Iterator[bytes]]


@dataclass(frozen=True, slots=True)
class Figure:
    """Milliseconds. `block_ops`: of all streams, in the time measured."""

    fault: str
    lag_p50_ms: float
    lag_p99_ms: float
    lag_max_ms: float
    wait_p50_ms: float
    wait_p99_ms: float
    wait_max_ms: float
    healthy_records: int
    lookups: int
    block_ops: int


@dataclass
class Log:
    """Two partitions: 0 is the healthy stream's, 1 the faulty one's. All that is there was fetched already."""

    waiting: list[deque[bytes]]
    offsets: list[int]

    async def fetch_evenly(self, share: int, *, timeout_ms: int, busy: Collection[int]) -> list[RawRecord]:
        await asyncio.sleep(0)
        found: list[RawRecord] = []
        for partition, waiting in enumerate(self.waiting):
            for _ in range(0 if partition in busy else min(share, len(waiting))):
                offset = self.offsets[partition]
                self.offsets[partition] += 1
                found.append(RawRecord("t", partition, offset, b"", waiting.popleft(), None, 0))
        return found

    async def position(self, topic: str, partition: int) -> int:
        return self.offsets[partition]


@dataclass(slots=True)
class TimedView(LocalView):
    """Notes when records of partition 0 are applied."""

    applied_s: list[float] = field(default_factory=list)

    def apply_record(self, partition: int, offset: int, value: bytes, now_ns: int) -> Changes | None:
        changes = LocalView.apply_record(self, partition, offset, value, now_ns)
        if partition == 0:
            self.applied_s.append(time.process_time())
        return changes


def ids(rng: random.Random, count: int) -> tuple[bytes, ...]:
    packed = rng.randbytes(16 * count)
    return tuple(packed[at : at + 16] for at in range(0, len(packed), 16))


def sealed(hook: Hook, *stream_events: StreamEvent, events: Sequence[DomainEvent] = ()) -> EncodedBatch:
    """A record that goes to the log and not to the world's own view."""
    record = hook.builder.seal(*stream_events, parts=[(hook.alias(), list(events))] if events else [])
    hook.builder.sent.clear()
    return record


def store(hook: Hook, run: Sequence[bytes], parent: bytes | None = None) -> bytes:
    return sealed(
        hook, events=[BlockStored(holder="gpu", group=0, profile=0, ids=tuple(run), parent=parent)]
    ).value


def nothing(hook: Hook) -> Iterator[bytes]:
    del hook
    yield from ()


def flood(hook: Hook) -> Iterator[bytes]:
    """Unique blocks without end, evicted again so that the view stays within its bound."""
    rng, held = random.Random(1), deque[tuple[bytes, ...]]()
    while True:
        run = ids(rng, 1_000)
        held.append(run)
        yield store(hook, run)
        if len(held) > 100:
            gone = BlockEvicted(holder="gpu", group=0, ids=held.popleft())
            yield sealed(hook, events=[gone]).value


def quarantine(hook: Hook) -> Iterator[bytes]:
    """A chain that is broken, and records that go on coming."""
    rng = random.Random(2)
    hook.builder.prev = bytes(32)
    while True:
        yield store(hook, ids(rng, 1_000))


def snapshot(hook: Hook, run: Sequence[bytes], parent: bytes) -> Iterator[bytes]:
    """The hook's inventory is these blocks (in order of their ids), all continuing `parent`."""
    yield sealed(hook, SnapshotBegin(snapshot="s", opened=opened()), events=[declared()]).value
    for at in range(0, len(run), 2_000):
        part = run[at : at + 2_000]
        low = bytes(16) if at == 0 else part[0]
        after = run[at + 2_000] if at + 2_000 < len(run) else None
        high = b"\xff" * 16 if after is None else (int.from_bytes(after) - 1).to_bytes(16)
        copies = CopyRun(profile=0, ids=tuple(part), parents=(parent,) * len(part))
        yield sealed(
            hook,
            SnapshotRange(snapshot="s", holder="gpu", group=0, low=low, high=high),
            events=[SnapshotPart(runs=(copies,))],
        ).value
    known = HolderInventory(holder="gpu", inventory=Inventory.KNOWN)
    yield sealed(hook, SnapshotEnd(snapshot="s", inventories=(known,))).value


def gap(hook: Hook) -> Iterator[bytes]:
    """Lost numbers, and a snapshot of 100,000 copies after each."""
    run = sorted(ids(random.Random(3), 100_000))
    while True:
        hook.builder.burn()
        yield from snapshot(hook, run, bytes(16))


ROOT = ids(random.Random(4), 1)


def popular_before(hook: Hook) -> Iterator[bytes]:
    yield from snapshot(hook, sorted(ids(random.Random(5), KIDS)), ROOT[0])
    yield store(hook, ROOT)


def popular(hook: Hook) -> Iterator[bytes]:
    """A block with 400,000 continuations goes and comes."""
    while True:
        yield sealed(hook, events=[BlockEvicted(holder="gpu", group=0, ids=ROOT)]).value
        yield store(hook, ROOT)


def largest_written(hook: Hook) -> Iterator[bytes]:
    """Records as large as hooks cut them."""
    yield from large(hook, RECORD_BYTES * 3 // 64 - 100)


def largest(hook: Hook) -> Iterator[bytes]:
    """Records as large as they may be."""
    yield from large(hook, 45_000)


def large(hook: Hook, count: int) -> Iterator[bytes]:
    rng = random.Random(5)
    while True:
        run = ids(rng, count)
        yield store(hook, run)
        yield sealed(hook, events=[BlockEvicted(holder="gpu", group=0, ids=run)]).value


FAULTS: dict[str, tuple[Fault, Fault]] = {
    "none": (nothing, nothing),
    "gap with snapshots": (nothing, gap),
    "quarantine": (nothing, quarantine),
    "flood": (nothing, flood),
    "popular block": (popular_before, popular),
    "largest of hooks": (nothing, largest_written),
    "largest records": (nothing, largest),
}


def fleet() -> tuple[World, TimedView, Hook, Hook]:
    """A view of two streams, one in each partition."""
    world = World()
    view = TimedView(
        reader="reader",
        registry=world.registry,
        keyring=RING,
        control_current_ns=time.process_time_ns,
        limits=ViewLimits(max_copies=2_000_000),
    )
    world.view, world.now_ns = view, time.process_time_ns()
    healthy, faulty = world.join("healthy"), world.join("faulty", start=False, partition=1)
    healthy.store(chain_of(range(512 * 16)))
    world.round(healthy)
    return world, view, healthy, faulty


async def run(fault: str, seconds: float) -> Figure:
    before, during = FAULTS[fault]
    _, view, healthy, faulty = fleet()
    start = sealed(
        faulty, opened(), events=[ProfileDeclared(profile=0, content=PROFILE, block_bytes=(100,))]
    ).value
    for value in (start, *before(faulty)):
        view.apply_record(1, view.position(1), value, time.process_time_ns())
    while not view.work(100_000):
        pass
    trouble = islice(during(faulty), round(READY.get(fault, 400) * seconds))
    log = Log([deque(), deque(trouble)], [view.position(0), view.position(1)])
    feed = ViewFeed(
        KafkaConnection("127.0.0.1:9"),
        view.registry,
        monotonic_ns=time.process_time_ns,
        wall_ms=lambda: 0,
    )
    feed.attach(view)
    rng, query = random.Random(9), question()
    records = deque(store(healthy, ids(rng, 8)) for _ in range(round(seconds / HEALTHY_EVERY_S) + 1))
    written: list[float] = []
    waits: list[float] = []
    view.applied_s.clear()
    gc.collect()
    gc.freeze()
    ops = view.counters.block_operations
    until = time.process_time() + seconds

    async def write() -> None:
        due = time.process_time() + HEALTHY_EVERY_S
        while due < until and records:
            while time.process_time() < due:
                await asyncio.sleep(0)
            log.waiting[0].append(records.popleft())
            written.append(due)
            due += HEALTHY_EVERY_S

    async def ingest() -> None:
        following = asyncio.create_task(feed._follow(view, log))
        while not writing.done() or len(view.applied_s) < len(written):
            await asyncio.sleep(0)
        following.cancel()
        await asyncio.wait([following])

    async def ask() -> None:
        due = time.process_time() + LOOKUP_EVERY_S
        while due < until:
            while time.process_time() < due:
                await asyncio.sleep(0)
            found = answer(view, query, time.process_time_ns(), 0)
            assert not isinstance(found, Problem), found
            assert found.matches[0].matched_blocks == 512
            waits.append(time.process_time() - due)
            due += LOOKUP_EVERY_S

    writing = asyncio.create_task(write())
    await asyncio.gather(writing, ingest(), ask())
    gc.unfreeze()
    lags = [done - begun for begun, done in zip(written, view.applied_s, strict=True)]
    done_ops = view.counters.block_operations - ops
    return Figure(fault, *spread(lags), *spread(waits), len(lags), len(waits), done_ops)


def question() -> Query:
    request = LookupRequest.model_validate(
        {
            "profile": PROFILE.model,
            "domain": "default",
            "token_ids": list(range(512 * 16)),
            "max_staleness_ms": 3_600_000,
        },
        strict=False,
    )
    query = make_query(request, "default")
    assert not isinstance(query, Problem)
    return query


def spread(seconds: list[float]) -> tuple[float, float, float]:
    """(p50, p99, longest) in milliseconds."""
    ranked = statistics.quantiles(seconds, n=100)
    return ranked[49] * 1e3, ranked[98] * 1e3, max(seconds) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="processor time per fault")
    parser.add_argument("--only", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = [asyncio.run(run(fault, options.seconds)) for fault in options.only]
    if options.json:
        print(json.dumps([asdict(one) for one in figures]))
        return
    print(f"{'ms':20}{'lag p50':>10}{'p99':>9}{'max':>9}{'wait p50':>10}{'p99':>9}{'max':>9}{'ops/s':>11}")
    for one in figures:
        print(
            f"{one.fault:20}{one.lag_p50_ms:10.2f}{one.lag_p99_ms:9.2f}{one.lag_max_ms:9.2f}"
            f"{one.wait_p50_ms:10.2f}{one.wait_p99_ms:9.2f}{one.wait_max_ms:9.2f}"
            f"{one.block_ops / options.seconds:11,.0f}"
        )


if __name__ == "__main__":
    main()
