"""`docs/compliance.md`, run: its scenario on a real log, its queries, its answers; and who may see what."""

from __future__ import annotations

import asyncio
import re
import secrets
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from events.codec import dump
from events.identity import profile_digest
from events.ids import EvictReason, InvalidateReason, Role, Tier, Unit, VerdictKind, VerdictReason
from events.model.audit import AccessBatch, AccessEntry, AuditRecord, ReasonGiven, VerdictGiven
from events.model.control import (
    DeletionRequested,
    DomainCreated,
    DomainScope,
    ExitAttested,
    HolderEnrolled,
    IdsScope,
    InvalidationRequested,
    LimitSet,
    ProfileScope,
    SubjectScope,
    TenantScope,
)
from events.model.part import (
    Ack,
    BlockEvicted,
    BlockInvalidated,
    Cleared,
    DomainEvent,
    ProfileDeclared,
    RequestStanding,
)
from events.topic import ACCESS, AUDIT
from kvledger.control import wall_ms
from kvledger.keyfile import ensure_domain_secret, load_ring, load_signer
from tests.support.indexer_log import IndexerLog, indexer_log
from tests.support.log import PROFILE, StreamBuilder, block, declared, opened, stored

DOCUMENT = Path(__file__).parents[3] / "docs" / "compliance.md"
EXAMPLES = re.findall(r"```sql\n(.*?)```\n```text\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
SECONDS_TO_PROOF = 90
OLD = PROFILE.model_copy(update={"model": "tiny-2024"})
"""What globex' copies are of, before the rollout."""


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
    LATER[:] = [second]
    acme = await log.control(DeletionRequested(scope=TenantScope(tenant="acme"), requester="dpo@acme"))
    initech = await log.control(DeletionRequested(scope=DomainScope(domain="initech"), requester="ops"))
    await log.control(LimitSet(tenant="globex", tier=Tier.GPU, unit=Unit.BLOCKS, soft=2, hard=3))
    assert (acme, initech) == (12, 13)
    rollout = InvalidationRequested(
        scope=ProfileScope(profile=bytes.fromhex(profile_digest(OLD))),
        requester="ops",
        reason="model_rollout",
    )
    assert await log.control(rollout) == 15
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
                    globex=[
                        ProfileDeclared(profile=0, content=OLD, block_bytes=(100,)),
                        stored([block("globex", number) for number in range(5)]),
                    ],
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
    await access(log)


async def access(log: IndexerLog) -> None:
    """What two lookup replicas tell, one of them twice because it didn't hear that it was heard."""
    now_ms = wall_ms()
    batches = [
        AccessBatch(
            replica=f"lookup-{number}",
            entries=(
                AccessEntry(principal="router-1", domain="acme-chat", lookups=3 + number, matched_blocks=9),
                AccessEntry(principal="router-1", domain="globex", lookups=1, matched_blocks=0),
            ),
            lost=2 * number,
            from_ms=now_ms - 5_000,
            to_ms=now_ms,
        )
        for number in range(2)
    ]
    for batch in (*batches, batches[0]):
        await log.producer.send_and_wait(log.connection.topic(ACCESS), dump(batch), partition=0)
    await log.producer.send_and_wait(log.connection.topic(ACCESS), b"garbage", partition=0)


async def later(log: IndexerLog) -> None:
    """The second worker serves a new request by emptying its holder; two workers reach one store, one owns it."""
    ring = load_ring(log.home)
    request = await log.control(DeletionRequested(scope=TenantScope(tenant="acme"), requester="dpo@acme"))
    second = LATER[0]
    await log.send(
        1,
        [
            second.seal(
                Cleared(holders=("gpu",)),
                parts=[(alias(log, second, "acme-chat"), [discharged(12), discharged(request)])],
            )
        ],
    )
    await log.control(HolderEnrolled(durable_id="store-1", tier=Tier.DISK, owner="owner"))
    opening = opened(Tier.DISK)
    shared = opening.model_copy(
        update={"holders": tuple(h.model_copy(update={"durable_id": "store-1"}) for h in opening.holders)}
    )
    for worker in ("owner", "visitor"):
        stream = await log.register(worker, partition=0)
        name = ring["initech"].alias(stream.worker, stream.rank, stream.epoch_no)
        held = stored([block("store", number) for number in range(2)], holder="disk")
        await log.send(0, [stream.seal(shared, parts=[(name, [declared(0, (10,)), held])])])


LATER: list[StreamBuilder] = []


async def answered(database: Any) -> bool:
    """Whether indexer, control projection and controller have all got to the end."""
    row = await database.fetchrow(
        """SELECT (SELECT count(*) FROM deletion_ack) = 3 AND (SELECT count(*) FROM verdict) = 2
           AND (SELECT count(*) FROM stream_alias WHERE domain IS NULL) = 0
           AND (SELECT next_offset FROM partition_progress WHERE topic LIKE '%kv.audit') = 3
           AND (SELECT next_offset FROM partition_progress WHERE topic LIKE '%kv.access') = 4
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
    assert len(EXAMPLES) == 10
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
        await later(log)
        await _stores_count_once_and_clears_are_named(connection)
        await _scopes_and_ends_are_followed(log, connection)
        for process in processes:
            process.send_signal(signal.SIGTERM)
        assert [await asyncio.to_thread(process.wait, 20) for process in processes] == [0, 0]
    finally:
        await connection.close()
        await asyncio.to_thread(_end, processes)


async def _stores_count_once_and_clears_are_named(connection: Any) -> None:
    async with asyncio.timeout(60):
        while await connection.fetchval("SELECT count(*) FROM durable_holder") != 1 or (
            await connection.fetchval("SELECT sum(blocks) FROM tenant_usage WHERE tier = 'disk'") != 4
            or not await connection.fetchval(
                """SELECT count(*) FROM compliance.data_history h JOIN deletion_request r ON r.number = h.request
                   WHERE h.worker = 'gpu-1' AND h.reason = 'cleared'"""
            )
        ):
            await asyncio.sleep(0.1)
    # Whose domain an alias is comes from the projection of kv.control, after the copies.
    await _until(connection, "SELECT blocks FROM compliance.usage_now WHERE tier = 'disk'", (), [2])
    await connection.execute("SET ROLE kvledger_auditor")
    used = await connection.fetch("SELECT blocks, bytes FROM compliance.usage_now WHERE tier = 'disk'")
    assert [tuple(row) for row in used] == [(2, 20)]
    cleared = await connection.fetch(
        "SELECT DISTINCT request FROM compliance.data_history WHERE worker = 'gpu-1' AND reason = 'cleared'"
    )
    assert [row["request"] for row in cleared] == [12]
    await connection.execute("RESET ROLE")


async def _scopes_and_ends_are_followed(log: IndexerLog, connection: Any) -> None:
    """A subject's leaves lie in a domain that isn't its own; a model has several profiles; a clear serves only what
    the request covers; an engine's end takes its memory along."""
    name = load_ring(log.home)["initech"]
    chain = [block("initech", number) for number in range(3)]
    third = await log.register("gpu-2", partition=0, life="life-3")
    fourth = await log.register("gpu-3", partition=0, life="life-4")

    def of(stream: StreamBuilder, *events: DomainEvent) -> list[tuple[bytes, list[DomainEvent]]]:
        return [(name.alias(stream.worker, 0, stream.epoch_no), list(events))]

    held = (declared(0, (10,)), stored(chain, admitted_after=5))
    await log.send(0, [third.seal(opened(), parts=of(third, *held))])
    await log.send(0, [fourth.seal(opened(), parts=of(fourth, *held))])
    subject = await log.control(
        DeletionRequested(
            scope=SubjectScope(domain="initech", subject="p-17", pseudonym=bytes(32), leaves=(chain[1],)),
            requester="dpo",
        )
    )
    named = await log.control(
        DeletionRequested(scope=IdsScope(domain="initech", ids=(chain[2],)), requester="dpo")
    )
    other = bytes.fromhex(profile_digest(PROFILE.model_copy(update={"revision": "never declared"})))
    old = bytes.fromhex(profile_digest(OLD))
    rollout = await log.control(
        InvalidationRequested(
            scope=ProfileScope(profile=other, others=(old,)), requester="ops", reason="model_rollout"
        )
    )
    owing = "SELECT worker FROM compliance.owes_ack WHERE request = $1 AND domain = 'initech' ORDER BY worker"
    await _until(connection, owing, (subject,), ["gpu-0", "gpu-1", "gpu-2", "gpu-3", "owner", "visitor"])
    discharges = discharged(subject), discharged(named)
    await log.send(0, [third.seal(Cleared(holders=("gpu",)), parts=of(third, *discharges))])
    await _until(connection, owing, (subject,), ["gpu-0", "gpu-1", "gpu-3", "owner", "visitor"])
    history = """SELECT coalesce(request::text, 'none') || ' ' || reason FROM compliance.data_history
                 WHERE worker = $1 AND domain = 'initech' ORDER BY array_position($2::bytea[], block)"""
    served = ["none cleared", f"{subject} cleared", f"{named} cleared"]
    await _until(connection, history, ("gpu-2", chain), served)
    left = "SELECT blocks FROM compliance.rollout_leftover WHERE request = $1"
    await _until(connection, left, (rollout,), [4])
    await log.send(0, [fourth.seal(parts=of(fourth, *discharges))])
    kept = """SELECT encode(block, 'hex') FROM compliance.held_after_ack WHERE request = $1 AND worker = 'gpu-3'
              ORDER BY array_position($2::bytea[], block)"""
    await _until(connection, kept, (subject, chain), [one.hex() for one in chain[1:]])
    attested = ExitAttested(worker="gpu-3", engine_life="life-4", attester="node", evidence="exit 0")
    await log.control(attested)
    await _until(connection, history, ("gpu-3", chain), ["none engine_ended"] * 3)
    assert not await connection.fetch("SELECT FROM compliance.data_now WHERE worker = 'gpu-3'")


async def _until(connection: Any, query: str, given: tuple[object, ...], wanted: Sequence[object]) -> None:
    """Waits until the auditor's role reads this, one column, in this order."""
    found: list[object] = []
    await connection.execute("SET ROLE kvledger_auditor")
    try:
        async with asyncio.timeout(60):
            while found != list(wanted):
                found = [row[0] for row in await connection.fetch(query, *given)]
                await asyncio.sleep(0.05)
    except TimeoutError:
        assert found == list(wanted)
    finally:
        await connection.execute("RESET ROLE")


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
            "rollout_leftover",
            "access",
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
        assert await connection.fetchval("SELECT sum(lookups) FROM compliance.access") == 7
        hidden = (
            "copy",
            "stream",
            "domain",
            "deletion_request",
            "sql_principal",
            "access_log",
            "access_batch",
        )
        for table in (*hidden, "compliance.access_loss"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.fetch(f"SELECT * FROM {table}")
    finally:
        await connection.execute("RESET ROLE")
        await connection.execute(f"DROP ROLE {role}")
