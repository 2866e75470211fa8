"""An audit of the index finds whatever is changed in it by hand, with both values, and nothing in a healthy one."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from auditor.index_audit import IndexAudit
from auditor.index_comparison import Round
from auditor.index_snapshot import IndexUnavailableError
from auditor.row_finding import FindingKind, LogPlace
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
from kvledger.archiving import archive_log
from kvledger.checkpointing import make_checkpoint
from kvledger.command.audit_index import compare_index
from kvledger.failure import CommandError
from kvledger.keyfile import load_signer
from kvledger.settings import Settings
from tests.integration.indexer.test_crash import caught_up, wait_until
from tests.support.indexer_log import IndexerLog, indexer_log
from tests.support.log import ALIAS, declared, opened, stored
from tests.support.log import block as name
from tests.support.random_log import RandomLog

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


HOLDER = "(SELECT h.id FROM holder h JOIN stream s ON s.id = h.stream_id WHERE s.worker = 'gpu-0' AND h.name = 'gpu')"
STREAM = "(SELECT id FROM stream WHERE worker = 'gpu-0')"
BLOCK = f"'\\x{BLOCKS[4].hex()}'"
OTHER = "'\\x" + "ab" * 16 + "'"
ROW = f"holder_id = {HOLDER} AND block = {BLOCK}"
PENDING = (
    "INSERT INTO copy_attribute (stream_id, alias, profile, state, lineage, admitted_after, pinned, transfer) "
    "SELECT stream_id, alias, profile, 'pending', lineage, admitted_after, pinned, transfer "
    f"FROM copy_attribute WHERE id = (SELECT attribute_id FROM copy WHERE {ROW})"
)

Case = tuple[FindingKind, str, str | None, str | None, str]

CASES: dict[str, Case] = {
    # what, the kind found, the table to restore, what the index then says, what the log says, the tampering
    "copy deleted": (FindingKind.COPY, "copy", None, "state=committed", f"DELETE FROM copy WHERE {ROW}"),
    "copy added": (
        FindingKind.COPY, "copy", "state=committed", None,
        f"INSERT INTO copy SELECT holder_id, group_index, {OTHER}, parent, attribute_id, since_offset "
        f"FROM copy WHERE {ROW}",
    ),
    "copy's state altered": (
        FindingKind.COPY, "copy", "state=pending", "state=committed",
        f"WITH a AS ({PENDING} RETURNING id) UPDATE copy SET attribute_id = a.id FROM a WHERE {ROW}",
    ),
    "copy's provenance altered": (
        FindingKind.COPY, "copy_attribute", "admitted_after=999", "admitted_after=none",
        f"UPDATE copy_attribute SET admitted_after = 999 WHERE stream_id = {STREAM} AND admitted_after IS NULL",
    ),
    "copy unpinned": (
        FindingKind.COPY, "copy_attribute", "pinned=False", "pinned=True",
        f"UPDATE copy_attribute SET pinned = false WHERE stream_id = {STREAM} AND pinned",
    ),
    "copy's parent altered": (
        FindingKind.COPY, "copy", f"parent={'ab' * 16}", f"parent={BLOCKS[3].hex()}",
        f"UPDATE copy SET parent = {OTHER} WHERE {ROW}",
    ),
    "copy's begin altered": (
        FindingKind.COPY, "copy", "since_offset=0", "since_offset=3",
        f"UPDATE copy SET since_offset = 0 WHERE {ROW}",
    ),
    "copies adrift": (
        FindingKind.COPY, "copy", "copies of no holder", None,
        f"UPDATE copy SET holder_id = 4000000 WHERE {ROW}",
    ),
    "usage altered": (
        FindingKind.USAGE, "tenant_usage", "blocks=5", "blocks=6",
        f"UPDATE tenant_usage SET blocks = 5 WHERE stream_id = {STREAM} AND tier = 'gpu'",
    ),
    "usage removed": (
        FindingKind.USAGE, "tenant_usage", None, "bytes=600",
        f"DELETE FROM tenant_usage WHERE stream_id = {STREAM}",
    ),
    "offset moved back": (
        FindingKind.POSITION, "partition_progress", "next_offset=4", "last_record_sha256=",
        "UPDATE partition_progress SET next_offset = 4 WHERE topic LIKE '%kv.events' AND partition = 1",
    ),
    "offset moved past the log": (
        FindingKind.POSITION, "partition_progress", "next_offset=100000", "the log ends at",
        "UPDATE partition_progress SET next_offset = 100000 WHERE topic LIKE '%kv.events' AND partition = 0",
    ),
    "another log's": (
        FindingKind.POSITION, "partition_progress", "log_id=other", "log_id=",
        "UPDATE partition_progress SET log_id = 'other' WHERE topic LIKE '%kv.events' AND partition = 0",
    ),
    "control's hash altered": (
        FindingKind.POSITION, "partition_progress", "control_hash=00", "control_hash=",
        "UPDATE partition_progress SET control_hash = '\\x00' WHERE topic LIKE '%kv.control'",
    ),
    "tombstone removed": (
        FindingKind.REQUEST, "deletion_request", None, "requester=dpo",
        "DELETE FROM deletion_request WHERE tenant = 'acme'",
    ),
    "request invented": (
        FindingKind.REQUEST, "deletion_request", "reason=made up", None,
        "INSERT INTO deletion_request SELECT 1, kind, scope_type, scope, tenant, domain, scope_ids, requester, "
        "'made up', deadline_s, requested_at, record_sha256 FROM deletion_request WHERE tenant = 'acme'",
    ),
    "request given to another tenant": (
        FindingKind.REQUEST, "deletion_request", "tenant=nobody", "tenant=late",
        "UPDATE deletion_request SET tenant = 'nobody' WHERE domain = 'later'",
    ),
    "ack altered": (
        FindingKind.ACK, "deletion_ack", "removed=20", "removed=2",
        f"UPDATE deletion_ack SET removed = 20 WHERE stream_id = {STREAM}",
    ),
    "ack removed": (
        FindingKind.ACK, "deletion_ack", None, "old_left=0",
        f"DELETE FROM deletion_ack WHERE stream_id = {STREAM}",
    ),
    "limit changed": (
        FindingKind.LIMIT, "quota_limit", "hard=500", "hard=5", "UPDATE quota_limit SET hard = 500",
    ),
    "limit removed": (FindingKind.LIMIT, "quota_limit", None, "soft=1", "DELETE FROM quota_limit"),
    "quota altered": (
        FindingKind.QUOTA, "tenant_quota", "used=0", "used=2", "UPDATE tenant_quota SET used = 0",
    ),
    "breach hidden": (
        FindingKind.QUOTA_CHANGE, "quota_change", None, "level=over_soft_limit",
        "DELETE FROM quota_change WHERE level = 'over_soft_limit'",
    ),
    "domain sold": (
        FindingKind.DOMAIN, "domain", "tenant=globex", "tenant=acme",
        "UPDATE domain SET tenant = 'globex' WHERE name = 'acme-chat'",
    ),
    "tenant let in": (
        FindingKind.DOMAIN, "domain", "admitted=[globex,initech]", "admitted=[globex]",
        "UPDATE domain SET admitted = '{globex,initech}' WHERE name = 'acme-chat'",
    ),
    "epoch fenced by nobody": (
        FindingKind.REGISTRATION, "registration", "fenced=operator", "fenced=none",
        "UPDATE registration SET fenced = 'operator' WHERE worker = 'gpu-0'",
    ),
    "exit attested by nobody": (
        FindingKind.REGISTRATION, "registration", "exit_attested=True", "exit_attested=False",
        "UPDATE registration SET exit_attested = true WHERE worker = 'gpu-0'",
    ),
    "registration removed": (
        FindingKind.REGISTRATION, "registration", None, "worker=gpu-0",
        "DELETE FROM registration WHERE worker = 'gpu-0'",
    ),
    "holder said to be known": (
        FindingKind.HOLDER, "holder", "inventory=known", "inventory=empty",
        f"UPDATE holder SET inventory = 'known' WHERE id = {HOLDER}",
    ),
    "profile's price altered": (
        FindingKind.PROFILE, "profile", "block_bytes=[1]", "block_bytes=[100]",
        f"UPDATE profile SET block_bytes = '{{1}}' WHERE stream_id = {STREAM}",
    ),
    "alias removed": (
        FindingKind.ALIAS, "stream_alias", None, "", f"DELETE FROM stream_alias WHERE stream_id = {STREAM}",
    ),
    "stream said to be live": (
        FindingKind.STREAM, "", "status=draining", "status=live",
        "UPDATE stream SET status = 'draining' WHERE worker = 'gpu-0'",
    ),
    "stream's number moved": (
        FindingKind.STREAM, "", "next_seq=3", "next_seq=4",
        "UPDATE stream SET next_seq = 3 WHERE worker = 'gpu-0'",
    ),
    "store given away": (
        FindingKind.STORE, "durable_holder", "owner=gpu-0", "owner=again",
        "UPDATE durable_holder SET owner = 'gpu-0'",
    ),
    "verdict turned": (
        FindingKind.VERDICT, "verdict", "verdict=PROVEN", "verdict=PENDING", "UPDATE verdict SET verdict = 'PROVEN'",
    ),
    "checkpoint invented": (
        FindingKind.CHECKPOINT, "checkpoint", "signer=nobody", None,
        "INSERT INTO checkpoint VALUES (77, '[]', '', 'nobody')",
    ),
}  # fmt: skip
UNDO = "UPDATE stream SET status = 'live', next_seq = 4 WHERE worker = 'gpu-0'"


async def test_a_row_changed_by_hand_is_found_with_both_values(
    kafka: str, topic_prefix: str, tmp_path: Path, database: str
) -> None:
    async with indexed(kafka, topic_prefix, tmp_path / "home", database) as world:
        assert_equal(await world.audit.round())
        for wave in waves():
            tables = {table for _, table, *_ in wave.values() if table}
            await in_database(
                database,
                *(f"CREATE TABLE saved_{table} AS TABLE {table}" for table in tables),
                *(tampering for *_, tampering in wave.values()),
            )
            found = await world.audit.round()
            for what, (kind, _, index, log, _) in wave.items():
                shown = [one for one in found.findings.shown if one.kind is kind]
                assert any(_says(one.index, index) and _says(one.log, log) for one in shown), (what, shown)
            for table in tables:
                await restore(database, table)
            await in_database(database, UNDO)
        assert_equal(await world.audit.round())
        await names_the_records(world)
        await the_command_says_so(world, tmp_path)


def waves() -> Iterator[dict[str, Case]]:
    """Cases that don't disturb each other: of each table one. A moved position changes what all is compared with."""
    left = dict(CASES)
    while left:
        wave: dict[str, Case] = {}
        tables: set[str] = set()
        for what, case in list(left.items()):
            alone = case[1] == "partition_progress"
            if case[1] not in tables and not (alone and wave) and "partition_progress" not in tables:
                wave[what] = left.pop(what)
                tables.add(case[1])
        yield wave


