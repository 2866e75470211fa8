"""Compares the index in PostgreSQL with the auditor's own replay of the log, at one position, once or for ever.

A round reads the log up to where the index stands, then opens one repeatable-read snapshot, reads the few records
up to the positions in that, and compares. The next round goes on from there: it costs what was written since, and
the rows that it compares again.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import asyncpg

from auditor import row_sql
from auditor.archive.failure import ArchiveError
from auditor.archive.log_archive import LogArchive
from auditor.archive.reader import ArchivedReader
from auditor.log import EventsReader, PartitionReader, read_audit
from auditor.main_log import MainLog
from auditor.row_compare import Names, RowComparison
from auditor.row_control import AuditRows, ControlRows, QuotaRows
from auditor.row_finding import Finding, FindingKind, Findings, LogPlace
from auditor.row_partition import PartitionRows
from events.errors import KvledgerError
from events.ids import StreamKey
from events.kafka.connection import KafkaConnection, LogUnavailableError, RawRecord
from events.kafka.partition_log import KafkaPartitionLog
from events.signing import Verify
from events.topic import AUDIT, CONTROL, EVENTS, QUOTA, Topic

CONNECT_TIMEOUT_S = 5.0
STATEMENT_TIMEOUT_S = 120.0
ANEW = 3
"""How often a round is begun anew because the log or the index changed under it."""
LEAST_COST = 50
"""What a stream costs beside its copies, in copies."""
UNAVAILABLE: tuple[type[BaseException], ...] = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)


class IndexUnavailableError(KvledgerError):
    """PostgreSQL doesn't answer, or refuses: start it, migrate it, or correct the address; then audit again."""


class UnknownPartitionError(KvledgerError):
    """It was asked to compare a partition that the log doesn't have."""


class UnsettledError(KvledgerError):
    """The log was cut, or the index made anew, again and again while it was compared: audit again."""


@dataclass(frozen=True, slots=True)
class Round:
    """`positions`: up to where each topic (plain name) and partition was compared. `headless`: registered streams
    that began before the log does, by partition: they can't be replayed and weren't compared. `behind`: records
    that the index hadn't folded yet. `unstorable`: records that the index passed because PostgreSQL can't hold what
    they say. `compared_s`: when the snapshot was taken, `oldest_s`: when the copies that were compared longest ago
    were, both by the injected clock."""

    findings: Findings
    positions: dict[str, dict[int, int]]
    headless: dict[int, int]
    behind: int
    streams: int
    copies: int
    records: int
    unstorable: int
    compared_s: float
    oldest_s: float


@dataclass(slots=True)
class _Seen:
    """What `partition_progress` and `dead_record` say at one moment; `offsets` as far as the log goes."""

    rows: dict[tuple[Topic, int], Any]
    unstorable: dict[int, set[int]]

    def offsets(self, topic: Topic) -> dict[int, int]:
        return {number: row["next_offset"] for (of, number), row in self.rows.items() if of is topic}


