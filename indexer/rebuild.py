"""`kvledger index rebuild`: the index folded from the log's start into a fresh schema, compared and switched.

The index in force is read and never changed until the switch, so an end at any moment leaves it as it was. The
fold runs in memory up to exactly where the index in force stands, both digests are compared there, the rows
go in by COPY, and what has come since follows as the indexer writes it. The switch locks the positions,
catches up to them and takes every partition's term, so that a running indexer loses its lease, claims again
and goes on from the rebuilt rows.

KvledgerError
└── RebuildError               nothing was switched
    ├── RebuildRunningError    another rebuild holds the database
    └── IndexMovedError        the index in force was emptied meanwhile: begin again
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from events.chain import sha256
from events.errors import KvledgerError
from events.fold.digest import index_digest
from events.fold.registry import Registry
from events.kafka.connection import (
    KafkaConnection,
    LogTail,
    LogTruncatedError,
    LogUnavailableError,
    RawRecord,
)
from events.kafka.partition_log import PartitionLog
from events.keyring import KeyRing
from events.topic import EVENTS
from indexer import copy_sql, rebuild_schema
from indexer.applier import UNSTORABLE
from indexer.database import REFUSED, UNAVAILABLE, connect
from indexer.postgres_store import REBUILD_NAME, PostgresStore, read_digest
from indexer.rebuild_difference import Differences, find_differences
from indexer.rebuild_fold import PartitionRebuild
from indexer.rebuild_schema import FRESH
from indexer.store import StoreRefusedError, StoreUnavailableError

ADVISORY_LOCK = 0x6B766C7265
SPANS_AT_ONCE = 50_000
FOLLOW_ROUNDS = 20
NEAR_RECORDS = 500
"""The last records, which are followed while the indexer waits."""
STILL_AFTER_S = 30.0
BATCH_RECORDS = 500
HOLD_TIMEOUT = "30s"


class RebuildError(KvledgerError):
    """The rebuild ended before its switch; the index in force is as it was."""


class RebuildRunningError(RebuildError):
    """Wait for the other one, or end it."""


class IndexMovedError(RebuildError):
    """Begin again."""


@dataclass(frozen=True, slots=True)
class Progress:
    """`phase` is folding, comparing, copying, following or switching; `total` may grow with the log."""

    phase: str
    done: int
    total: int


@dataclass(slots=True)
class Comparison:
    """Both digests at `positions`. `uncompared` says of partitions why there is no index to compare with:
    the indexer itself would begin them again. `equal` is None when that is all of them."""

    equal: bool | None
    index: str | None
    log: str
    positions: dict[int, int]
    uncompared: dict[int, str]
    differences: Differences = field(default_factory=Differences)


@dataclass(slots=True)
class RebuildReport:
    """What a rebuild did. `positions` is where the new index stood when it was switched to; `log_starts` above
    0 means that the log's head is gone."""

    switched: bool
    comparison: Comparison
    positions: dict[int, int]
    log_starts: dict[int, int]
    records: int = 0
    block_operations: int = 0
    streams: int = 0
    copies: int = 0
    spans: int = 0
    dead: int = 0
    fold_s: float = 0.0
    compare_s: float = 0.0
    copy_s: float = 0.0
    total_s: float = 0.0