async def restore(database: str, table: str) -> None:
    saved = f"saved_{table}"
    [columns] = await in_database(
        database,
        "SELECT string_agg(quote_ident(column_name), ', ') FROM information_schema.columns "
        f"WHERE table_name = '{saved}'",
    )
    await in_database(
        database,
        f"DELETE FROM {table}",
        f"INSERT INTO {table} ({columns[0][0]}) OVERRIDING SYSTEM VALUE SELECT * FROM {saved}",
        f"DROP TABLE {saved}",
    )


def _says(value: str | None, wanted: str | None) -> bool:
    return value is None if wanted is None else value is not None and wanted in value


def assert_equal(found: Round) -> None:
    assert [str(one) for one in found.findings.shown] == []
    assert found.findings.total == 0
    assert found.headless == {}


async def names_the_records(world: Indexed) -> None:
    """Of rows that are gone or altered: the record that last touched them."""
    await in_database(
        world.database,
        f"DELETE FROM copy WHERE {ROW}",
        "UPDATE quota_limit SET hard = 500",
        f"UPDATE deletion_ack SET removed = 20 WHERE stream_id = {STREAM}",
    )
    found = {one.kind: one for one in (await world.audit.round()).findings.shown}
    assert found[FindingKind.COPY].record == LogPlace("kv.events", 1, 3)
    assert found[FindingKind.ACK].record == LogPlace("kv.events", 1, 2)
    limit_at = found[FindingKind.LIMIT].record
    assert limit_at is not None
    assert (limit_at.topic, limit_at.offset < world.request) == ("kv.control", True)
    assert BLOCKS[4].hex() in found[FindingKind.COPY].where


