"""What an archive says it holds of one log: the main log's leaves under a signed checkpoint, and which segments are
kept. Pure.

The manifest is the only file that is ever replaced. It vouches for nothing by itself: whoever uses a segment computes
its root again and compares it with the main log's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote

from auditor.archive.failure import ArchiveError
from auditor.checkpoint import Note, NoteError, TreeHead, parse_head, parse_note
from auditor.main_log import origin
from auditor.segment import Partition, segment_leaf
from auditor.tree import Tree
from events.model.audit import RawBytes, Segment
from events.model.field import Count, Hex32, Name, Record

MANIFEST = "manifest.json"
KINDS = ("raw", "records.parquet", "events.parquet")
"""Files of a kept segment, by the end of their names; kv.control has no `events.parquet`."""


class FileKept(Record):
    """A file as it was written and read back."""

    bytes: Count
    sha256: Hex32
    rows: Count


class SegmentKept(Record):
    """Leaf number `leaf` of the main log, written and verified; `newest_ms` is its newest record's timestamp."""

    leaf: Count
    newest_ms: int
    raw: FileKept
    records: FileKept
    events: FileKept | None = None


class SubjectsKept(Record):
    """A sealed run of kv.subjects. `sealed`: the record of kv.audit that says so, under an auditor's signature of its
    own."""

    sealed: RawBytes
    segment: Segment
    raw: FileKept
    records: FileKept


class Manifest(Record):
    """`segments` are all leaves up to `note`'s size, in order, whether kept or not: with them the checkpoint can be
    checked by the archive alone."""

    format: Literal["kvledger archive"] = "kvledger archive"
    version: Literal[1, 2, 3] = 3
    """Version 1 knew nothing of kv.subjects; version 2 listed one run of it at most, all that was sealed."""
    log: Name
    note: str
    segments: tuple[Segment, ...]
    kept: tuple[SegmentKept, ...]
    gone: tuple[Count, ...] = ()
    """Leaves that the log had dropped before they could be archived."""
    subjects: tuple[SubjectsKept, ...] = ()


def folder_of(log: str) -> str:
    """The log's folder below an archive's URL."""
    return quote(log, safe="")


def file_of(log: str, segment: Segment, kind: str) -> str:
    """A segment's file of one of the `KINDS`, below the archive's URL."""
    return f"{folder_of(log)}/{segment.topic}/{segment.partition}/{segment.first:019d}-{segment.next:019d}.{kind}"


def name_of(segment: Segment) -> str:
    """For people."""
    return f"{segment.topic}/{segment.partition} from {segment.first} to {segment.next}"


def manifest_of(log: str) -> str:
    return f"{folder_of(log)}/{MANIFEST}"


def parse_manifest(raw: bytes) -> tuple[Manifest, Note, TreeHead]:
    """With its checkpoint, whose tree is that of the segments listed; the checkpoint's signatures are the caller's to
    check. Raises ArchiveError(archive_garbled)."""
    try:
        manifest = Manifest.read(_upcast(raw))
        note = parse_note(manifest.note.encode())
        head = parse_head(note.text)
    except (ValueError, RecursionError, NoteError) as error:
        raise ArchiveError(
            "archive_garbled",
            f"its {MANIFEST} can't be read, or is of an unknown version; without that file the next `audit archive`"
            " takes over what is there",
        ) from error
    tree = Tree().extend(segment_leaf(segment) for segment in manifest.segments)
    if head.origin != origin(manifest.log) or (tree.size, tree.root()) != (head.size, head.root):
        raise ArchiveError("archive_garbled", "its segments are not those of its checkpoint")
    leaves = [one.leaf for one in manifest.kept]
    if leaves != sorted(set(leaves)) or (leaves and leaves[-1] >= len(manifest.segments)):
        raise ArchiveError("archive_garbled", "its manifest lists segments that are none")
    return manifest, note, head


def _upcast(raw: bytes) -> bytes:
    """Versions 1 and 2 named one run of kv.subjects, or none. Raises ValueError."""
    document = json.loads(raw)
    if isinstance(document, dict) and document.get("version") in (1, 2):
        one = document.get("subjects")
        return json.dumps(document | {"subjects": [] if one is None else [one]}).encode()
    return raw


@dataclass(slots=True)
class Coverage:
    """Which offsets of one partition the archive keeps: runs without a hole, in order. What lies between two sealed
    segments in no segment, because no record was there or none was sealed, is a hole too."""

    runs: list[tuple[int, int]] = field(default_factory=list)

    def add(self, segment: Segment) -> None:
        """The next segment of the partition."""
        if self.runs and self.runs[-1][1] == segment.first:
            self.runs[-1] = self.runs[-1][0], segment.next
        else:
            self.runs.append((segment.first, segment.next))

    def run_at(self, offset: int) -> tuple[int, int] | None:
        """The run that reaches `offset` without a hole: it contains it, or ends there."""
        return next((run for run in self.runs if run[0] <= offset <= run[1]), None)


def coverage(segments: Iterable[Segment]) -> dict[Partition, Coverage]:
    """By partition, of kept segments in the main log's order."""
    found: dict[Partition, Coverage] = {}
    for segment in segments:
        found.setdefault((segment.topic, segment.partition), Coverage()).add(segment)
    return found


def kept_segments(manifest: Manifest) -> Mapping[int, Segment]:
    """By leaf number."""
    return {one.leaf: manifest.segments[one.leaf] for one in manifest.kept}
