"""Reads `kv.control` and `kv.events` as raw bytes, from the log's start to a frontier that moves on request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from events.kafka.bootstrap import leaves_nothing
from events.kafka.connection import KafkaConnection, LogUnavailableError, RawRecord, raw_record
from events.kafka.continuity import Continuity
from events.kafka.deadline import within
from events.kafka.partition_log import KafkaPartitionLog
from events.model.audit import PartitionPosition
from events.topic import AUDIT, CONTROL, EVENTS, MAX_RECORD_BYTES, SUBJECTS

Take = Callable[[RawRecord], None]


@dataclass(slots=True)
class PartitionReader:
    """Some partitions of one topic, outside any group; `starts` are the oldest offsets the log still holds.
    With `looking`, which must be closed by whoever made it, it can tell whether what it read `stands`."""

    connection: KafkaConnection
    topic: str
    timeout_s: float
    starts: dict[int, int] = field(default_factory=dict)
    looking: KafkaPartitionLog | None = None
    _consumer: Any = None
    _continuity: Continuity | None = None
    _epochs: dict[int, int] = field(default_factory=dict)

    async def start(self, partitions: int) -> None:
        """Raises LogUnavailableError if no broker answers."""
        if self.looking is not None:
            self._epochs = await self.looking.leader_epochs(self.topic, range(partitions))
            self._continuity = Continuity(self.looking, self.topic)
            await self._continuity.begin(range(partitions))
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=self.connection.bootstrap,
            client_id="kvledger-auditor",
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_uncommitted",
            fetch_max_wait_ms=50,
            max_partition_fetch_bytes=2 * MAX_RECORD_BYTES,
            request_timeout_ms=10_000,
        )
        leaves_nothing(self._consumer._client)
        try:
            await within(self._consumer.start(), self.timeout_s)
            self._consumer.assign([TopicPartition(self.topic, p) for p in range(partitions)])
            found = await within(self._consumer.beginning_offsets(self._partitions()), self.timeout_s)
        except (KafkaError, TimeoutError, OSError) as error:
            await self.stop()
            raise self._unavailable("can't be opened") from error
        except asyncio.CancelledError:
            await self.stop()
            raise
        self.starts = {int(tp.partition): int(offset) for tp, offset in found.items()}
        self.rewind()

    def skip_to(self, offsets: dict[int, int]) -> None:
        """The next `read_to` begins there, or at the log's start where that lies behind."""
        for where in self._partitions():
            self._consumer.seek(where, max(self.starts[where.partition], offsets.get(where.partition, 0)))

    async def whole(self) -> None:
        """Nothing of the log was left out."""

    def rewind(self) -> None:
        """The next `read_to` begins at the log's start again."""
        for where in self._partitions():
            self._consumer.seek(where, self.starts[where.partition])

    async def ends(self) -> dict[int, int]:
        """Offset behind the newest record, by partition. Raises LogUnavailableError."""
        try:
            found = await within(self._consumer.end_offsets(self._partitions()), self.timeout_s)
        except (KafkaError, TimeoutError) as error:
            raise self._unavailable("doesn't say where it ends") from error
        return {int(tp.partition): int(offset) for tp, offset in found.items()}

    async def read_to(self, ends: dict[int, int], take: Take) -> None:
        """Gives every record below `ends` to `take`, in order within each partition; records above are left
        for the next call. Raises LogUnavailableError when the broker doesn't answer or the log was cut
        while it was read: read it again from its start."""
        try:
            while True:
                open_ = [tp for tp in self._partitions() if await self._at(tp) < ends[tp.partition]]
                if not open_:
                    return
                batches = await within(
                    self._consumer.getmany(*open_, timeout_ms=500, max_records=5_000), self.timeout_s
                )
                for where, messages in batches.items():
                    for message in messages:
                        if message.offset >= ends[where.partition]:
                            self._consumer.seek(where, message.offset)
                            break
                        record = raw_record(message)
                        if self._continuity is not None:
                            self._continuity.read(record)
                        take(record)
        except (KafkaError, TimeoutError) as error:
            raise self._unavailable(f"can't be read on ({type(error).__name__})") from error

    async def stands(self) -> bool:
        """Whether the log still holds all that was read since `start`, under the same leaders: of what another
        leader's log lacks, more may have been fetched than was read. Raises LogUnavailableError."""
        if self._continuity is None or self.looking is None:
            return True
        look = await self._continuity.look()
        if look.lost or look.moved:
            return False
        if await self.looking.leader_epochs(self.topic, self._epochs) != self._epochs:
            raise self._unavailable("doesn't say who leads it")
        return True

    async def stop(self) -> None:
        """Idempotent."""
        self._continuity = None
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.stop()

    async def _at(self, where: Any) -> int:
        return int(await within(self._consumer.position(where), self.timeout_s))

    def _partitions(self) -> list[Any]:
        return sorted(self._consumer.assignment())

    def _unavailable(self, what: str) -> LogUnavailableError:
        return LogUnavailableError(f"{self.topic} at {self.connection.bootstrap} {what}")


