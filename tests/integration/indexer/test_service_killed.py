"""Kill -9 of PostgreSQL and of Kafka under a running indexer: it goes on by itself, and the index equals the fold."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from pathlib import Path

import asyncpg
import pytest

from events.fold.digest import index_digest
from indexer.postgres_store import PostgresStore
from kvledger.command.migrate import run_migrations
from kvledger.stack.plan import Extent
from kvledger.stack.session import read_running, running_stack
from kvledger.stack.state import Home
from tests.support.indexer_log import IndexerLog, indexer_log
from tests.support.stack import stack_settings
from tests.support.store_contract import usage_of


def kill(home: Path, service: str) -> None:
    """SIGKILL to the service's first process; its supervisor starts it again."""
    (process,) = [s.process for s in read_running(Home(home)).services if s.name == service]
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)


async def caught_up(database: str, log: IndexerLog, *, timeout_s: float) -> float:
    """Seconds until everything sent is committed, services coming and going."""
    begun = time.monotonic()
    topic = f"{log.connection.names.prefix}kv.events"
    while True:
        try:
            connection = await asyncpg.connect(database, timeout=2)
            try:
                rows = await connection.fetch(
                    "SELECT partition, next_offset FROM partition_progress WHERE topic = $1", topic
                )
            finally:
                await connection.close(timeout=2)
            if dict(rows) == log.counts:
                return time.monotonic() - begun
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            pass
        assert time.monotonic() - begun < timeout_s, f"not caught up within {timeout_s:g} s"
        await asyncio.sleep(0.05)


@pytest.mark.timeout(280)
async def test_index_survives_both_services(tmp_path: Path, topic_prefix: str) -> None:
    home = tmp_path / "stack"
    with running_stack(stack_settings(home), extent=Extent.SERVICES) as at:
        await asyncio.to_thread(run_migrations, at.database_url)
        async with indexer_log(at.kafka, topic_prefix, tmp_path / "home") as log:
            output = tmp_path / "indexer.log"
            process = log.start("indexer", at.database_url, output)
            try:
                await _through_both(log, at.database_url, home, process)
            except AssertionError as error:
                raise AssertionError(output.read_text()[-4_000:]) from error
            finally:
                process.kill()
                await asyncio.to_thread(process.wait, 10)


async def _through_both(log: IndexerLog, database: str, home: Path, process: subprocess.Popen[bytes]) -> None:
    logs = [await log.random(20 + number, number) for number in (0, 1)]

    async def send(count: int) -> None:
        for one in logs:
            await log.send(one.partition, [record.value for record in one.records(count)])

    await send(100)
    await caught_up(database, log, timeout_s=90)
    for service in ("postgres", "kafka"):
        kill(home, service)
        await send(150)
        await caught_up(database, log, timeout_s=90)
        await send(50)
        assert await caught_up(database, log, timeout_s=90) < 30
    assert process.poll() is None
    registry, states = await log.registry(), await log.fold()
    store = PostgresStore(database)
    try:
        assert await store.digest(registry) == index_digest(states, registry)
        assert await store.usage() == usage_of(states)
    finally:
        await store.close()