class Rebuild:
    """One run. `catch_up` reads kv.control into `registry` up to the end that it has when called: workers
    register while a rebuild runs. `refused` maps a partition to the offsets of the records that the dead
    letters call unstorable."""

    def __init__(
        self,
        dsn: str,
        connection: KafkaConnection,
        log: PartitionLog,
        registry: Registry,
        *,
        catch_up: Callable[[], Awaitable[None]],
        keyring: KeyRing,
        refused: Mapping[int, frozenset[int]],
        monotonic_s: Callable[[], float],
        progress: Callable[[Progress], None],
    ) -> None:
        self._dsn, self._kafka, self._log, self._registry = dsn, connection, log, registry
        self._catch_up, self._keyring, self._refused = catch_up, keyring, refused
        self._monotonic_s, self._progress = monotonic_s, progress
        self._topic = connection.topic(EVENTS)
        self._tails: dict[int, LogTail] = {}
        self._left: dict[int, list[RawRecord]] = {}
        self._parts: dict[int, PartitionRebuild] = {}
        self._stored: dict[int, int] = {}
        self._spans = 0

    async def run(self, accept: Callable[[Comparison], Awaitable[bool]]) -> RebuildReport:
        """Asks `accept` when the digests differ; False leaves the index in force.

        Raises RebuildError, LogUnavailableError, StoreUnavailableError (PostgreSQL is away) or
        StoreRefusedError (it can't hold a value that no dead letter names).
        """
        async with AsyncExitStack() as stack:
            try:
                return await self._run(stack, accept)
            except REFUSED as error:
                raise StoreRefusedError(f"PostgreSQL: {type(error).__name__}") from error
            except UNAVAILABLE as error:
                raise StoreUnavailableError(f"PostgreSQL: {type(error).__name__}") from error
            finally:
                for tail in self._tails.values():
                    await tail.stop()

    async def _run(
        self, stack: AsyncExitStack, accept: Callable[[Comparison], Awaitable[bool]]
    ) -> RebuildReport:
        begun_s = self._monotonic_s()
        admin = await self._connect(stack, REBUILD_NAME, None)
        if not await admin.fetchval("SELECT pg_try_advisory_lock($1)", ADVISORY_LOCK):
            raise RebuildRunningError("another rebuild of this database is under way")
        fresh = await self._connect(stack, f"{REBUILD_NAME} rows", FRESH)
        ids = await rebuild_schema.create(fresh)
        starts, ends, uncompared = await self._look(admin)
        self._parts = {
            number: PartitionRebuild(
                number, start, ids, self._refused.get(number, frozenset()), self._registry
            )
            for number, start in starts.items()
        }
        await self._fold_to(self._targets(ends), fresh)
        fold_s = self._monotonic_s() - begun_s
        comparison = await self._compare(admin, fresh, uncompared)
        parts = self._parts.values()
        report = RebuildReport(False, comparison, {}, starts, fold_s=fold_s)
        report.compare_s = self._monotonic_s() - begun_s - fold_s
        report.records = sum(part.records for part in parts)
        report.block_operations = sum(part.block_operations for part in parts)
        if comparison.equal is not False or await accept(comparison):
            copying_s = self._monotonic_s()
            for part in parts:
                part.prune(self._registry)
            await self._drain_spans(fresh)
            report.dead = sum(len(part.dead) for part in parts)
            report.streams = sum(len(part.states) for part in parts)
            report.copies = sum(state.copy_count() for part in parts for state in part.states)
            report.spans = self._spans
            await self._write_rows(fresh, report.copies)
            report.copy_s = self._monotonic_s() - copying_s
            report.positions = await self._switch(stack, admin)
            report.switched = True
        else:
            await fresh.execute(f"DROP SCHEMA {FRESH} CASCADE")
        report.total_s = self._monotonic_s() - begun_s
        return report

    async def _connect(self, stack: AsyncExitStack, name: str, schema: str | None) -> Any:
        connection = await connect(self._dsn, name=name, schema=schema)
        stack.callback(connection.terminate)
        await connection.execute("SET statement_timeout = 0")
        await connection.execute("SET idle_in_transaction_session_timeout = '15min'")
        return connection

    async def _look(self, admin: Any) -> tuple[dict[int, int], dict[int, int], dict[int, str]]:
        """(log start, log end, why there is nothing to compare) by partition; remembers what is stored."""
        starts: dict[int, int] = {}
        ends: dict[int, int] = {}
        uncompared: dict[int, str] = {}
        rows = {
            row["partition"]: row
            for row in await admin.fetch(
                "SELECT * FROM partition_progress WHERE topic = $1 AND log_id <> ''", self._topic
            )
        }
        for number in range(self._registry.partitions):
            starts[number], ends[number] = await self._log.bounds(self._topic, number)
            row = rows.get(number)
            why = (
                "no index" if row is None else await self._mismatch(number, row, starts[number], ends[number])
            )
            if row is not None and not why:
                self._stored[number] = row["next_offset"]
            else:
                uncompared[number] = why
        return starts, ends, uncompared

    async def _mismatch(self, number: int, row: Any, start: int, end: int) -> str:
        at, last_sha256 = row["next_offset"], bytes(row["last_record_sha256"])
        if row["log_id"] != self._registry.log:
            return f"it is of log {row['log_id']}"
        if not start <= at <= end:
            return f"it stands at {at}, the log goes from {start} to {end}"
        if last_sha256 and at > start:
            record = await self._log.first_from(self._topic, number, at - 1)
            if record is None or record.offset != at - 1 or sha256(record.value) != last_sha256:
                return f"the log has another record at {at - 1}"
        return ""

    def _targets(self, ends: Mapping[int, int]) -> dict[int, int]:
        return {number: self._stored.get(number, end) for number, end in ends.items()}

    async def _fold_to(self, targets: Mapping[int, int], fresh: Any) -> None:
        at = {number: part.projection.next_offset for number, part in self._parts.items()}
        total = sum(max(0, target - at[number]) for number, target in targets.items())
        done = 0
        for number, target in targets.items():
            part = self._parts[number]
            while part.projection.next_offset < target:
                before = part.projection.next_offset
                records = await self._read(number, before, target)
                for record in records:
                    part.fold(record)
                if not records:
                    part.projection.next_offset = target
                done += part.projection.next_offset - before
                self._progress(Progress("folding", done, total))
                if len(part.spans) >= SPANS_AT_ONCE:
                    await self._drain_spans(fresh)

    async def _read(self, number: int, at: int, target: int) -> list[RawRecord]:
        """The next records before `target`; none means that aborted transactions are all there is up to it.
        Later ones are kept for the next call. Whose their streams are is known: kv.control is read up to an end
        that it had after they were received."""
        records = self._left.pop(number, [])
        tail = self._tails.get(number)
        if tail is None:
            tail = LogTail(self._kafka, {(self._topic, number): at})
            await tail.start()
            self._tails[number] = tail
        begun_s = self._monotonic_s()
        while not records:
            records = await tail.fetch(timeout_ms=500, max_records=2_000)
            if not records and await tail.position(self._topic, number) >= target:
                return []
            if not records and self._monotonic_s() - begun_s > STILL_AFTER_S:
                raise LogUnavailableError(
                    f"{self._topic}[{number}] gives nothing at {at}, {target} is wanted"
                )
        try:
            await self._catch_up()
        except LogTruncatedError as error:
            raise RebuildError(f"{error}; begin again") from error
        wanted = [record for record in records if record.offset < target]
        if len(wanted) < len(records):
            self._left[number] = records[len(wanted) :]
        return wanted

    async def _drain_spans(self, fresh: Any) -> None:
        for part in self._parts.values():
            for first in range(0, len(part.spans), SPANS_AT_ONCE):
                await rebuild_schema.write_spans(fresh, part.spans[first : first + SPANS_AT_ONCE])
            self._spans += len(part.spans)
            part.spans = []

    async def _compare(self, admin: Any, fresh: Any, uncompared: dict[int, str]) -> Comparison:
        compared = frozenset(self._stored)
        async with admin.transaction(isolation="repeatable_read", readonly=True):
            await admin.execute(copy_sql.HOLD_TABLES)
            stands = await self._positions(admin)
            await self._fold_to(stands, fresh)
            self._progress(Progress("comparing", 0, 1))
            positions = {number: part.projection.next_offset for number, part in self._parts.items()}
            states = [state for number in compared for state in self._parts[number].states]
            folded = index_digest(states, self._registry)
            if not compared:
                everything = [state for part in self._parts.values() for state in part.states]
                return Comparison(None, None, index_digest(everything, self._registry), positions, uncompared)
            stored = await read_digest(admin, self._registry, compared)
            comparison = Comparison(stored == folded, stored, folded, positions, uncompared)
            if not comparison.equal:
                comparison.differences = await find_differences(admin, self._registry, states, compared)
        self._progress(Progress("comparing", 1, 1))
        return comparison

    async def _positions(self, admin: Any, lock: str = "") -> dict[int, int]:
        """Where the compared partitions of the index in force stand. Raises IndexMovedError."""
        rows = await admin.fetch(
            f"SELECT partition, next_offset, log_id FROM partition_progress WHERE topic = $1 {lock}",  # noqa: S608
            self._topic,
        )
        found = {row["partition"]: row["next_offset"] for row in rows if row["log_id"] == self._registry.log}
        for number in self._stored:
            if found.get(number, -1) < self._parts[number].projection.next_offset:
                raise IndexMovedError(f"partition {number} was emptied while it was rebuilt; begin again")
        return {number: found[number] for number in self._stored}

    async def _write_rows(self, fresh: Any, copies: int) -> None:
        done = 0

        def moved(count: int) -> None:
            nonlocal done
            done += count
            self._progress(Progress("copying", done, copies))

        await rebuild_schema.write_rows(fresh, self._topic, self._parts, self._keyring, moved)
        for number, part in self._parts.items():
            last, at = part.last_record, part.projection.next_offset
            part.projection.last_record_sha256 = (
                sha256(last.value) if last is not None and last.offset == at - 1 else b""
            )
            await fresh.execute(
                """INSERT INTO partition_progress (topic, partition, next_offset, log_id, last_record_sha256)
                   VALUES ($1, $2, $3, $4, $5)""",
                self._topic,
                number,
                at,
                self._registry.log,
                part.projection.last_record_sha256,
            )
            part.forget_rows()
        await fresh.execute("ANALYZE copy, copy_span, copy_attribute, holder, stream")

    async def _switch(self, stack: AsyncExitStack, admin: Any) -> dict[int, int]:
        follower = _Follower(self, PostgresStore(self._dsn, keyring=self._keyring, schema=FRESH), self._topic)
        stack.push_async_callback(follower.store.close)
        await follower.start(self._parts)

        async def follow() -> int:
            return await follower.follow(await self._wanted(admin))

        await draw_near(follow)
        self._progress(Progress("switching", 0, 1))
        async with admin.transaction():
            await admin.execute(f"SET LOCAL lock_timeout = '{HOLD_TIMEOUT}'")
            # Nobody ends a rebuild that holds the positions, so it must not hang with them.
            await admin.execute(f"SET LOCAL idle_in_transaction_session_timeout = '{HOLD_TIMEOUT}'")
            await follower.follow(await self._positions(admin, "FOR UPDATE"))
            await follower.store.close()
            await rebuild_schema.switch(admin)
            # The fresh table has every dead record again.
            await admin.execute("DELETE FROM public.dead_record_pruned WHERE topic = $1", self._topic)
            for number, part in self._parts.items():
                at = part.projection.next_offset
                await admin.execute(
                    _ADVANCE,
                    self._topic,
                    number,
                    at,
                    self._registry.log,
                    part.projection.last_record_sha256,
                    0 if number in self._stored else at,
                )
        self._progress(Progress("switching", 1, 1))
        return {number: part.projection.next_offset for number, part in self._parts.items()}

    async def _wanted(self, admin: Any) -> dict[int, int]:
        wanted = await self._positions(admin)
        for number in self._parts:
            if number not in self._stored:
                wanted[number] = (await self._log.bounds(self._topic, number))[1]
        return wanted


