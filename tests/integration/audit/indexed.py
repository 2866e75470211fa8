"""A log with one of everything that an index holds, and that index, written by the real indexer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

from auditor.index_audit import IndexAudit
from events.codec import dump
from events.ids import QuotaLevel, Role, Tier, Unit, VerdictKind
from events.kafka.connection import make_producer
from events.model.audit import AuditRecord, Checkpoint, QuotaState, VerdictGiven
from events.model.control import (
    DeletionRequested,
    DomainAdmitted,
    DomainCreated,
    DomainScope,
    HolderEnrolled,
    LimitSet,
    TenantScope,
)
from events.model.part import Ack, RequestStanding
from events.signing import verify
from events.topic import AUDIT, CONTROL, QUOTA, Topic
from kvledger.keyfile import load_signer
from tests.integration.indexer.test_crash import caught_up, wait_until
from tests.support.indexer_log import IndexerLog, indexer_log
from tests.support.log import ALIAS, declared, opened, stored
from tests.support.log import block as name

BLOCKS = tuple(name("held", number) for number in range(6))


@dataclass
class Indexed:
    """A log and its index, the indexer stopped; `request` is that of a deletion."""

    log: IndexerLog
    database: str
    request: int
    audit: IndexAudit


def limit(hard: int) -> LimitSet:
    return LimitSet(tenant="acme", tier=Tier.GPU, unit=Unit.BLOCKS, soft=1, hard=hard)


async def put(log: IndexerLog, topic: Topic, *values: bytes) -> None:
    producer = make_producer(log.connection)
    await producer.start()
    for value in values:
        await producer.send_and_wait(log.connection.topic(topic), value, key=b"k", partition=0)
    await producer.stop()


async def speak(log: IndexerLog, request: int) -> None:
    """The auditor's and the controller's words."""
    signer, log_id = load_signer(log.home, Role.AUDITOR), (await log.registry()).log
    said = (
        VerdictGiven(
            log=log_id, request=request, verdict=VerdictKind.PENDING, reasons=(), frontier=(), given_ms=1
        ),
        Checkpoint(log=log_id, positions=(), control_hash=bytes(32)),
    )
    raws = [dump(one) for one in said]
    await put(
        log,
        AUDIT,
        b"garbage",
        *(dump(AuditRecord(signer=signer.id, signature=signer.sign(raw), statement=raw)) for raw in raws),
    )
    levels = (QuotaLevel.WITHIN, QuotaLevel.OVER_SOFT_LIMIT, QuotaLevel.OVER_SOFT_LIMIT)
    states = [
        QuotaState(
            tenant="acme", tier=Tier.GPU, unit=Unit.BLOCKS, used=used, soft=1, hard=9, level=level, term=3
        )
        for used, level in enumerate(levels)
    ]
    await put(log, QUOTA, *(dump(state) for state in states))


async def in_database(database: str, *statements: str) -> list[Any]:
    connection = await asyncpg.connect(database)
    try:
        async with connection.transaction():
            return [await connection.fetch(statement) for statement in statements]
    finally:
        await connection.close()


async def settled(log: IndexerLog, database: str) -> None:
    """Every topic is folded to its end."""
    ends = {log.connection.topic(topic): len(await log.read(topic)) for topic in (AUDIT, QUOTA)}
    ends[log.connection.topic(CONTROL)] = (await log.registry()).next_offset

    async def there() -> bool:
        [rows] = await in_database(database, "SELECT topic, next_offset FROM partition_progress")
        at = {row["topic"]: row["next_offset"] for row in rows}
        return all(at.get(topic, 0) == end for topic, end in ends.items())

    await wait_until(there)
    await wait_until(lambda: caught_up(database, log))


@asynccontextmanager
async def indexed(kafka: str, prefix: str, home: Path, database: str) -> AsyncIterator[Indexed]:
    """Everything that an index holds, written by the real indexer."""
    async with indexer_log(kafka, prefix, home) as log:
        await log.control(DomainCreated(domain="acme-chat", tenant="acme"))
        await log.control(DomainAdmitted(domain="acme-chat", tenant="globex"))
        await log.control(limit(5))
        request = await log.control(
            DeletionRequested(scope=TenantScope(tenant="acme"), requester="dpo", reason="ended")
        )
        await log.control(DeletionRequested(scope=DomainScope(domain="later"), requester="dpo"))
        await log.control(DomainCreated(domain="later", tenant="late"))
        await log.control(HolderEnrolled(durable_id="store-1", tier=Tier.DISK, owner="again"))
        gpu = await log.register("gpu-0", partition=1)
        again = await log.register("again", partition=1)
        await log.send(
            1,
            [
                gpu.seal(opened(Tier.GPU, Tier.CPU), events=[declared(0, (100,))]),
                gpu.seal(events=[stored(BLOCKS[:4], admitted_after=request, pinned=True)]),
                gpu.seal(events=[Ack(requests=(RequestStanding(request=request, removed=2, old_left=0),))]),
                gpu.seal(events=[stored(BLOCKS[4:], BLOCKS[3])]),
                again.seal(opened(), events=[declared(), stored(BLOCKS)]),
            ],
        )
        later = await log.register("again", partition=1, epoch="e2")
        await log.send(1, [later.seal(opened(), events=[declared(), stored(BLOCKS[:1])]), b"garbage"])
        for partition in range(2):
            made = await log.random(partition, partition)
            made.aliases = (ALIAS,)
            await log.send(partition, [record.value for record in made.records(150)])
        await speak(log, request)
        indexer = log.start("indexer", database, home.parent / "indexer.log")
        try:
            await settled(log, database)
        finally:
            indexer.kill()
            await asyncio.to_thread(indexer.wait, 30)
        audit = IndexAudit(database, log.connection, verify, monotonic_s=time.monotonic)
        await audit.open()
        try:
            yield Indexed(log, database, request, audit)
        finally:
            await audit.close()
