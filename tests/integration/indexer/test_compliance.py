"""`docs/compliance.md`, run: its scenario on a real log, its queries, its answers; and who may see what."""

from __future__ import annotations

import asyncio
import re
import secrets
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from events.codec import dump
from events.ids import EvictReason, InvalidateReason, Role, Tier, Unit, VerdictKind, VerdictReason
from events.model.audit import AuditRecord, ReasonGiven, VerdictGiven
from events.model.control import (
    DeletionRequested,
    DomainCreated,
    DomainScope,
    LimitSet,
    TenantScope,
)
from events.model.part import Ack, BlockEvicted, BlockInvalidated, DomainEvent, RequestStanding
from events.topic import AUDIT
from kvledger.keyfile import ensure_domain_secret, load_ring, load_signer
from tests.support.indexer_log import IndexerLog, indexer_log
from tests.support.log import StreamBuilder, block, declared, opened, stored

DOCUMENT = Path(__file__).parents[3] / "docs" / "compliance.md"
EXAMPLES = re.findall(r"```sql\n(.*?)```\n```text\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
SECONDS_TO_PROOF = 90


def alias(log: IndexerLog, builder: StreamBuilder, domain: str) -> bytes:
    return load_ring(log.home)[domain].alias(builder.worker, builder.rank, builder.epoch_no)


def discharged(request: int, removed: int = 0) -> Ack:
    return Ack(requests=(RequestStanding(request=request, removed=removed, old_left=0),))


async def give_verdict(log: IndexerLog, statement: VerdictGiven, role: Role = Role.AUDITOR) -> None:
    signer = load_signer(log.home, role)
    raw = dump(statement)
    record = AuditRecord(signer=signer.id, signature=signer.sign(raw), statement=raw)
    await log.producer.send_and_wait(log.connection.topic(AUDIT), dump(record), partition=0)


async def play(log: IndexerLog) -> None:
    """What the document tells."""
    for domain in ("acme-chat", "globex", "initech"):
        ensure_domain_secret(log.home, domain)
    await log.control(DomainCreated(domain="acme-chat", tenant="acme"))
    await log.control(DomainCreated(domain="globex", tenant="globex"))
    await log.control(DomainCreated(domain="initech", tenant="initech"))
    first = await log.register("gpu-0", partition=0)
    second = await log.register("gpu-1", partition=1, life="life-2")
    acme = await log.control(DeletionRequested(scope=TenantScope(tenant="acme"), requester="dpo@acme"))
    initech = await log.control(DeletionRequested(scope=DomainScope(domain="initech"), requester="ops"))
    await log.control(LimitSet(tenant="globex", tier=Tier.GPU, unit=Unit.BLOCKS, soft=2, hard=3))
    assert (acme, initech) == (12, 13)
    chain = [block("acme", number) for number in range(3)]

    def of(builder: StreamBuilder, **events: list[DomainEvent]) -> list[tuple[bytes, list[DomainEvent]]]:
        return [(alias(log, builder, domain.replace("_", "-")), listed) for domain, listed in events.items()]

    await log.send(
        0,
        [
            first.seal(
                opened(),
                parts=of(
                    first,
                    acme_chat=[declared(0, (65_536,)), stored(chain, admitted_after=5)],
                    globex=[declared(), stored([block("globex", number) for number in range(5)])],
                    initech=[discharged(initech)],
                ),
            ),
            first.seal(
                parts=of(
                    first,
                    globex=[
                        BlockEvicted(
                            holder="gpu", group=0, ids=(block("globex", 4),), reason=EvictReason.CAPACITY
                        )
                    ],
                    acme_chat=[
                        BlockInvalidated(
                            holder="gpu",
                            group=0,
                            ids=tuple(chain[1:]),
                            reason=InvalidateReason.DELETION,
                            request=acme,
                        ),
                        discharged(acme, 2),
                    ],
                )
            ),
        ],
    )
    await log.send(
        1,
        [
            second.seal(
                opened(),
                parts=of(
                    second,
                    acme_chat=[declared(0, (65_536,)), stored(chain[:2], admitted_after=5)],
                    initech=[discharged(initech)],
                ),
            )
        ],
    )
    deletions = (await log.registry()).deletions
    proven_ms = deletions[initech].header.written_ms + SECONDS_TO_PROOF * 1_000
    missing = ReasonGiven(
        reason=VerdictReason.MISSING_ACK, condition="P2", subject="gpu-1", detail="", cure="wait for its ack"
    )

    def verdict(request: int, kind: VerdictKind, *reasons: ReasonGiven) -> VerdictGiven:
        return VerdictGiven(
            log="any", request=request, verdict=kind, reasons=reasons, frontier=(), given_ms=proven_ms
        )

    await give_verdict(log, verdict(acme, VerdictKind.PENDING, missing))
    await give_verdict(log, verdict(initech, VerdictKind.PROVEN))
    await give_verdict(log, verdict(acme, VerdictKind.PROVEN), Role.CONTROL)


async def answered(database: Any) -> bool:
    """Whether indexer, control projection and controller have all got to the end."""
    row = await database.fetchrow(
        """SELECT (SELECT count(*) FROM deletion_ack) = 3 AND (SELECT count(*) FROM verdict) = 2
           AND (SELECT count(*) FROM stream_alias WHERE domain IS NULL) = 0
           AND (SELECT next_offset FROM partition_progress WHERE topic LIKE '%kv.audit') = 3
           AND EXISTS (SELECT FROM tenant_quota WHERE level = 'over_hard_limit')"""
    )
    return bool(row[0])


def shown(value: object) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


@pytest.fixture
async def log(kafka: str, topic_prefix: str, tmp_path: Path) -> AsyncIterator[IndexerLog]:
    async with indexer_log(kafka, topic_prefix, tmp_path / "home") as log:
        yield log


async def test_every_documented_question_has_the_documented_answer(
    log: IndexerLog, database: str, tmp_path: Path
) -> None:
    assert len(EXAMPLES) == 7
    processes = [log.start(name, database, tmp_path / f"{name}.log") for name in ("indexer", "controller")]
    connection = await asyncpg.connect(database)
    try:
        await play(log)
        async with asyncio.timeout(90):
            while not await answered(connection):
                await asyncio.sleep(0.1)
        await connection.execute("SET ROLE kvledger_auditor")
        for query, answer in EXAMPLES:
            rows = await connection.fetch(query)
            found = [" | ".join(shown(value) for value in row) for row in rows]
            assert found == answer.rstrip("\n").split("\n"), query
        await connection.execute("RESET ROLE")
        await _tenants_see_their_own(connection)
        for process in processes:
            process.send_signal(signal.SIGTERM)
        assert [await asyncio.to_thread(process.wait, 20) for process in processes] == [0, 0]
    finally:
        await connection.close()
        await asyncio.to_thread(_end, processes)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        process.wait(10)


async def _tenants_see_their_own(connection: Any) -> None:
    role = f"person_{secrets.token_hex(4)}"
    await connection.execute(f"CREATE ROLE {role} NOLOGIN IN ROLE kvledger_tenant")
    try:
        await connection.execute(f"SET ROLE {role}")
        views = (
            "data_now",
            "data_history",
            "deletion",
            "held_after_ack",
            "owes_ack",
            "quota_breach",
            "usage_now",
        )
        for view in views:
            assert await connection.fetch(f"SELECT * FROM compliance.{view}") == []
        await connection.execute("RESET ROLE")
        await connection.execute("INSERT INTO sql_principal VALUES ($1, 'acme')", role)
        await connection.execute(f"SET ROLE {role}")
        for view in views:
            tenants = {row["tenant"] for row in await connection.fetch(f"SELECT * FROM compliance.{view}")}
            assert tenants <= {"acme"}, view
        assert await connection.fetchval("SELECT count(*) FROM compliance.data_now") == 2
        for table in ("copy", "stream", "domain", "deletion_request", "sql_principal"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.fetch(f"SELECT * FROM {table}")
    finally:
        await connection.execute("RESET ROLE")
        await connection.execute(f"DROP ROLE {role}")