async def draw_near(follow: Callable[[], Awaitable[int]]) -> None:
    """Follows (each call returns how many records had come) until few are left to follow under the lock.
    Raises RebuildError if they come faster."""
    count = 0
    for _ in range(FOLLOW_ROUNDS):
        count = await follow()
        if count < NEAR_RECORDS:
            return
    raise RebuildError(
        f"{count} records came while the last ones were followed, fewer than {NEAR_RECORDS} are needed to "
        "switch: rebuild again when less is written"
    )


class _Follower:
    """Writes what came after the COPY into the fresh schema, as the indexer would."""

    def __init__(self, rebuild: Rebuild, store: PostgresStore, topic: str) -> None:
        self._rebuild, self.store, self._topic = rebuild, store, topic
        self._leases: dict[int, Any] = {}

    async def start(self, parts: Mapping[int, PartitionRebuild]) -> None:
        for number in parts:
            self._leases[number] = await self.store.claim(self._topic, number)

    async def follow(self, targets: Mapping[int, int]) -> int:
        """Returns how many records there were."""
        count = 0
        total = sum(
            max(0, target - self._rebuild._parts[number].projection.next_offset)
            for number, target in targets.items()
        )
        for number, target in targets.items():
            projection = self._rebuild._parts[number].projection
            while projection.next_offset < target:
                records = await self._rebuild._read(number, projection.next_offset, target)
                if not records:
                    await self.store.write(self._leases[number], projection.pass_hole(target))
                for first in range(0, len(records), BATCH_RECORDS):
                    chunk = records[first : first + BATCH_RECORDS]
                    if chunk[0].offset > projection.next_offset:
                        await self.store.write(self._leases[number], projection.pass_hole(chunk[0].offset))
                    delta = projection.fold(chunk)
                    if delta is not None:
                        await self.store.write(self._leases[number], delta)
                count += len(records)
                self._rebuild._progress(Progress("following", count, total))
        return count


