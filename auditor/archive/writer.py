"""Writes sealed segments into an archive, each verified by reading it back before the manifest lists it.

Every step may be the last one of a process: what is not in the manifest yet is looked at again by the next run, taken
over where its root is the sealed one, and written anew otherwise.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Protocol, cast

from auditor.archive.failure import ArchiveError
from auditor.archive.log_archive import LogArchive, digest_of
from auditor.archive.manifest import FileKept, Manifest, SegmentKept, SubjectsKept, file_of, name_of
from auditor.archive.raw import MAGIC, is_sealed, read_records, write_record
from auditor.archive.table import rows_in, write_tables
from auditor.main_log import MainLog, log_keys
from auditor.segment import Partition
from events.kafka.connection import RawRecord
from events.model.audit import Segment
from events.topic import EVENTS

LISTED_AT_ONCE = 32
"""The manifest is written again after this many segments, and at the end."""


class Source(Protocol):
    """Where the log's records are; topics go by their plain names."""

    async def starts(self) -> Mapping[Partition, int]:
        """The oldest offset that is still there, by partition. Raises LogUnavailableError."""

    async def subjects_held(self) -> range:
        """Offsets that kv.subjects holds now. Raises LogUnavailableError."""

    async def read(self, segment: Segment, take: Callable[[RawRecord], None]) -> None:
        """Gives the segment's records to `take`, in order. Raises LogUnavailableError."""


