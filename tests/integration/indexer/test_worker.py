"""A worker that has stopped advancing says so and ends, whatever it waits for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from events.ids import StreamKey
from events.kafka.connection import KafkaConnection
from events.kafka.partition_log import KafkaPartitionLog
from events.topic import EVENTS
from indexer.applier import Applier
from indexer.delta import DeadLetter, Delta
from indexer.memory_store import MemoryStore
from indexer.outbox import KafkaOutbox
from indexer.store import Lease, Store
from indexer.worker import WorkerStoppedError, run_worker
from tests.support.applier_world import MemoryOutbox
from tests.support.indexer_log import IndexerLog, indexer_log


class HangingStore(MemoryStore):
    async def write(self, lease: Lease, delta: Delta) -> None:
        await asyncio.Event().wait()


class HangingOutbox(MemoryOutbox):
    async def bury(self, topic: str, partition: int, letters: list[DeadLetter]) -> None:
        await asyncio.Event().wait()


@pytest.fixture
async def log(kafka: str, topic_prefix: str, tmp_path: Path) -> AsyncIterator[IndexerLog]:
    async with indexer_log(kafka, topic_prefix, tmp_path / "home") as log:
        yield log


@pytest.mark.parametrize(
    ("store", "outbox"),
    [(HangingStore(), MemoryOutbox()), (MemoryStore(), HangingOutbox())],
    ids=["store", "dead-letters"],
)
async def test_worker_stuck_in_a_write_ends(log: IndexerLog, store: Store, outbox: MemoryOutbox) -> None:
    topic, partition_log = log.connection.topic(EVENTS), KafkaPartitionLog(log.connection)
    applier = Applier(
        store,
        partition_log,
        outbox,
        await log.registry(),
        topic=topic,
        monotonic_s=time.monotonic,
        prune_every_s=0.1,
    )

    async def unread(partition: int, position: int) -> bool:
        return await partition_log.first_from(topic, partition, position) is not None

    async def send_once_owned() -> None:
        while not applier.positions:
            await asyncio.sleep(0.1)
        await log.send(min(applier.positions), [b"garbage"])

    sending = asyncio.create_task(send_once_owned())
    async with asyncio.timeout(60):
        with pytest.raises(WorkerStoppedError, match="stands at 0 for"):
            await run_worker(log.connection, applier, asyncio.Event(), unread=unread, stuck_after_s=6.0)
        await sending
    await partition_log.close()


async def test_broker_that_never_answers_holds_nobody_for_long() -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    outbox = KafkaOutbox(KafkaConnection(f"127.0.0.1:{port}"), send_timeout_s=0.5)
    async with server, asyncio.timeout(20):
        await outbox.ask_resync({StreamKey("w0", 0, "e1"): "chain_break"})
        await outbox.close()