_ADVANCE = """
INSERT INTO partition_progress (topic, partition, next_offset, log_id, last_record_sha256, rebuild_until, term)
VALUES ($1, $2, $3, $4, $5, $6, 1)
ON CONFLICT (topic, partition) DO UPDATE SET next_offset = excluded.next_offset, log_id = excluded.log_id,
    last_record_sha256 = excluded.last_record_sha256,
    rebuild_until = greatest(partition_progress.rebuild_until, excluded.rebuild_until),
    term = partition_progress.term + 1, updated_at = now()
"""


async def read_refused(connection: KafkaConnection, topic: str) -> dict[int, frozenset[int]]:
    """From the dead letters: offsets by partition of `topic` of the records that PostgreSQL couldn't hold.
    Raises LogUnavailableError."""
    from events.codec import decode_dead
    from events.errors import DecodeError
    from events.topic import DEAD

    dead = connection.topic(DEAD)
    tail = LogTail(connection, {(dead, 0): 0})
    found: dict[int, set[int]] = {}
    try:
        await tail.start()
        at, end = (await tail.beginning_offsets())[dead, 0], (await tail.end_offsets())[dead, 0]
        tail.seek(dead, 0, at)
        while at < end:
            for record in await tail.fetch(timeout_ms=500):
                try:
                    letter = decode_dead(record.value)
                except DecodeError:
                    continue
                if letter.topic == topic and letter.reason == UNSTORABLE:
                    found.setdefault(letter.partition, set()).add(letter.offset)
            at = await tail.position(dead, 0)
    finally:
        await tail.stop()
    return {partition: frozenset(offsets) for partition, offsets in found.items()}
