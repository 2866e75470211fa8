"""The log's side of an audit of the index: the auditor's own replay, read to where the index stands."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from auditor.archive.failure import ArchiveError
from auditor.archive.log_archive import LogArchive
from auditor.archive.reader import ArchivedReader
from auditor.index_snapshot import Claimed
from auditor.log import EventsReader, PartitionReader, read_audit
from auditor.main_log import MainLog
from auditor.row_control import AuditRows, ControlRows, QuotaRows
from auditor.row_partition import PartitionRows
from events.errors import KvledgerError
from events.ids import StreamKey
from events.kafka.connection import KafkaConnection, RawRecord
from events.kafka.partition_log import KafkaPartitionLog
from events.signing import Verify
from events.topic import AUDIT, CONTROL, EVENTS, QUOTA, Topic

Ends = dict[tuple[Topic, int], int]
"""Where the log ends, by topic and partition."""


class UnknownPartitionError(KvledgerError):
    """It was asked to compare a partition that the log doesn't have."""


class IndexReplay:
    """`open` it, `read_to` one position of the index after another, `close` it. `control`, `audit`, `quota` and
    `partitions` are the rows at that position, `ahead` is kv.control read to its end.

    `only` limits it to some partitions of kv.events, which bounds its memory to their copies. `archive` gives a log's
    archive, where what Kafka has dropped is read. After a read that failed `tear` it, and `seek` before the next."""

    def __init__(
        self,
        connection: KafkaConnection,
        verify: Verify,
        *,
        only: Iterable[int] = (),
        archive: Callable[[str], LogArchive] | None = None,
        timeout_s: float = 20.0,
    ) -> None:
        self._kafka, self._verify = connection, verify
        self._only, self._timeout_s = frozenset(only), timeout_s
        self._looking = KafkaPartitionLog(connection, timeout_s)
        self._archive = archive
        self._readers: dict[Topic, EventsReader] = {}
        self._torn = False
        self._reset()

    def _reset(self) -> None:
        self.ahead, self.control = ControlRows(self._verify), ControlRows(self._verify)
        self._waiting: deque[RawRecord] = deque()
        self.audit, self.quota = AuditRows(self._verify), QuotaRows()
        self.partitions: dict[int, PartitionRows] = {}

    async def open(self) -> str:
        """Connects to the log and reads kv.control; the log's id, empty if nobody has begun it. Raises
        LogUnavailableError, UnknownPartitionError, and ArchiveError if there is an archive that can't be used or is
        damaged."""
        for topic, watched in ((CONTROL, True), (EVENTS, True), (AUDIT, False), (QUOTA, False)):
            self._readers[topic] = PartitionReader(
                self._kafka,
                self._kafka.topic(topic),
                self._timeout_s,
                looking=self._looking if watched else None,
            )
        for topic in (CONTROL, AUDIT, QUOTA):
            await self._readers[topic].start(1)
        await self._read_control()
        log = self.ahead.fold.log
        if log:
            events, partitions = self._readers[EVENTS], self.ahead.fold.partitions
            beyond = sorted(number for number in self._only if number >= partitions)
            if beyond:
                raise UnknownPartitionError(f"there is no partition {beyond[0]}: kv.events has {partitions}")
            if self._archive is not None:
                events = self._readers[EVENTS] = await self._prepended(events, self._archive(log))
            await events.start(partitions)
            self.partitions = {
                number: PartitionRows(number, start, next_offset=start)
                for number, start in events.starts.items()
                if not self._only or number in self._only
            }
            if isinstance(events, ArchivedReader) and events.problems:
                raise ArchiveError("archive_unverified", events.problems[0])
        return log

    async def _prepended(self, events: EventsReader, archive: LogArchive) -> ArchivedReader:
        """kv.events with the archive before it, verified against kv.audit."""
        main, reader = MainLog(self.ahead.fold), ArchivedReader(events)

        def fold(record: RawRecord) -> None:
            main.take(record.value)

        await read_audit(self._kafka, fold, self._timeout_s)
        reader.prepend(archive, main, {})
        return reader

    async def close(self) -> None:
        """Idempotent; it can be opened again, and then begins at the log's start."""
        for reader in self._readers.values():
            await reader.stop()
        self._readers.clear()
        self._torn = False
        await self._looking.close()
        self._reset()

    @property
    def held(self) -> int:
        """Copies in memory."""
        return sum(
            len(table)
            for partition in self.partitions.values()
            for stream in partition.streams.values()
            for table in stream.rows.places.values()
        )

    def tear(self) -> None:
        """A read failed: nobody knows what it had fetched."""
        self._torn = True

    def seek(self) -> None:
        """Torn, it goes on behind what was folded."""
        if self._torn:
            self._readers[CONTROL].skip_to({0: self.ahead.fold.next_offset})
            self._readers[EVENTS].skip_to({n: rows.next_offset for n, rows in self.partitions.items()})
            self._readers[AUDIT].skip_to({0: self.audit.next_offset})
            self._readers[QUOTA].skip_to({0: self.quota.next_offset})
            self._torn = False

    async def stands(self) -> bool:
        """Whether the log is still the one that was read: nobody cut it."""
        return await self._readers[CONTROL].stands() and await self._readers[EVENTS].stands()

    def passed(self, claimed: Claimed) -> bool:
        """Whether more was read than the index stands for."""
        events = claimed.offsets(EVENTS)
        return (
            claimed.offsets(CONTROL).get(0, 0) < self.control.fold.next_offset
            or claimed.offsets(AUDIT).get(0, 0) < self.audit.next_offset
            or claimed.offsets(QUOTA).get(0, 0) < self.quota.next_offset
            or any(
                max(rows.start, events.get(number, 0)) < rows.next_offset
                for number, rows in self.partitions.items()
            )
        )

    async def read_to(self, claimed: Claimed) -> Ends:
        """Reads every topic to where the index stands, or to the log's end; returns the ends of all. Raises
        LogUnavailableError."""
        ends = {(EVENTS, number): end for number, end in (await self._readers[EVENTS].ends()).items()}
        ends[CONTROL, 0] = await self._read_control()
        while self._waiting and self._waiting[0].offset < claimed.offsets(CONTROL).get(0, 0):
            self.control.feed(self._waiting.popleft())
        wanted = claimed.offsets(EVENTS)
        await self._readers[EVENTS].read_to(
            {
                number: min(end, wanted.get(number, 0)) if number in self.partitions else 0
                for (topic, number), end in ends.items()
                if topic is EVENTS
            },
            partial(self._take_event, claimed.unstorable),
        )
        for topic, take in ((AUDIT, self._take_audit), (QUOTA, self.quota.feed)):
            ends[topic, 0] = (await self._readers[topic].ends())[0]
            await self._readers[topic].read_to(
                {0: min(ends[topic, 0], claimed.offsets(topic).get(0, 0))}, take
            )
        for partition in self.partitions.values():
            partition.let_go(self.ahead.superseded)
        return ends

    async def _read_control(self) -> int:
        """Always to its end: no stream's record is ever ahead of the registration that it names."""
        control = self._readers[CONTROL]
        end = (await control.ends())[0]
        await control.read_to({0: end}, self._take_control)
        return end

    def _take_control(self, record: RawRecord) -> None:
        if record.offset >= self.ahead.fold.next_offset:
            self._waiting.append(record)
            self.ahead.feed(record)

    def _take_audit(self, record: RawRecord) -> None:
        self.audit.feed(record, self.ahead.fold)

    def _take_event(self, unstorable: dict[int, set[int]], record: RawRecord) -> None:
        rows = self.partitions[record.partition]
        rows.feed(record, partial(self._belongs, record.partition), unstorable.get(record.partition, ()))

    def _belongs(self, partition: int, stream: StreamKey) -> bool:
        epoch = self.ahead.fold.epochs.get(stream)
        return epoch is not None and epoch.body.partition == partition

    def has_partition(self, number: int) -> bool:
        """Whether kv.events has it, be it compared or not."""
        return number in self._readers[EVENTS].starts

    def stood(self, topic: Topic, number: int) -> tuple[int, bytes]:
        """(next offset, digest of what is before it) as far as was read. A partition has to be one of `partitions`."""
        if topic is EVENTS:
            return self.partitions[number].next_offset, self.partitions[number].last_sha256
        if topic is CONTROL:
            return self.control.fold.next_offset, self.control.fold.hash
        rows: AuditRows | QuotaRows = self.audit if topic is AUDIT else self.quota
        return rows.next_offset, rows.last_sha256
