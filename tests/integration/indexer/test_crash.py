"""Kill -9 at any moment changes nothing: the index equals the fold of the log."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import asyncpg
import pytest

from events.fold.digest import index_digest
from events.topic import DEAD
from indexer.postgres_store import PostgresStore
from tests.support.indexer_log import IndexerLog, indexer_log
from tests.support.store_contract import usage_of


async def wait_until(
    holds: Callable[[], Awaitable[bool]], *, timeout_s: float = 90.0, output: Path | None = None
) -> float:
    """Seconds until the condition held. `output`: what to show if it doesn't come."""
    begun = time.monotonic()
    while not await holds():
        assert time.monotonic() - begun < timeout_s, f"nothing within {timeout_s:g} s{_end_of(output)}"
        await asyncio.sleep(0.05)
    return time.monotonic() - begun


def _end_of(output: Path | None) -> str:
    return "" if output is None else f": {output.read_text()[-4_000:]}"


async def positions(database: str, log: IndexerLog) -> dict[int, int]:
    connection = await asyncpg.connect(database)
    try:
        rows = await connection.fetch(
            "SELECT partition, next_offset FROM partition_progress WHERE topic = $1",
            log.connection.names.prefix + "kv.events",
        )
    finally:
        await connection.close()
    return {row["partition"]: row["next_offset"] for row in rows}


async def claimed(database: str, log: IndexerLog) -> bool:
    """Whether what is sent from now on is nobody's rebuild."""
    connection = await asyncpg.connect(database)
    try:
        count = await connection.fetchval(
            "SELECT count(*) FROM partition_progress WHERE topic = $1 AND log_id <> ''",
            log.connection.names.prefix + "kv.events",
        )
    finally:
        await connection.close()
    return bool(count == log.partitions)


async def caught_up(database: str, log: IndexerLog) -> bool:
    return await positions(database, log) == {
        number: log.counts.get(number, 0) for number in range(log.partitions)
    }


async def equals_the_fold(database: str, log: IndexerLog) -> None:
    registry = await log.registry()
    states = await log.fold()
    store = PostgresStore(database)
    try:
        assert await store.digest(registry) == index_digest(states, registry)
        assert await store.usage() == usage_of(states)
    finally:
        await store.close()


@pytest.fixture
async def log(kafka: str, topic_prefix: str, tmp_path: Path) -> AsyncIterator[IndexerLog]:
    async with indexer_log(kafka, topic_prefix, tmp_path / "home") as log:
        yield log


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait(10)


async def test_killed_indexer_goes_on_where_it_was(
    log: IndexerLog, database: str, processes: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    logs = [await log.random(number, number) for number in (0, 1)]
    output = tmp_path / "indexer.log"
    processes.append(log.start("indexer", database, output))
    started_s = await wait_until(lambda: claimed(database, log))
    for turn in range(3):
        for one in logs:
            await log.send(one.partition, [record.value for record in one.records(150)])
        sent = sum(log.counts.values())

        async def half_way(sent: int = sent) -> bool:
            return sum((await positions(database, log)).values()) > sent - 300

        took_s = await wait_until(half_way, output=output)
        if turn:
            # About 9 s where nothing else runs: 6 of them until the group gives the dead member up. The rest is a
            # start, which takes as long as this machine takes for one now.
            assert took_s < 25 + 2 * started_s, output.read_text()
        processes[-1].send_signal(signal.SIGKILL)
        processes[-1].wait(10)
        processes.append(log.start("indexer", database, output))
    await wait_until(lambda: caught_up(database, log))
    await equals_the_fold(database, log)
    buried = {record.key for record in await log.read(DEAD)}
    connection = await asyncpg.connect(database)
    dead = await connection.fetch('SELECT topic, partition, "offset" FROM dead_record')
    await connection.close()
    assert dead
    assert {f"{row['topic']}/{row['partition']}/{row['offset']}".encode() for row in dead} == buried

    async def claimed_by_the_last() -> bool:
        return output.read_text().count("partition 0: term") >= len(processes)

    # The one before it may have committed all there was; a process that is still importing ends without order.
    await wait_until(claimed_by_the_last)
    processes[-1].send_signal(signal.SIGTERM)
    assert processes[-1].wait(20) == 0, output.read_text()


async def test_second_worker_shares_the_partitions_and_inherits_them(
    log: IndexerLog, database: str, processes: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    logs = [await log.random(10 + number, number) for number in (0, 1)]
    processes += [log.start("indexer", database, tmp_path / f"indexer{number}.log") for number in (0, 1)]
    for turn in range(3):
        for one in logs:
            await log.send(one.partition, [record.value for record in one.records(100)])
        await wait_until(lambda: caught_up(database, log))
        if turn == 1:
            processes[0].send_signal(signal.SIGKILL)
    await equals_the_fold(database, log)


async def test_frozen_worker_that_wakes_up_cannot_write(
    log: IndexerLog, database: str, processes: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    logs = [await log.random(30 + number, number) for number in (0, 1)]

    async def send(count: int) -> None:
        for one in logs:
            await log.send(one.partition, [record.value for record in one.records(count)])
        await wait_until(lambda: caught_up(database, log))

    processes.append(log.start("indexer", database, tmp_path / "indexer0.log"))
    await send(100)
    processes[0].send_signal(signal.SIGSTOP)
    processes.append(log.start("indexer", database, tmp_path / "indexer1.log"))
    await send(100)
    processes[0].send_signal(signal.SIGCONT)
    await send(100)
    await equals_the_fold(database, log)


async def test_garbage_harms_no_other_stream_and_is_buried_whole(
    log: IndexerLog, database: str, processes: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    one = await log.random(5, 0)
    garbage = [b"", b"\xff\x00\xfe", b"{}", b"x" * 200_000, b'{"v":1}\n{"v":2}']
    processes.append(log.start("indexer", database, tmp_path / "indexer.log"))
    await wait_until(lambda: claimed(database, log))
    for value in garbage:
        await log.send(0, [record.value for record in one.records(3)])
        await log.send(0, [value])
        await log.send(1, [value])
    await wait_until(lambda: caught_up(database, log))
    await equals_the_fold(database, log)
    from events.codec import decode_dead

    buried = [decode_dead(record.value) for record in await log.read(DEAD)]
    assert [record.value for record in buried if record.partition == 1] == garbage
    assert all(record.reason for record in buried)
