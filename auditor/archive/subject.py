"""What kv.subjects has dropped, from an archive: the runs that auditors sealed of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import islice

from auditor.archive.log_archive import LogArchive
from auditor.archive.manifest import name_of
from auditor.archive.reader import RECORDS_AT_ONCE, damage
from auditor.log import Take
from events.kafka.connection import RawRecord
from events.model.audit import Segment


class ArchivedSubjects:
    """A `SubjectsPast`: of the runs that `kv.audit` says were sealed, those that the archive gives back as they were,
    without a hole up to where the log begins. `problems` say what of it is damaged, `begins` from where on it was never
    archived."""

    def __init__(self, archive: LogArchive, sealed: Sequence[Segment]) -> None:
        self._archive = archive
        self._sealed = sealed
        self._verified: dict[int, list[Segment]] = {}
        self.problems: list[str] = []
        self.begins: list[str] = []

    async def read_below(self, start: int, take: Take) -> int:
        """Raises ArchiveError if the archive can't be reached or read."""
        if start not in self._verified:
            self._verified[start] = await asyncio.to_thread(self._run, start)
        run = self._verified[start]
        records = self._records(run, start)
        while chunk := await asyncio.to_thread(lambda: list(islice(records, RECORDS_AT_ONCE))):
            for record in chunk:
                take(record)
        return run[0].first if run else start

    def _run(self, start: int) -> list[Segment]:
        run: list[Segment] = []
        reached = start
        self.problems, self.begins = [], []
        kept = {one.segment for one in self._archive.manifest()[0].subjects}
        for segment in reversed(self._sealed):
            if segment.first >= start:
                continue
            if segment.next < reached:
                break
            if segment not in kept:
                self.begins.append(f"{name_of(segment)} was dropped and is not in the archive")
                break
            why = damage(self._archive, segment)
            if why:
                self.problems.append(f"archive: {why}")
                break
            run.append(segment)
            reached = segment.first
        return run[::-1]

    def _records(self, run: Sequence[Segment], start: int) -> Iterator[RawRecord]:
        for segment in run:
            with self._archive.records(segment) as told:
                yield from (record for record in told if record.offset < start)
