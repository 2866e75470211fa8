"""kv.events as a whole: what Kafka has dropped from an archive, the rest from Kafka, in one order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from auditor.archive.failure import ArchiveError
from auditor.archive.log_archive import LogArchive
from auditor.archive.manifest import kept_segments, name_of
from auditor.log import EventsReader, Take
from auditor.main_log import MainLog
from events.kafka.connection import RawRecord
from events.model.audit import Segment
from events.topic import EVENTS

RECORDS_AT_ONCE = 1_000


@dataclass(slots=True)
class ArchivedPast:
    """Which segments of kv.events stand in for what the log dropped: by partition a run without a hole that reaches
    the log's start, every one of them verified. `problems` say what of it is damaged, `begins` from where on it was
    never archived."""

    archive: LogArchive
    runs: dict[int, list[Segment]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    begins: list[str] = field(default_factory=list)

    def starts(self, log_starts: Mapping[int, int]) -> dict[int, int]:
        """Where archive and log together begin, by partition."""
        return {p: self.runs[p][0].first if self.runs.get(p) else at for p, at in log_starts.items()}

    def records(self, partition: int, first: int, end: int) -> Iterator[RawRecord]:
        """Records from `first` up to, without, `end`. Raises ArchiveError."""
        for segment in self.runs.get(partition, []):
            if segment.next > first and segment.first < end:
                with self.archive.records(segment) as records:
                    yield from (record for record in records if first <= record.offset < end)


def verified_past(
    archive: LogArchive, main: MainLog, log_starts: Mapping[int, int], since: Mapping[int, int]
) -> ArchivedPast:
    """What the archive can give below the log's start, newest first, until something of it is missing or is not what
    the main log sealed: nothing that isn't verified is ever read on. Below `since` nothing is wanted. Reads every
    segment that it takes once; blocks.

    Raises ArchiveError if the archive can't be used at all: it is unreachable, garbled, or of another log.
    """
    manifest, _ = archive.manifest()
    if manifest.segments != tuple(main.segments[: len(manifest.segments)]):
        raise ArchiveError("archive_foreign", f"it is of another log of the name {manifest.log}")
    past = ArchivedPast(archive)
    kept = kept_segments(manifest)
    sealed: dict[int, list[tuple[int, Segment]]] = {}
    for leaf, segment in enumerate(main.segments):
        if segment.topic == EVENTS.name:
            sealed.setdefault(segment.partition, []).append((leaf, segment))
    for partition, start in sorted(log_starts.items()):
        run: list[Segment] = []
        reached = start
        for leaf, segment in reversed(sealed.get(partition, [])):
            if segment.first >= start:
                continue
            if segment.next < reached or reached <= since.get(partition, 0):
                break
            if leaf not in kept:
                past.begins.append(f"{name_of(segment)} was dropped and is not in the archive")
                break
            why = damage(archive, segment)
            if why:
                past.problems.append(f"archive: {why}")
                break
            run.append(segment)
            reached = segment.first
        past.runs[partition] = run[::-1]
    return past


def damage(archive: LogArchive, segment: Segment) -> str:
    """What is wrong with a segment that the manifest lists; "" if nothing is."""
    try:
        archive.verify(segment)
    except ArchiveError as error:
        if error.reason == "archive_unavailable":
            raise
        return error.detail
    return ""


class ArchivedReader:
    """An `EventsReader` of kv.events with an archive before another one. `prepend` before `start`."""

    def __init__(self, inner: EventsReader) -> None:
        self._inner = inner
        self._archive: LogArchive | None = None
        self._main: MainLog | None = None
        self._past: ArchivedPast | None = None
        self._since: dict[int, int] = {}
        self._next: dict[int, int] = {}
        self.starts: dict[int, int] = {}

    @property
    def problems(self) -> list[str]:
        """What of the archive is damaged."""
        return [] if self._past is None else self._past.problems

    @property
    def begins(self) -> list[str]:
        """Where the archive doesn't reach back any further."""
        return [] if self._past is None else self._past.begins

    def prepend(self, archive: LogArchive, main: MainLog, since: Mapping[int, int]) -> None:
        """From the next `start` on what the log has dropped comes from there, as far as it isn't below `since`."""
        self._archive, self._main, self._since = archive, main, dict(since)

    async def start(self, partitions: int) -> None:
        """Raises LogUnavailableError, ArchiveError."""
        await self._inner.start(partitions)
        await self._look()

    async def whole(self) -> None:
        """Raises ArchiveError."""
        if self._since:
            self._since = {}
            await self._look()

    async def _look(self) -> None:
        self.starts = dict(self._inner.starts)
        if self._archive is not None and self._main is not None:
            self._past = await asyncio.to_thread(
                verified_past, self._archive, self._main, self._inner.starts, self._since
            )
            self.starts = self._past.starts(self._inner.starts)
        self.rewind()

    def skip_to(self, offsets: dict[int, int]) -> None:
        """The next `read_to` begins there, or at the start where that lies behind."""
        self._next = {p: max(start, offsets.get(p, 0)) for p, start in self.starts.items()}
        self._inner.skip_to(offsets)

    def rewind(self) -> None:
        """The next `read_to` begins at the start again."""
        self.skip_to({})

    async def ends(self) -> dict[int, int]:
        return await self._inner.ends()

    async def read_to(self, ends: dict[int, int], take: Take) -> None:
        """As of `PartitionReader`. Raises ArchiveError too, if the archive fails or changes meanwhile."""
        for partition, log_start in self._inner.starts.items():
            end = min(log_start, ends[partition])
            if self._past is None or self._next[partition] >= end:
                continue
            records = self._past.records(partition, self._next[partition], end)
            while chunk := await asyncio.to_thread(lambda told: list(islice(told, RECORDS_AT_ONCE)), records):
                for record in chunk:
                    take(record)
            self._next[partition] = end
        await self._inner.read_to(ends, take)

    async def stands(self) -> bool:
        return await self._inner.stands()

    async def stop(self) -> None:
        """Idempotent."""
        await self._inner.stop()