@dataclass(slots=True)
class Written:
    """What a run did. `added`: segments written; `adopted`: found written and verified already; `gone`: sealed ones
    that the log has dropped since the last run, before they were archived; `problems`: where the log contradicts
    what was sealed."""

    manifest: Manifest
    added: int = 0
    adopted: int = 0
    gone: list[Segment] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class ArchiveWriter:
    """`main` is the fold of the whole `kv.audit`."""

    def __init__(self, archive: LogArchive, main: MainLog, source: Source) -> None:
        self._archive = archive
        self._main = main
        self._source = source

    async def run(self) -> Written:
        """Archives every segment below the newest signed checkpoint that isn't kept yet; idempotent.

        Raises ArchiveError, LogUnavailableError; what was listed in the manifest by then stays."""
        before = await asyncio.to_thread(self._before)
        note, size = self._checkpoint()
        kept = {one.leaf: one for one in before.kept} if before is not None else {}
        gone = set(before.gone) if before is not None else set()
        starts = await self._source.starts()
        subjects = before.subjects if before is not None else ()
        done = Written(self._manifest(note, size, kept, gone, subjects))
        for leaf, segment in enumerate(self._main.segments[:size]):
            if leaf in kept:
                continue
            found = await self._keep(leaf, segment, starts, done, known=leaf in gone)
            if found is None and segment in done.gone[-1:]:
                gone.add(leaf)
            if found is not None:
                kept[leaf] = found
                if (done.added + done.adopted) % LISTED_AT_ONCE == 0:
                    await self._list(self._manifest(note, size, kept, gone, subjects))
        subjects = await self._subjects(size, before, done)
        done.manifest = self._manifest(note, size, kept, gone, subjects)
        if done.manifest != before:
            await self._list(done.manifest)
        return done

    def _before(self) -> Manifest | None:
        try:
            manifest, _ = self._archive.manifest()
        except ArchiveError as error:
            if error.reason == "archive_missing":
                return None
            raise
        if manifest.segments != tuple(self._main.segments[: len(manifest.segments)]):
            raise ArchiveError(
                "archive_foreign", f"it is of another log of the name {manifest.log}: their main logs differ"
            )
        return manifest

    def _checkpoint(self) -> tuple[str, int]:
        """The newest checkpoint that a living auditor's key has signed, and how many leaves it has."""
        living = log_keys(self._main.registry, revoked=False)
        for size, note in sorted(self._main.checkpoints.items(), reverse=True):
            if size and any(note.signed_by(key) for key in living):
                return note.to_bytes().decode(), size
        raise ArchiveError("archive_unavailable", "nothing is sealed yet: `kvledger audit checkpoint` does")

    async def _subjects(self, size: int, before: Manifest | None, done: Written) -> tuple[SubjectsKept, ...]:
        """What was sealed of kv.subjects up to the checkpoint's size, as far as it could be had."""
        listed = {one.sealed: one for one in before.subjects} if before is not None else {}
        newest = before.subjects[-1].segment.next if before is not None and before.subjects else 0
        found: list[SubjectsKept] = []
        for seal in self._main.subjects.up_to(size):
            if seal.value in listed:
                found.append(listed[seal.value])
                continue
            start = (await self._source.subjects_held()).start
            where = (seal.segment.topic, seal.segment.partition)
            known = seal.segment.next <= newest
            kept = await self._keep(0, seal.segment, {where: start}, done, known=known)
            if kept is not None:
                segment, raw, records = seal.segment, kept.raw, kept.records
                found.append(SubjectsKept(sealed=seal.value, segment=segment, raw=raw, records=records))
        return tuple(found)

    def _manifest(
        self,
        note: str,
        size: int,
        kept: Mapping[int, SegmentKept],
        gone: set[int],
        subjects: tuple[SubjectsKept, ...],
    ) -> Manifest:
        return Manifest(
            log=self._archive.log,
            note=note,
            segments=tuple(self._main.segments[:size]),
            kept=tuple(one for _, one in sorted(kept.items())),
            gone=tuple(sorted(gone - kept.keys())),
            subjects=subjects,
        )

    async def _list(self, manifest: Manifest) -> None:
        await asyncio.to_thread(self._archive.write_manifest, manifest)

    async def _keep(
        self, leaf: int, segment: Segment, starts: Mapping[Partition, int], done: Written, *, known: bool
    ) -> SegmentKept | None:
        with tempfile.TemporaryFile() as spool:
            if await asyncio.to_thread(self._adopt, segment, spool):
                done.adopted += 1
                return await asyncio.to_thread(self._write, leaf, segment, spool, raw_is_there=True)
            if segment.first < starts.get((segment.topic, segment.partition), 0):
                done.gone += [] if known else [segment]
                return None
            spool.seek(0)
            spool.truncate()
            spool.write(MAGIC)
            await self._source.read(segment, lambda record: write_record(spool, record))
            if not await asyncio.to_thread(_fits, segment, spool):
                done.problems.append(f"{name_of(segment)} is not what was sealed")
                return None
            done.added += 1
            return await asyncio.to_thread(self._write, leaf, segment, spool, raw_is_there=False)

    def _adopt(self, segment: Segment, spool: IO[bytes]) -> bool:
        """Whether an earlier run has written the raw file, and it is the sealed one; then `spool` holds it."""
        try:
            with self._archive.open(segment, "raw") as file:
                while chunk := file.read(1 << 20):
                    spool.write(chunk)
        except ArchiveError as error:
            if error.reason == "archive_missing":
                return False
            raise
        return _fits(segment, spool)

    def _write(self, leaf: int, segment: Segment, spool: IO[bytes], *, raw_is_there: bool) -> SegmentKept:
        with tempfile.TemporaryFile() as records, tempfile.TemporaryFile() as events:
            spool.seek(0)
            told = read_records(cast(Any, spool), segment.topic, segment.partition)
            seen = _Newest()
            rows, event_rows = write_tables(seen.passing(told), cast(Any, records), cast(Any, events))
            raw = self._put(segment, "raw", spool, segment.records, there=raw_is_there)
            listed = self._put(segment, "records.parquet", records, rows)
            with_events = segment.topic == EVENTS.name
            other = self._put(segment, "events.parquet", events, event_rows) if with_events else None
        self._archive.verify(segment)
        return SegmentKept(leaf=leaf, newest_ms=seen.newest_ms, raw=raw, records=listed, events=other)

    def _put(
        self, segment: Segment, kind: str, file: IO[bytes], rows: int, *, there: bool = False
    ) -> FileKept:
        """Writes a file and reads it back; raises ArchiveError(archive_unverified) if that differs."""
        size, sha256 = digest_of(cast(Any, file))
        if not there:
            self._archive.store.put(file_of(self._archive.log, segment, kind), cast(Any, file))
        with self._archive.open(segment, kind) as back:
            if digest_of(back) != (size, sha256) or (kind != "raw" and rows_in(back) != rows):
                raise ArchiveError(
                    "archive_unverified", f"{kind} of {name_of(segment)} isn't read back as written"
                )
        return FileKept(bytes=size, sha256=sha256, rows=rows)


class _Newest:
    """The newest timestamp of the records that pass."""

    def __init__(self) -> None:
        self.newest_ms = -1

    def passing(self, records: Any) -> Any:
        for record in records:
            self.newest_ms = max(self.newest_ms, record.timestamp_ms)
            yield record


def _fits(segment: Segment, spool: IO[bytes]) -> bool:
    spool.seek(0)
    try:
        return is_sealed(segment, read_records(cast(Any, spool), segment.topic, segment.partition))
    except ArchiveError:
        return False