async def the_command_says_so(world: Indexed, folder: Path) -> None:
    """Of the index that is different now: its exit code and JSON, then the figures of one that goes on."""
    output = folder / "audit.json"
    once = world.log.start("audit", world.database, output, "index", "--json")
    assert await asyncio.to_thread(once.wait, 120) == 1
    said = json.loads(output.read_text())
    assert (said["equal"], said["findings"]["counts"]) == (False, {"copy": 1, "ack": 1, "limit": 1})
    assert {one["record"]["topic"] for one in said["findings"]["shown"]} == {"kv.events", "kv.control"}
    away = world.log.start("audit", "postgresql://u@127.0.0.1:9/none", folder / "away.txt", "index")
    assert await asyncio.to_thread(away.wait, 120) == 69
    assert "Traceback" not in (folder / "away.txt").read_text()
    told = folder / "watch.txt"
    watching = world.log.start(
        "audit", world.database, told, "index", "--follow", "--port", "0", "--every-s", "0.2", "--share", "1"
    )
    try:
        await wait_until(lambda: figure_is(told, 'findings{kind="copy"}', 1.0))
        await in_database(world.database, "UPDATE quota_limit SET hard = 5")
        await wait_until(lambda: figure_is(told, 'findings{kind="limit"}', 0.0))
        assert 0 <= (await figures(told))["lag_seconds"] < 60
        watching.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(watching.wait, 30) == 0
    finally:
        watching.kill()
    lines = [line for line in told.read_text().splitlines() if " ERROR " in line]
    assert len(lines) == 3, "each difference is logged once"


