"""Block operations a second that one process folds and commits to PostgreSQL: decode, fold, transaction.

    python -m tests.benchmarks.ingest postgresql://…        (a migrated, empty database)

Workers store chains of 64 blocks and, once full, evict as many as they store, as a busy engine does.
Prints one JSON line. First target: 50,000 operations/s.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

from events.ids import EvictReason
from events.kafka.connection import RawRecord
from events.model.part import BlockEvicted
from indexer.postgres_store import PostgresStore
from indexer.projection import PartitionProjection
from tests.support.log import StreamBuilder, declared, opened, stored

WORKERS = 8
CHAIN = 64
CAPACITY_CHAINS = 250
RECORDS = 6_000
BATCH = 200


def make_records() -> tuple[list[RawRecord], int]:
    builders = [StreamBuilder(worker=f"w{number}", epoch_no=5 + number) for number in range(WORKERS)]
    held: list[list[list[bytes]]] = [[] for _ in builders]
    values = [builder.seal(opened(), events=[declared()]).value for builder in builders]
    operations = 0
    for turn in range(RECORDS):
        number = turn % WORKERS
        builder, chains = builders[number], held[number]
        ids = [os.urandom(16) for _ in range(CHAIN)]
        events = [stored(ids)]
        operations += CHAIN
        chains.append(ids)
        gone = chains.pop(0) if len(chains) > CAPACITY_CHAINS else None
        if gone is not None:
            operations += CHAIN
            evicted = BlockEvicted(holder="gpu", group=0, ids=tuple(gone), reason=EvictReason.CAPACITY)
            values.append(builder.seal(events=[*events, evicted]).value)
        else:
            values.append(builder.seal(events=events).value)
    records = [
        RawRecord("kv.events", 0, offset, b"k", value, None, 1_700_000_000_000 + offset)
        for offset, value in enumerate(values)
    ]
    return records, operations


async def main(dsn: str) -> None:
    records, operations = make_records()
    store = PostgresStore(dsn)
    lease = await store.claim("kv.events", 0)
    lease = await store.reset(lease, log_id="bench", start=0, rebuild_until=0)
    projection = PartitionProjection(0, 0)
    fold_s = write_s = 0.0
    slowest_s = 0.0
    for at in range(0, len(records), BATCH):
        begun = time.perf_counter()
        delta = projection.fold(records[at : at + BATCH])
        folded = time.perf_counter()
        assert delta is not None
        await store.write(lease, delta)
        done = time.perf_counter()
        fold_s += folded - begun
        write_s += done - folded
        slowest_s = max(slowest_s, done - begun)
    await store.close()
    sys.stdout.write(
        json.dumps(
            {
                "block_operations": operations,
                "operations_per_s": round(operations / (fold_s + write_s)),
                "fold_s": round(fold_s, 3),
                "write_s": round(write_s, 3),
                "slowest_batch_ms": round(slowest_s * 1_000, 1),
                "records": len(records),
            }
        )
        + "\n"
    )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
