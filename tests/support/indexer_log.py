"""A log of a test's own on a real Kafka: topics under a prefix, genesis and grants, streams and their records."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from events.codec import EncodedBatch
from events.fold.record import fold_record
from events.fold.registry import Registry
from events.fold.state import StreamState
from events.ids import Role, StreamKey
from events.kafka.connection import KafkaConnection, LogTail, RawRecord, make_producer
from events.kafka.control import ControlWriter
from events.kafka.partition_log import KafkaPartitionLog
from events.kafka.topic_admin import TopicAdmin
from events.model.control import ControlBody, Registered
from events.signing import Signer
from events.topic import EVENTS, Topic, TopicNames
from indexer.applier import Applier
from indexer.postgres_store import PostgresStore
from kvledger.control import read_registry, wall_ms
from kvledger.first_grants import ensure_keys, write_grants
from kvledger.keyfile import load_signers
from kvledger.settings import Settings
from tests.support.applier_world import MemoryOutbox
from tests.support.heedless import Heedless
from tests.support.log import StreamBuilder
from tests.support.random_log import RandomLog


@dataclass
class IndexerLog:
    """Made by `indexer_log`; every record sent here is acknowledged before the call returns."""

    connection: KafkaConnection
    home: Path
    partitions: int
    producer: Any
    writer: ControlWriter
    counts: dict[int, int] = field(default_factory=dict)
    registered: dict[StreamKey, StreamBuilder] = field(default_factory=dict)

    async def register(
        self, worker: str, *, rank: int = 0, epoch: str = "e1", partition: int = 0, life: str = "life-1"
    ) -> StreamBuilder:
        """A registered stream, ready to seal its record 0."""
        body = Registered(
            worker=worker,
            rank=rank,
            epoch=epoch,
            engine_life=life,
            public_key=Signer.from_seed(epoch.encode().ljust(32, b"-")[:32]).public_key,
            partition=partition,
        )
        appended = await self.writer.append(body)
        return StreamBuilder(worker, rank, epoch, appended.offset, prev=appended.record_sha256)

    async def random(self, seed: int, partition: int = 0) -> RandomLog:
        """A random partition whose streams are registered, each a rank of its own: none supersedes another."""
        made = RandomLog(random.Random(seed), partition=partition)
        for rank, builder in enumerate(made.streams):
            key = StreamKey(builder.worker, rank, builder.epoch)
            if key not in self.registered:
                self.registered[key] = await self.register(
                    builder.worker, rank=rank, epoch=builder.epoch, partition=partition
                )
            known = self.registered[key]
            builder.rank, builder.epoch_no, builder.prev = rank, known.epoch_no, known.prev
        return made

    async def control(self, body: ControlBody) -> int:
        """Appends a control record; returns its offset."""
        return (await self.writer.append(body)).offset

    async def send(self, partition: int, values: Sequence[EncodedBatch | bytes]) -> None:
        """Appends raw values to a partition of kv.events, in order."""
        sent = [
            await self.producer.send(
                self.connection.topic(EVENTS),
                value.value if isinstance(value, EncodedBatch) else value,
                key=b"k",
                partition=partition,
            )
            for value in values
        ]
        for future in sent:
            await future
        self.counts[partition] = self.counts.get(partition, 0) + len(values)

    async def read(self, topic: Topic = EVENTS) -> list[RawRecord]:
        """All records of a topic as they are in Kafka now."""
        count = self.partitions if topic is EVENTS else 1
        name = self.connection.topic(topic)
        tail = LogTail(self.connection, {(name, number): 0 for number in range(count)})
        await tail.start()
        try:
            for (_, number), offset in (await tail.beginning_offsets()).items():
                tail.seek(name, number, offset)
            ends = await tail.end_offsets()
            records: list[RawRecord] = []
            while sum(ends.values()) > len(records):
                records += await tail.fetch(timeout_ms=500)
        finally:
            await tail.stop()
        return records

    async def fold(self) -> list[StreamState]:
        """The fold of the whole log, held in memory."""
        states: dict[int, dict[StreamKey, StreamState]] = {}
        for record in sorted(await self.read(), key=lambda record: (record.partition, record.offset)):
            fold_record(states.setdefault(record.partition, {}), record.value)
        return [state for table in states.values() for state in table.values()]

    async def registry(self) -> Registry:
        return await read_registry(self.connection)

    @asynccontextmanager
    async def applying(self, database: str) -> AsyncIterator[tuple[Applier, PostgresStore]]:
        """An indexer's applier from this log into the database, with its store; it owns nothing yet."""
        store, partition_log = PostgresStore(database), KafkaPartitionLog(self.connection)
        try:
            yield (
                Applier(
                    store,
                    partition_log,
                    MemoryOutbox(),
                    await self.registry(),
                    topic=self.connection.topic(EVENTS),
                    monotonic_s=time.monotonic,
                ),
                store,
            )
        finally:
            await partition_log.close()
            await store.close()

    def environment(self, database: str) -> dict[str, str]:
        """What a kvledger process of this log needs to be told."""
        return {
            "PATH": os.environ["PATH"],
            "PYTHONUNBUFFERED": "1",
            "KVLEDGER_HOME": str(self.home),
            "KVLEDGER_KAFKA": self.connection.bootstrap,
            "KVLEDGER_DATABASE_URL": database,
            "KVLEDGER_TOPIC_PREFIX": self.connection.names.prefix,
            "KVLEDGER_PARTITIONS": str(self.partitions),
        }

    def start(self, command: str, database: str, output: Path, *options: str) -> subprocess.Popen[bytes]:
        """The real command in a process of its own; what it writes goes to `output`."""
        with output.open("ab") as file:
            return subprocess.Popen(
                [sys.executable, "-m", "kvledger", command, *options],
                env=self.environment(database),
                stdout=file,
                stderr=file,
            )


@asynccontextmanager
async def indexer_log(
    kafka: str, prefix: str, home: Path, *, partitions: int = 2
) -> AsyncIterator[IndexerLog]:
    """Topics, keys and grants, as `kvledger up` makes them."""
    settings = Settings(home=home, kafka=kafka, topic_prefix=prefix, partitions=partitions)
    connection = KafkaConnection(kafka, TopicNames(prefix))
    await TopicAdmin(connection, partitions=partitions, replication=1).ensure()
    ensure_keys(home)
    await write_grants(settings)
    log = (await read_registry(connection)).log
    writer = ControlWriter(connection, Heedless(log), signers=load_signers(home, *Role), wall_ms=wall_ms)
    producer = make_producer(connection, linger_ms=5, max_batch_bytes=500_000)
    await writer.start()
    await producer.start()
    try:
        yield IndexerLog(connection, home, partitions, producer, writer)
    finally:
        await producer.stop()
        await writer.stop()