async def figures(told: Path) -> dict[str, float]:
    """The page of the process that writes there."""
    address = re.search(r"http://[0-9.:]+/metrics", await asyncio.to_thread(told.read_text))
    if address is None:
        return {}
    async with httpx.AsyncClient(trust_env=False) as client:
        page = (await client.get(address[0])).text
    lines = [line.removeprefix("kvledger_audit_index_").rsplit(" ", 1) for line in page.splitlines()]
    return {name: float(value) for name, value in lines if not name.startswith("#")}


async def figure_is(told: Path, figure: str, value: float) -> bool:
    return (await figures(told)).get(figure) == value


async def test_an_indexer_under_load_is_found_equal_again_and_again(
    kafka: str, topic_prefix: str, tmp_path: Path, database: str
) -> None:
    async with indexer_log(kafka, topic_prefix, tmp_path / "home") as log:
        made: list[RandomLog] = []
        for partition in range(2):
            made.append(await log.random(10 + partition, partition))
            made[-1].aliases = (ALIAS,)
        indexer = log.start("indexer", database, tmp_path / "indexer.log")
        stop = asyncio.Event()

        async def load() -> None:
            epoch = 0
            while not stop.is_set():
                for partition, one in enumerate(made):
                    await log.send(partition, [record.value for record in one.records(40)])
                epoch += 1
                again = await log.register("restarts", partition=0, epoch=f"e{epoch}")
                await log.send(0, [again.seal(opened(), events=[declared(), stored(BLOCKS)])])
                await log.control(limit(5 + epoch))
                await asyncio.sleep(0)

        loading = asyncio.create_task(load())
        audit = IndexAudit(database, log.connection, verify, monotonic_s=time.monotonic)
        try:
            await audit.open()
            rounds: list[Round] = []
            while len(rounds) < 8 or rounds[-1].copies == 0:
                rounds.append(await audit.round(most_copies=None if len(rounds) % 2 else 20))
                assert [str(one) for one in rounds[-1].findings.shown] == []
        finally:
            stop.set()
            await loading
            indexer.kill()
            await asyncio.to_thread(indexer.wait, 30)
            await audit.close()
        assert rounds[-1].records > rounds[0].records


async def test_what_kafka_has_dropped_is_compared_from_its_archive(
    kafka: str, topic_prefix: str, tmp_path: Path, database: str
) -> None:
    async with indexed(kafka, topic_prefix, tmp_path / "home", database) as world:
        settings = Settings(home=world.log.home, kafka=kafka, topic_prefix=topic_prefix)
        place = tmp_path / "archive"
        await make_checkpoint(settings)
        state = await archive_log(settings, str(place), write=True, release=True, keep_days=0)
        assert set(state.released) == {0, 1}
        alone = await compare_index(settings, database)
        assert alone.streams == 0
        assert alone.headless.keys() == {0, 1}
        assert [str(one) for one in alone.findings.shown] == []
        assert_equal(await compare_index(settings, database, archive=str(place)))
        await in_database(database, f"DELETE FROM copy WHERE {ROW}")
        found = await compare_index(settings, database, archive=str(place))
        assert [(one.kind, one.index) for one in found.findings.shown] == [(FindingKind.COPY, None)]
        raw = max(place.glob("*/kv.events/1/*.raw"), key=lambda file: file.stat().st_size)
        raw.write_bytes(raw.read_bytes()[:-3])
        for url, reason in ((place, "archive_unverified"), (tmp_path / "none", "archive_missing")):
            with pytest.raises(CommandError, match=reason):
                await compare_index(settings, database, archive=str(url))


async def test_a_database_that_is_away_is_said_to_be(kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    async with indexer_log(kafka, topic_prefix, tmp_path / "home") as log:
        audit = IndexAudit(
            "postgresql://u@127.0.0.1:9/none", log.connection, verify, monotonic_s=time.monotonic
        )
        await audit.open()
        try:
            with pytest.raises(IndexUnavailableError, match="PostgreSQL"):
                await audit.round()
        finally:
            await audit.close()
