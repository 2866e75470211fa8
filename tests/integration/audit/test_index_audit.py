"""An audit of the index finds whatever is changed in it by hand, with both values, and nothing in a healthy one."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
from pathlib import Path

import httpx
import pytest

from auditor.index_audit import IndexAudit
from auditor.index_comparison import Round
from auditor.index_snapshot import IndexUnavailableError
from auditor.row_finding import FindingKind, LogPlace
from events.signing import verify
from kvledger.archiving import archive_log
from kvledger.checkpointing import make_checkpoint
from kvledger.command.audit_index import compare_index
from kvledger.failure import CommandError
from kvledger.settings import Settings
from tests.integration.audit.index_tampering import ROW, STREAM, UNDO, restore, waves
from tests.integration.audit.indexed import BLOCKS, Indexed, in_database, indexed, limit
from tests.integration.indexer.test_crash import wait_until
from tests.support.indexer_log import indexer_log
from tests.support.log import ALIAS, declared, opened, stored
from tests.support.random_log import RandomLog


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
