"""Rows of kv.control, kv.audit and kv.quota rest on what the logs hold: after a cut that was written on they are
those of a fresh projection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from events.codec import dump
from events.ids import Role, Tier, Unit, VerdictKind
from events.kafka.connection import KafkaConnection, LogUnavailableError, make_producer
from events.kafka.partition_log import KafkaPartitionLog
from events.model.audit import AuditRecord, VerdictGiven
from events.model.control import ControlBody, DeletionRequested, DomainCreated, LimitSet, TenantScope
from events.topic import AUDIT, CONTROL
from indexer.control_projection import ControlProjection
from kvledger.control import control_writer, read_registry
from kvledger.keyfile import load_ring, load_signer
from kvledger.settings import Settings
from kvledger.simulate.nemesis.truncation import cut_log
from kvledger.stack.own import in_force
from kvledger.stack.plan import Extent
from kvledger.stack.session import running_stack
from tests.support.live_log import until
from tests.support.stack import drop_database, make_database, make_template, stack_settings, with_database

WITHIN_S = 30.0
TABLES = (
    "domain",
    "registration",
    "deletion_request",
    "quota_limit",
    "verdict",
    "checkpoint",
    "tenant_quota",
)


def domain(name: str) -> DomainCreated:
    return DomainCreated(domain=name, tenant=name)


def limit(tenant: str, hard: int) -> LimitSet:
    return LimitSet(tenant=tenant, tier=Tier.GPU, unit=Unit.BLOCKS, soft=hard, hard=hard)


def deletion(tenant: str) -> DeletionRequested:
    return DeletionRequested(scope=TenantScope(tenant=tenant), requester="test")


async def append(settings: Settings, at: KafkaConnection, *bodies: ControlBody) -> None:
    """Each a batch of its own."""
    async with control_writer(settings, await read_registry(at), Role.CONTROL) as writer:
        for body in bodies:
            await writer.append(body)


async def say(settings: Settings, at: KafkaConnection, request: int) -> None:
    """A verdict on that request, signed by the auditor."""
    signer = load_signer(settings.home, Role.AUDITOR)
    given = VerdictGiven(
        log=(await read_registry(at)).log,
        request=request,
        verdict=VerdictKind.PENDING,
        reasons=(),
        frontier=(),
        given_ms=1,
    )
    raw = dump(given)
    record = AuditRecord(signer=signer.id, signature=signer.sign(raw), statement=raw)
    producer = make_producer(at)
    await producer.start()
    try:
        await producer.send_and_wait(at.topic(AUDIT), dump(record), partition=0)
    finally:
        await producer.stop()


@asynccontextmanager
async def projecting(at: KafkaConnection, database: str, settings: Settings) -> AsyncIterator[Any]:
    """A projection that has reached the logs' ends."""
    projection = ControlProjection(
        database,
        at,
        keyring=load_ring(settings.home),
        monotonic_s=time.monotonic,
        monotonic_ns=time.monotonic_ns,
        interval_s=0.02,
    )
    log = KafkaPartitionLog(at)
    task = asyncio.create_task(projection.run())
    connection = await asyncpg.connect(database)
    try:
        async with asyncio.timeout(WITHIN_S):
            for topic in (CONTROL, AUDIT):
                name = at.topic(topic)
                _, end = await log.bounds(name, 0)
                # Also what had reached further before the cut is folded anew up to the new end.
                while task.done() or end != await connection.fetchval(
                    "SELECT next_offset FROM partition_progress WHERE topic = $1", name
                ):
                    if task.done():
                        task.result()
                    await asyncio.sleep(0.05)
        yield connection
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await connection.close()
        await log.close()


async def rows(connection: Any) -> dict[str, list[dict[str, Any]]]:
    return {
        table: sorted((dict(row) for row in await connection.fetch(f"SELECT * FROM {table}")), key=repr)
        for table in TABLES
    }


def told(found: dict[str, list[dict[str, Any]]]) -> tuple[set[str], set[tuple[str, int]], int]:
    """The test's own domains, its limits, and how many deletions there are."""
    names = {row["name"] for row in found["domain"]} & {"a", "b", "c"}
    limits = {(row["tenant"], row["hard"]) for row in found["quota_limit"]}
    return names, limits, len(found["deletion_request"])


async def whole(settings: Settings, at: KafkaConnection, cuts: dict[str, int]) -> None:
    """Cuts that many batches, and waits until the log serves again."""
    made = await cut_log(settings, cuts, [])
    assert {one.partition: one.records for one in made} == cuts
    log = KafkaPartitionLog(at)

    async def serves() -> bool:
        try:
            return (await log.bounds(at.topic(CONTROL), 0))[1] > 0
        except LogUnavailableError:
            return False

    await until(serves)
    await log.close()


@pytest.mark.timeout(240)
async def test_after_a_cut_the_rows_are_those_of_a_fresh_projection(tmp_path: Path) -> None:
    wanted = stack_settings(tmp_path / "home", partitions=1)
    with running_stack(wanted, extent=Extent.PREPARED) as given:
        settings = in_force(wanted, given)
        at = KafkaConnection(given.kafka)
        admin = with_database(given.database_url, "postgres")
        await asyncio.to_thread(make_template, admin)
        database, fresh = [await asyncio.to_thread(make_database, admin) for _ in range(2)]
        try:
            await append(settings, at, domain("a"), domain("b"), limit("a", 9), deletion("a"), limit("b", 5))
            await say(settings, at, 1)
            await say(settings, at, 2)
            async with projecting(at, database, settings) as connection:
                before = await rows(connection)
            assert told(before) == ({"a", "b"}, {("a", 9), ("b", 5)}, 1)
            await whole(settings, at, {"kv.control-0": 2, "kv.audit-0": 1})
            await append(settings, at, limit("a", 7), domain("c"), limit("c", 1))
            await say(settings, at, 3)
            await say(settings, at, 4)
            async with projecting(at, database, settings) as connection:
                after = await rows(connection)
            async with projecting(at, fresh, settings) as connection:
                expected = await rows(connection)
            assert after == expected != before
            assert told(after) == ({"a", "b", "c"}, {("a", 7), ("c", 1)}, 0)
            assert len(after["verdict"]) == 3
            # Nothing is folded anew where nothing is gone.
            async with projecting(at, database, settings) as connection:
                assert await rows(connection) == expected
            # The log of the auditor alone.
            await whole(settings, at, {"kv.audit-0": 2})
            for request in (5, 6, 7):
                await say(settings, at, request)
            async with projecting(at, database, settings) as connection:
                audited = await rows(connection)
            assert {row["request"] for row in audited["verdict"]} == {1, 5, 6, 7}
        finally:
            await asyncio.to_thread(drop_database, admin, database)
            await asyncio.to_thread(drop_database, admin, fresh)
