"""How a process reaches its log: bootstrap servers and topic names; typed records out of untyped clients."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from events.errors import KvledgerError
from events.kafka.bootstrap import leaves_nothing
from events.kafka.leader_epoch import leader_epochs
from events.topic import MAX_RECORD_BYTES, SIGNATURE_HEADER, Topic, TopicNames

PRODUCER_LIMIT_BYTES = 2 * MAX_RECORD_BYTES
STOP_TIMEOUT_S = 5.0


class LogUnavailableError(KvledgerError):
    """Kafka did not answer in time or refused. Nothing is known to have been written: retry with the same
    idempotency key, or report the log as away."""


class LogTruncatedError(KvledgerError):
    """The log no longer holds what this process has read from it. What it knows may rest on records that
    never were: the process must end and begin again from the log's start."""


@dataclass(frozen=True, slots=True)
class KafkaConnection:
    """Where the log is. `names` prefixes the topics, so that several logs share one broker."""

    bootstrap: str
    names: TopicNames = field(default_factory=TopicNames)

    def topic(self, topic: Topic) -> str:
        return self.names.of(topic)


class RawRecord(NamedTuple):
    """A record as the broker holds it; `timestamp_ms` is the broker's or writer's clock, information only."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes
    signature: bytes | None
    timestamp_ms: int


def raw_record(message: Any, *, timestamp_ms: int | None = None) -> RawRecord:
    """A client's record as typed values: no value becomes empty bytes, a header without one, or an empty one, no
    signature.

    aiokafka gives timestamps in milliseconds; whoever reads through a client that doesn't says it here.
    """
    signature: bytes | None = None
    headers = message.headers or ()
    for name, value in headers.items() if isinstance(headers, dict) else headers:
        if name == SIGNATURE_HEADER:
            signature = bytes(value) or None if value is not None else None
    return RawRecord(
        str(message.topic),
        int(message.partition),
        int(message.offset),
        None if message.key is None else bytes(message.key),
        b"" if message.value is None else bytes(message.value),
        signature,
        int(message.timestamp) if timestamp_ms is None else timestamp_ms,
    )


def make_producer(
    connection: KafkaConnection,
    *,
    linger_ms: int = 0,
    client_id: str = "kvledger",
    max_batch_bytes: int = 16_384,
    max_request_bytes: int = PRODUCER_LIMIT_BYTES,
) -> Any:
    """An idempotent acks=all producer, not yet started; one in-order stream per key."""
    producer = AIOKafkaProducer(
        bootstrap_servers=connection.bootstrap,
        client_id=client_id,
        acks="all",
        enable_idempotence=True,
        linger_ms=linger_ms,
        max_batch_size=max_batch_bytes,
        max_request_size=max_request_bytes,
        request_timeout_ms=10_000,
        retry_backoff_ms=100,
    )
    leaves_nothing(producer.client)
    return producer


class LogTail:
    """Reads given partitions from given offsets, outside any consumer group.

    `positions` maps (topic, partition) to the next offset to read. Not safe for concurrent `fetch`.
    """

    def __init__(self, connection: KafkaConnection, positions: dict[tuple[str, int], int]) -> None:
        self._connection = connection
        self._start = dict(positions)
        self._consumer: Any = None

    async def start(self) -> None:
        """Connects and seeks. Raises LogUnavailableError if no broker answers."""
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=self._connection.bootstrap,
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_wait_ms=50,
            max_partition_fetch_bytes=8 * MAX_RECORD_BYTES,
            request_timeout_ms=10_000,
            retry_backoff_ms=100,
        )
        leaves_nothing(self._consumer._client)
        try:
            await self._consumer.start()
            self._consumer.assign([TopicPartition(*where) for where in self._start])
            for where, offset in self._start.items():
                self._consumer.seek(TopicPartition(*where), offset)
        except KafkaError as error:
            await self.stop()
            raise LogUnavailableError(f"no answer from Kafka at {self._connection.bootstrap}") from error
        except asyncio.CancelledError:
            await self.stop()
            raise

    async def fetch(self, *, timeout_ms: int = 100, max_records: int | None = None) -> list[RawRecord]:
        """Next records of any assigned partition, in order within each; empty after `timeout_ms`.

        Raises LogUnavailableError if an offset lies outside the log or the broker refuses: the caller
        decides between waiting and starting over from the log's start.
        """
        return await self._get(timeout_ms=timeout_ms, max_records=max_records)

    async def fetch_evenly(
        self, share: int, *, timeout_ms: int = 100, busy: Collection[int] = ()
    ) -> list[RawRecord]:
        """At most `share` records of each partition that isn't `busy`: one that has much to read holds up no
        other, as it does in `fetch`, which drains what came first. Waits if there are none; raises like `fetch`.
        """
        wanted = [TopicPartition(*where) for where in self._start if where[1] not in busy]
        found: list[RawRecord] = []
        for where in wanted:
            found += await self._get(where, timeout_ms=0, max_records=share)
        if found or not timeout_ms or not wanted:
            return found
        return await self._get(*wanted, timeout_ms=timeout_ms, max_records=share)

    async def _get(self, *partitions: Any, timeout_ms: int, max_records: int | None) -> list[RawRecord]:
        try:
            batches = await self._consumer.getmany(
                *partitions, timeout_ms=timeout_ms, max_records=max_records
            )
        except KafkaError as error:
            raise LogUnavailableError(f"{type(error).__name__} while reading") from error
        return [raw_record(message) for messages in batches.values() for message in messages]

    async def end_offsets(self) -> dict[tuple[str, int], int]:
        """Offset of the next record to be written, by partition. Raises LogUnavailableError."""
        return await self._offsets("end_offsets")

    async def beginning_offsets(self) -> dict[tuple[str, int], int]:
        """Oldest offset that the log still holds, by partition. Raises LogUnavailableError."""
        return await self._offsets("beginning_offsets")

    async def position(self, topic: str, partition: int) -> int:
        """Where the next `fetch` of an assigned partition begins: behind the last record given, and behind what has
        offsets there and no record, as a transaction's mark. Raises LogUnavailableError."""
        try:
            return int(await self._consumer.position(TopicPartition(topic, partition)))
        except KafkaError as error:
            raise LogUnavailableError(f"{type(error).__name__} while reading") from error

    async def offsets_after(self, timestamp_ms: int) -> dict[tuple[str, int], int | None]:
        """Offset of the first record with a later timestamp, by partition; None: there is none.
        Raises LogUnavailableError."""
        wanted = {TopicPartition(*where): timestamp_ms + 1 for where in self._start}
        try:
            found = await self._consumer.offsets_for_times(wanted)
        except KafkaError as error:
            raise LogUnavailableError(f"{type(error).__name__} while asking for offsets") from error
        return {
            (str(tp.topic), int(tp.partition)): None if at is None else int(at.offset)
            for tp, at in found.items()
        }

    async def _offsets(self, which: str) -> dict[tuple[str, int], int]:
        partitions = [TopicPartition(*where) for where in self._start]
        try:
            found = await getattr(self._consumer, which)(partitions)
        except KafkaError as error:
            raise LogUnavailableError(f"{type(error).__name__} while asking for offsets") from error
        return {(str(tp.topic), int(tp.partition)): int(offset) for tp, offset in found.items()}

    async def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """(oldest offset, offset of the next record) of any partition, assigned or not.
        Raises LogUnavailableError."""
        where = TopicPartition(topic, partition)
        try:
            start = await self._consumer.beginning_offsets([where])
            end = await self._consumer.end_offsets([where])
        except KafkaError as error:
            raise LogUnavailableError(f"{type(error).__name__} while asking for offsets") from error
        return int(start[where]), int(end[where])

    async def leader_epochs(self, topic: str, partitions: Collection[int]) -> dict[int, int]:
        """See `events.kafka.leader_epoch`; of any partitions, assigned or not. Raises LogUnavailableError."""
        try:
            # The consumer's own connections: a second client for this would double those of every process.
            return await leader_epochs(self._consumer._client, topic, partitions)
        except KafkaError as error:
            raise LogUnavailableError(f"{type(error).__name__} while asking for leaders") from error

    async def partitions(self, topic: str) -> frozenset[int]:
        """Numbers of a topic's partitions, none if there is no such topic; makes none. Raises
        LogUnavailableError."""
        try:
            cluster = await self._consumer._client.fetch_all_metadata()
        except KafkaError as error:
            raise LogUnavailableError(f"{type(error).__name__} while asking for topics") from error
        return frozenset(int(number) for number in cluster.partitions_for_topic(topic) or ())

    def assign(self, positions: dict[tuple[str, int], int]) -> None:
        """Reads these partitions from these offsets from now on, and no others."""
        self._start = dict(positions)
        self._consumer.assign([TopicPartition(*where) for where in positions])
        for where, offset in positions.items():
            self._consumer.seek(TopicPartition(*where), offset)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """The next fetch of that partition starts at `offset`."""
        self._consumer.seek(TopicPartition(topic, partition), offset)

    async def stop(self) -> None:
        """Idempotent; never fails and never waits long: the tail is given up either way."""
        consumer, self._consumer = self._consumer, None
        if consumer is None:
            return
        # With its broker away the client can end in a CancelledError of its own, which must not become ours.
        stopping = asyncio.ensure_future(consumer.stop())
        await asyncio.wait({stopping}, timeout=STOP_TIMEOUT_S)
        if not stopping.done():
            stopping.cancel()
        elif not stopping.cancelled():
            stopping.exception()
