"""What `kvledger audit archive` does: archives a log's sealed segments, says how far it is, lets Kafka drop them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from auditor.archive.extent import (
    Extent,
    begun_before,
    dropped_unarchived,
    extents,
    releasable,
    retention_danger,
    subjects_extent,
)
from auditor.archive.failure import ArchiveError
from auditor.archive.log_archive import LogArchive
from auditor.archive.manifest import Manifest, kept_segments
from auditor.archive.source import KafkaSource
from auditor.archive.store import FsspecStore
from auditor.archive.writer import ArchiveWriter, Written
from auditor.log import AuditedLog, read_audit
from auditor.main_log import MainLog
from auditor.registry import ControlFold
from auditor.segment import Partition
from events.kafka.connection import KafkaConnection, RawRecord
from events.kafka.partition_log import KafkaPartitionLog
from events.kafka.topic_admin import drop_records, retention_of
from events.signing import verify
from events.topic import CONTROL, EVENTS, SUBJECTS
from kvledger.control import connection, wall_ms
from kvledger.failure import CommandError, ExitCode
from kvledger.settings import Settings

DAY_MS = 86_400_000


@dataclass(slots=True)
class ArchiveState:
    """After a run, or without one. `oldest_ms`: age of the oldest record that only the log holds, by partition of
    kv.events; `dangers` and `lost` are `retention_ahead_of_archive`; `released`: what Kafka dropped, by partition."""

    log: str
    leaves: int
    kept: int
    extents: list[Extent]
    oldest_ms: dict[int, int] = field(default_factory=dict)
    dangers: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    added: int = 0
    adopted: int = 0
    released: dict[int, int] = field(default_factory=dict)
    subjects_to: int | None = None
    """Up to which offset kv.subjects is archived; None: nothing of it is."""


async def archive_log(
    settings: Settings, url: str, *, write: bool, release: bool, keep_days: float
) -> ArchiveState:
    """Archives, then lets Kafka drop what is archived, verified and older than `keep_days`, if told to.

    Raises ArchiveError, LogUnavailableError, CommandError if nobody has begun the log."""
    at = connection(settings)
    store = await asyncio.to_thread(FsspecStore, url)
    main = await read_main_log(at)
    archive = LogArchive(store, main.registry.log)
    async with _source(at, main.registry.partitions) as source:
        written: Written | None = None
        if write:
            written = await ArchiveWriter(archive, main, source).run()
        manifest = written.manifest if written is not None else await asyncio.to_thread(_manifest, archive)
        starts, ends = await source.starts(), await source.ends()
        state = ArchiveState(
            main.registry.log,
            main.size,
            len(manifest.kept) if manifest is not None else 0,
            extents(manifest, starts, ends),
        )
        subjects = await source.subjects_held()
        if subjects.stop:
            state.extents.append(subjects_extent(manifest, subjects))
        if written is not None:
            state.added, state.adopted, state.problems = written.added, written.adopted, written.problems
        if manifest is not None:
            state.subjects_to = manifest.subjects[-1].segment.next if manifest.subjects else None
            gone = written.gone if written is not None else dropped_unarchived(manifest, starts)
            state.lost = begun_before(manifest, gone)
        await _look_at_retention(at, state)
        if release and manifest is not None and not state.problems:
            upto = releasable(manifest, starts, wall_ms() - int(keep_days * DAY_MS))
            state.released = await asyncio.to_thread(_verified, archive, manifest, starts, upto, state)
            if state.released:
                await drop_records(at, EVENTS, state.released)
        return state


async def read_main_log(at: KafkaConnection) -> MainLog:
    """kv.control and kv.audit, whole. Raises LogUnavailableError, CommandError if nobody has begun the log."""
    registry, log = ControlFold(verify), AuditedLog(at)

    def take(record: RawRecord) -> None:
        registry.feed(record.offset, record.value, record.signature)

    try:
        await log.start()
        await log.read_control(take)
    finally:
        await log.stop()
    if not registry.log:
        raise CommandError(
            "the log has no genesis record", advice="run `kvledger up` once", exit_code=ExitCode.CONFIGURATION
        )
    main = MainLog(registry)

    def fold(record: RawRecord) -> None:
        main.take(record.value)

    await read_audit(at, fold, 20.0)
    return main


@asynccontextmanager
async def _source(at: KafkaConnection, partitions: int) -> AsyncIterator[KafkaSource]:
    source = KafkaSource(at, partitions)
    try:
        await source.start()
        yield source
    finally:
        await source.stop()


def _manifest(archive: LogArchive) -> Manifest | None:
    try:
        return archive.manifest()[0]
    except ArchiveError as error:
        if error.reason == "archive_missing":
            return None
        raise


async def _look_at_retention(at: KafkaConnection, state: ArchiveState) -> None:
    """Notes what Kafka may drop before it is archived."""
    now_ms, log = wall_ms(), KafkaPartitionLog(at)
    try:
        for topic in (CONTROL, EVENTS, SUBJECTS):
            retention_ms, retention_bytes = await retention_of(at, topic)
            for extent in [one for one in state.extents if one.topic == topic.name]:
                oldest = None
                if extent.unarchived:
                    oldest = await log.first_from(at.topic(topic), extent.partition, extent.archived_to)
                oldest_ms = oldest.timestamp_ms if oldest is not None else -1
                if oldest_ms >= 0 and topic is EVENTS:
                    state.oldest_ms[extent.partition] = max(0, now_ms - oldest_ms)
                danger = retention_danger(extent, retention_ms, retention_bytes, oldest_ms, now_ms)
                if danger:
                    state.dangers.append(danger)
    finally:
        await log.close()


def _verified(
    archive: LogArchive,
    manifest: Manifest,
    starts: Mapping[Partition, int],
    upto: Mapping[int, int],
    state: ArchiveState,
) -> dict[int, int]:
    """How far of `upto` the archive gives back what was sealed, read again now."""
    reached = {p: starts[EVENTS.name, p] for p in upto}
    broken: set[int] = set()
    for segment in kept_segments(manifest).values():
        p = segment.partition
        if segment.topic != EVENTS.name or p not in upto or p in broken:
            continue
        if segment.next <= reached[p] or segment.next > upto[p]:
            continue
        try:
            archive.verify(segment)
        except ArchiveError as error:
            state.problems.append(str(error))
            broken.add(p)
            continue
        reached[p] = segment.next
    return {p: at for p, at in reached.items() if at > starts[EVENTS.name, p]}


def metrics_of(state: ArchiveState) -> str:
    """The state in Prometheus' text format, for a textfile collector."""
    lines: list[str] = []

    def gauge(name: str, what: str, values: Mapping[str, float]) -> None:
        lines.append(f"# HELP kvledger_archive_{name} {what}")
        lines.append(f"# TYPE kvledger_archive_{name} gauge")
        lines.extend(f"kvledger_archive_{name}{labels} {value:g}" for labels, value in values.items())

    def labels(one: Extent) -> str:
        return f'{{topic="{one.topic}",partition="{one.partition}"}}'

    gauge(
        "unarchived_offsets",
        "Offsets that only the log holds.",
        {labels(o): o.unarchived for o in state.extents},
    )
    gauge(
        "unarchived_seconds",
        "Age of the oldest record that only the log holds.",
        {
            labels(one): state.oldest_ms.get(one.partition, 0) / 1_000
            for one in state.extents
            if one.topic == EVENTS.name
        },
    )
    gauge(
        "retention_ahead",
        "1 if Kafka drops records before they are archived.",
        {"": float(bool(state.dangers or state.lost))},
    )
    gauge("problems", "Segments that are not what was sealed.", {"": float(len(state.problems))})
    return "\n".join(lines) + "\n"