class IndexAudit:
    """`open` it, then one `round` after another; `close` it. `names` tells domains from aliases, as far as keys are
    here; `only` limits it to some partitions of kv.events, which bounds its memory to their copies. `archive` gives a
    log's archive, where what Kafka has dropped is read.
    """

    def __init__(
        self,
        dsn: str,
        connection: KafkaConnection,
        verify: Verify,
        *,
        monotonic_s: Callable[[], float],
        names: Names | None = None,
        only: Iterable[int] = (),
        archive: Callable[[str], LogArchive] | None = None,
        timeout_s: float = 20.0,
    ) -> None:
        self._dsn, self._kafka, self._verify = dsn, connection, verify
        self._monotonic_s = monotonic_s
        self._names, self._only, self._timeout_s = names, frozenset(only), timeout_s
        self._looking = KafkaPartitionLog(connection, timeout_s)
        self._archive = archive
        self._readers: dict[Topic, EventsReader] = {}
        self._torn = False
        self._reset()

    def _reset(self) -> None:
        self._ahead, self._control = ControlRows(self._verify), ControlRows(self._verify)
        self._waiting: deque[RawRecord] = deque()
        self._audit, self._quota = AuditRows(self._verify), QuotaRows()
        self._partitions: dict[int, PartitionRows] = {}
        self._copies: dict[StreamKey, tuple[float, Findings]] = {}

    async def open(self) -> str:
        """Connects to the log and reads kv.control; the log's id, empty if nobody has begun it. Raises
        LogUnavailableError, and ArchiveError if there is an archive that can't be used or is damaged."""
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
        log = self._ahead.fold.log
        if log:
            events, partitions = self._readers[EVENTS], self._ahead.fold.partitions
            beyond = sorted(number for number in self._only if number >= partitions)
            if beyond:
                raise UnknownPartitionError(f"there is no partition {beyond[0]}: kv.events has {partitions}")
            if self._archive is not None:
                events = self._readers[EVENTS] = await self._prepended(events, self._archive(log))
            await events.start(partitions)
            self._partitions = {
                number: PartitionRows(number, start, next_offset=start)
                for number, start in events.starts.items()
                if not self._only or number in self._only
            }
            if isinstance(events, ArchivedReader) and events.problems:
                raise ArchiveError("archive_unverified", events.problems[0])
        return log

    async def _prepended(self, events: EventsReader, archive: LogArchive) -> ArchivedReader:
        """kv.events with the archive before it, verified against kv.audit."""
        main, reader = MainLog(self._ahead.fold), ArchivedReader(events)

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
            for partition in self._partitions.values()
            for stream in partition.streams.values()
            for table in stream.rows.places.values()
        )

    async def round(self, most_copies: int | None = None) -> Round:
        """One comparison. With `most_copies` no more copies than about that are compared, those first that have
        waited longest; what was found of the others before still counts.

        Raises LogUnavailableError, IndexUnavailableError, UnsettledError; what was read by then is kept.
        """
        for _ in range(ANEW):
            try:
                self._seek()
                found = await self._round(most_copies)
                if found is not None and await self._stands():
                    return found
            except LogUnavailableError:
                self._torn = True
                raise
            await self.close()
            await self.open()
        raise UnsettledError("the log or the index changed again and again while they were compared")

    def _seek(self) -> None:
        """Nobody knows what a read that failed had fetched: it goes on behind what was folded."""
        if self._torn:
            self._readers[CONTROL].skip_to({0: self._ahead.fold.next_offset})
            self._readers[EVENTS].skip_to({n: rows.next_offset for n, rows in self._partitions.items()})
            self._readers[AUDIT].skip_to({0: self._audit.next_offset})
            self._readers[QUOTA].skip_to({0: self._quota.next_offset})
            self._torn = False

    async def _stands(self) -> bool:
        return await self._readers[CONTROL].stands() and await self._readers[EVENTS].stands()

    async def _round(self, most_copies: int | None) -> Round | None:
        """None when the index stands before what was read already: it is made anew."""
        connection: Any = None
        try:
            connection = await self._connect()
            # Most of the log is read before the snapshot, which the database shouldn't have to keep for long.
            seen = await self._look(connection)
            if self._passed(seen):
                return None
            await self._read_to(seen)
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                await connection.execute(row_sql.HOLD)
                seen, taken_s = await self._look(connection), self._monotonic_s()
                if self._passed(seen):
                    return None
                ends = await self._read_to(seen)
                return await self._compare(connection, seen, ends, taken_s, most_copies)
        except UNAVAILABLE as error:
            first = (str(error).splitlines() or [""])[0]
            raise IndexUnavailableError(f"PostgreSQL: {type(error).__name__}: {first}") from error
        finally:
            if connection is not None:
                connection.terminate()

    async def _connect(self) -> Any:
        connection = await asyncpg.connect(
            self._dsn,
            timeout=CONNECT_TIMEOUT_S,
            command_timeout=STATEMENT_TIMEOUT_S + 30,
            server_settings={
                "application_name": "kvledger audit index",
                "lock_timeout": "10s",
                "statement_timeout": f"{STATEMENT_TIMEOUT_S:.0f}s",
                "idle_in_transaction_session_timeout": f"{STATEMENT_TIMEOUT_S:.0f}s",
            },
        )
        await connection.set_type_codec("jsonb", encoder=str, decoder=json.loads, schema="pg_catalog")
        return connection

    async def _look(self, connection: Any) -> _Seen:
        topics = {self._kafka.topic(topic): topic for topic in (EVENTS, CONTROL, AUDIT, QUOTA)}
        seen = _Seen({}, defaultdict(set))
        for row in await connection.fetch(row_sql.PROGRESS):
            if row["topic"] in topics:
                seen.rows[topics[row["topic"]], row["partition"]] = row
        for partition, offset in await connection.fetch(row_sql.UNSTORABLE, self._kafka.topic(EVENTS)):
            seen.unstorable[partition].add(offset)
        return seen

    def _passed(self, seen: _Seen) -> bool:
        """Whether more was read than the index stands for."""
        events = seen.offsets(EVENTS)
        return (
            seen.offsets(CONTROL).get(0, 0) < self._control.fold.next_offset
            or seen.offsets(AUDIT).get(0, 0) < self._audit.next_offset
            or seen.offsets(QUOTA).get(0, 0) < self._quota.next_offset
            or any(
                max(rows.start, events.get(number, 0)) < rows.next_offset
                for number, rows in self._partitions.items()
            )
        )

    async def _read_to(self, seen: _Seen) -> dict[tuple[Topic, int], int]:
        """Reads every topic to where the index stands, or to the log's end; returns the ends of all."""
        ends = {(EVENTS, number): end for number, end in (await self._readers[EVENTS].ends()).items()}
        ends[CONTROL, 0] = await self._read_control()
        while self._waiting and self._waiting[0].offset < seen.offsets(CONTROL).get(0, 0):
            self._control.feed(self._waiting.popleft())
        wanted = seen.offsets(EVENTS)
        await self._readers[EVENTS].read_to(
            {
                number: min(end, wanted.get(number, 0)) if number in self._partitions else 0
                for (topic, number), end in ends.items()
                if topic is EVENTS
            },
            partial(self._take_event, seen.unstorable),
        )
        for topic, take in ((AUDIT, self._take_audit), (QUOTA, self._quota.feed)):
            ends[topic, 0] = (await self._readers[topic].ends())[0]
            await self._readers[topic].read_to({0: min(ends[topic, 0], seen.offsets(topic).get(0, 0))}, take)
        for partition in self._partitions.values():
            partition.let_go(self._ahead.superseded)
        return ends

    async def _read_control(self) -> int:
        """Always to its end: no stream's record is ever ahead of the registration that it names."""
        control = self._readers[CONTROL]
        end = (await control.ends())[0]
        await control.read_to({0: end}, self._take_control)
        return end

    def _take_control(self, record: RawRecord) -> None:
        if record.offset >= self._ahead.fold.next_offset:
            self._waiting.append(record)
            self._ahead.feed(record)

    def _take_audit(self, record: RawRecord) -> None:
        self._audit.feed(record, self._ahead.fold)

    def _take_event(self, unstorable: dict[int, set[int]], record: RawRecord) -> None:
        rows = self._partitions[record.partition]
        rows.feed(record, partial(self._belongs, record.partition), unstorable.get(record.partition, ()))

    def _belongs(self, partition: int, stream: StreamKey) -> bool:
        epoch = self._ahead.fold.epochs.get(stream)
        return epoch is not None and epoch.body.partition == partition

    async def _compare(
        self,
        connection: Any,
        seen: _Seen,
        ends: dict[tuple[Topic, int], int],
        taken_s: float,
        most_copies: int | None,
    ) -> Round:
        comparison = RowComparison(connection, self._ahead, self._names)
        found = comparison.found
        for place, row in sorted(seen.rows.items(), key=lambda item: (item[0][0].name, item[0][1])):
            self._position(found, *place, row, ends)
        await comparison.control(self._control)
        await comparison.audit(self._audit)
        await comparison.quota(self._quota)
        await comparison.adrift()
        streams = await comparison.streams(self._partitions)
        self._copies = {key: known for key, known in self._copies.items() if key in streams}
        copies = cost = 0
        for key in sorted(streams, key=lambda key: self._copies.get(key, (-1.0, found))[0]):
            if most_copies is not None and cost >= most_copies:
                break
            of_one = RowComparison(connection, self._ahead, self._names)
            read = await of_one.copies([streams[key]])
            copies, cost = copies + read, cost + read + LEAST_COST
            self._copies[key] = (taken_s, of_one.found)
        for _, one in self._copies.values():
            found.merge(one)
        return Round(
            findings=found,
            positions={
                topic.name: dict(sorted(seen.offsets(topic).items()))
                for topic in (CONTROL, EVENTS, AUDIT, QUOTA)
            },
            headless={n: len(rows.headless) for n, rows in self._partitions.items() if rows.headless},
            behind=sum(
                max(0, end - seen.offsets(EVENTS).get(number, 0))
                for (topic, number), end in ends.items()
                if topic is EVENTS and number in self._partitions
            ),
            streams=len(streams),
            copies=copies,
            records=sum(rows.records for rows in self._partitions.values()),
            unstorable=sum(len(offsets) for offsets in seen.unstorable.values()),
            compared_s=taken_s,
            oldest_s=min((at for at, _ in self._copies.values()), default=taken_s),
        )

    def _position(
        self, found: Findings, topic: Topic, number: int, row: Any, ends: dict[tuple[Topic, int], int]
    ) -> None:
        """The position that the index claims, against the log itself."""
        where, offset = f"{topic.name}/{number}", row["next_offset"]

        def add(index: str, log: str) -> None:
            at = LogPlace(topic.name, number, offset - 1) if offset else None
            found.add(Finding(FindingKind.POSITION, where, index, log, at))

        if row["log_id"] not in ("", self._ahead.fold.log):
            add(f"log_id={row['log_id']}", f"log_id={self._ahead.fold.log}")
        if topic is EVENTS and number not in self._partitions:
            if number not in self._readers[EVENTS].starts:
                add(f"next_offset={offset}", "no such partition")
            return
        end = ends[topic, number]
        if offset > end:
            add(f"next_offset={offset}", f"the log ends at {end}")
            return
        stood, digest = self._stood(topic, number)
        name = "control_hash" if topic is CONTROL else "last_record_sha256"
        # Without a digest the log holds nothing of what is before that position.
        if stood == offset and digest and row[name] and bytes(row[name]) != digest:
            add(f"next_offset={offset} {name}={row[name].hex()}", f"{name}={digest.hex()}")

    def _stood(self, topic: Topic, number: int) -> tuple[int, bytes]:
        """(next offset, digest of what is before it) as far as was read."""
        if topic is EVENTS:
            return self._partitions[number].next_offset, self._partitions[number].last_sha256
        if topic is CONTROL:
            return self._control.fold.next_offset, self._control.fold.hash
        rows: AuditRows | QuotaRows = self._audit if topic is AUDIT else self._quota
        return rows.next_offset, rows.last_sha256