class EventsReader(Protocol):
    """kv.events for an audit: a `PartitionReader`, or one with an archive before it."""

    @property
    def starts(self) -> dict[int, int]: ...

    async def start(self, partitions: int) -> None: ...

    async def whole(self) -> None:
        """`starts` are those of everything there is from now on, although the reader was told that less is wanted."""

    def skip_to(self, offsets: dict[int, int]) -> None: ...

    def rewind(self) -> None: ...

    async def ends(self) -> dict[int, int]: ...

    async def read_to(self, ends: dict[int, int], take: Take) -> None: ...

    async def stands(self) -> bool: ...

    async def stop(self) -> None: ...


class AuditReader(Protocol):
    """What an audit reads a log through: an `AuditedLog`, or an archive alone."""

    @property
    def events(self) -> EventsReader: ...

    async def start(self) -> None: ...

    async def read_control(self, take: Take) -> int: ...

    async def open_events(self, partitions: int) -> dict[int, int]: ...

    async def read_subjects(self, take: Take) -> range | None:
        """Offsets of `kv.subjects` whose records were given, as far as there were any; None: it can't be read here."""

    async def stands(self) -> bool: ...

    async def stop(self) -> None: ...


class SubjectsPast(Protocol):
    """What `kv.subjects` no longer holds."""

    async def read_below(self, start: int, take: Take) -> int:
        """Gives records below `start` without a hole up to there; where they begin: at `start` if there are none."""


class AuditedLog:
    """Both topics of one log. A round first asks where kv.events ends and then where kv.control ends, so that
    no stream's record is ever ahead of the control log that it names. `before` puts another reader of kv.events in
    the place of the one it is given."""

    def __init__(
        self,
        connection: KafkaConnection,
        *,
        timeout_s: float = 20.0,
        before: Callable[[PartitionReader], EventsReader] | None = None,
    ) -> None:
        self._looking = KafkaPartitionLog(connection, timeout_s)
        self.control = PartitionReader(
            connection, connection.topic(CONTROL), timeout_s, looking=self._looking
        )
        events = PartitionReader(connection, connection.topic(EVENTS), timeout_s, looking=self._looking)
        self.events: EventsReader = events if before is None else before(events)
        self.subjects_past: SubjectsPast | None = None
        self._open = False

    async def start(self) -> None:
        """Raises LogUnavailableError."""
        await self.control.start(1)

    async def read_control(self, take: Take) -> int:
        """Reads kv.control to its end as of now; returns that offset."""
        ends = await self.control.ends()
        await self.control.read_to(ends, take)
        return ends[0]

    async def open_events(self, partitions: int) -> dict[int, int]:
        """Connects to kv.events once the genesis record told its partitions; returns their starts."""
        if not self._open:
            await self.events.start(partitions)
            self._open = True
        return dict(self.events.starts)

    async def read_subjects(self, take: Take, first: int = 0) -> range:
        """Reads `kv.subjects` to its end as of now, from `first` on or where it begins behind that: what it has
        dropped comes from `subjects_past`. Raises LogUnavailableError, ArchiveError."""
        connection = self.control.connection
        reader = PartitionReader(connection, connection.topic(SUBJECTS), self.control.timeout_s)
        await reader.start(1)
        try:
            ends = await reader.ends()
            begins = max(first, reader.starts[0])
            reader.skip_to({0: begins})
            if begins > first and self.subjects_past is not None:
                begins = await self.subjects_past.read_below(begins, take)
            await reader.read_to(ends, take)
            return range(begins, ends[0])
        finally:
            await reader.stop()

    async def stands(self) -> bool:
        """Whether both topics still hold all that was read. If not: `stop`, `start`, and read all again. Raises
        LogUnavailableError."""
        return await self.control.stands() and await self.events.stands()

    async def stop(self) -> None:
        """Idempotent; it can be started again."""
        await self.control.stop()
        await self.events.stop()
        await self._looking.close()
        self._open = False


def frontier(control_end: int, event_ends: dict[int, int]) -> tuple[PartitionPosition, ...]:
    """Positions of both topics under their plain names, whatever prefix this broker uses."""
    return (
        PartitionPosition(topic=CONTROL.name, partition=0, offset=control_end),
        *(
            PartitionPosition(topic=EVENTS.name, partition=partition, offset=offset)
            for partition, offset in sorted(event_ends.items())
        ),
    )


async def append_audit(connection: KafkaConnection, key: str, values: list[bytes], timeout_s: float) -> None:
    """Writes records to `kv.audit`, acknowledged. Raises LogUnavailableError."""
    producer = AIOKafkaProducer(
        bootstrap_servers=connection.bootstrap,
        client_id="kvledger-auditor",
        acks="all",
        enable_idempotence=True,
        request_timeout_ms=10_000,
    )
    leaves_nothing(producer.client)
    try:
        await within(producer.start(), timeout_s)
        for value in values:
            await within(
                producer.send_and_wait(connection.topic(AUDIT), value, key=key.encode(), partition=0),
                timeout_s,
            )
    except (KafkaError, TimeoutError, OSError) as error:
        raise LogUnavailableError(f"kv.audit at {connection.bootstrap} takes no record") from error
    finally:
        await producer.stop()


async def read_audit(connection: KafkaConnection, take: Take, timeout_s: float) -> None:
    """Reads `kv.audit` whole. Raises LogUnavailableError."""
    reader = PartitionReader(connection, connection.topic(AUDIT), timeout_s)
    await reader.start(1)
    try:
        await reader.read_to(await reader.ends(), take)
    finally:
        await reader.stop()
