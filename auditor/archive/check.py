"""Checks an archive by itself, without the log: from its files and one public key."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any, cast

from auditor.archive.failure import ArchiveError
from auditor.archive.log_archive import LogArchive, digest_of
from auditor.archive.manifest import (
    FileKept,
    Manifest,
    SegmentKept,
    SubjectsKept,
    coverage,
    kept_segments,
    name_of,
)
from auditor.archive.table import same_tables, write_tables
from auditor.checkpoint import Note
from auditor.main_log import MainLog, log_keys
from auditor.registry import ControlFold
from auditor.segment import Partition
from auditor.subject_seal import SubjectSeals
from events.ids import KeyId, Role
from events.kafka.connection import RawRecord
from events.model.audit import Segment
from events.signing import key_id, verify
from events.topic import CONTROL, EVENTS


@dataclass(slots=True)
class Checked:
    """`problems`: what doesn't hold. `runs`: offsets kept, by partition, without holes within a run."""

    log: str
    leaves: int
    kept: int
    records: int = 0
    runs: dict[Partition, list[tuple[int, int]]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def check_archive(archive: LogArchive, trusted_key: bytes, told: Callable[[str], None]) -> Checked:
    """Reads everything: each segment's root again, the checkpoint's signature by an auditor whom the trusted key (the
    operator's, or the auditor's own) vouches for in the archived kv.control, and each Parquet file against the raw
    one. `told` hears of every segment. Raises ArchiveError only if there is no archive to check."""
    manifest, note = archive.manifest()
    found = Checked(archive.log, len(manifest.segments), len(manifest.kept))
    registry = ControlFold(verify)
    for one in manifest.kept:
        segment = manifest.segments[one.leaf]
        told(name_of(segment))
        try:
            found.records += _segment(archive, one, segment, registry)
        except ArchiveError as error:
            found.problems.append(str(error))
    seals = seals_listed(manifest, registry)
    for kept in manifest.subjects:
        told(name_of(kept.segment))
        try:
            found.records += _subjects(archive, kept, seals, registry)
        except ArchiveError as error:
            found.problems.append(str(error))
    untrusted = why_untrusted(manifest, note, registry, trusted_key)
    found.problems += [] if untrusted is None else [str(untrusted)]
    found.runs = {
        where: covered.runs for where, covered in coverage(kept_segments(manifest).values()).items()
    }
    return found


def _subjects(archive: LogArchive, kept: SubjectsKept, seals: SubjectSeals, registry: ControlFold) -> int:
    if (kept.sealed, kept.segment) not in [(one.value, one.segment) for one in seals.seals]:
        raise ArchiveError("archive_unverified", f"no auditor sealed {name_of(kept.segment)}")
    found = SegmentKept(leaf=0, newest_ms=0, raw=kept.raw, records=kept.records)
    return _segment(archive, found, kept.segment, registry)


def seals_listed(manifest: Manifest, registry: ControlFold) -> SubjectSeals:
    """What auditors sealed of kv.subjects, by the records of kv.audit that the manifest brings. `registry` is the fold
    of the archived kv.control."""
    main = MainLog(registry)
    for kept in manifest.subjects:
        main.take(kept.sealed)
    return main.subjects


def _segment(archive: LogArchive, kept: SegmentKept, segment: Segment, registry: ControlFold) -> int:
    archive.verify(segment)
    for kind, file in (("raw", kept.raw), ("records.parquet", kept.records), ("events.parquet", kept.events)):
        if file is not None:
            _as_listed(archive, segment, kind, file)
    with tempfile.TemporaryFile() as records, tempfile.TemporaryFile() as events:
        with archive.records(segment) as told:
            rows, _ = write_tables(_seen(told, segment, registry), cast(Any, records), cast(Any, events))
        _same(archive, segment, "records.parquet", records)
        if segment.topic == EVENTS.name:
            _same(archive, segment, "events.parquet", events)
    return rows


def _seen(told: Iterator[RawRecord], segment: Segment, registry: ControlFold) -> Iterator[RawRecord]:
    for record in told:
        if segment.topic == CONTROL.name:
            registry.feed(record.offset, record.value, record.signature)
        yield record


def _as_listed(archive: LogArchive, segment: Segment, kind: str, file: FileKept) -> None:
    with archive.open(segment, kind) as there:
        if digest_of(there) != (file.bytes, file.sha256):
            raise ArchiveError(
                "archive_unverified", f"{kind} of {name_of(segment)} is not as the manifest says"
            )


def _same(archive: LogArchive, segment: Segment, kind: str, made: IO[bytes]) -> None:
    made.seek(0)
    with archive.open(segment, kind) as there:
        if not same_tables(there, cast(Any, made)):
            raise ArchiveError(
                "archive_unverified", f"{kind} of {name_of(segment)} is not what the raw file gives"
            )


def why_untrusted(
    manifest: Manifest, note: Note, registry: ControlFold, trusted_key: bytes
) -> ArchiveError | None:
    """Why no auditor whom the trusted key (the operator's, or the auditor's own) vouches for signed the checkpoint;
    None if one did. `registry` is the fold of the archived kv.control."""
    if not registry.contiguous:
        return ArchiveError("archive_unverified", "kv.control is not in it from its beginning")
    if registry.log != manifest.log:
        return ArchiveError("archive_foreign", f"its kv.control is of log {registry.log}")
    keys = log_keys(registry, revoked=False)
    if trusted_key != registry.operator_key:
        grant = registry.grants.get(KeyId(key_id(trusted_key)))
        if grant is None or Role.AUDITOR not in grant.roles:
            return ArchiveError("archive_foreign", "the key given is neither its operator's nor an auditor's")
        keys = [key for key in keys if key.public_key == trusted_key]
    if not any(note.signed_by(key) for key in keys):
        return ArchiveError(
            "archive_unverified", "no auditor that the key vouches for has signed its checkpoint"
        )
    return None
