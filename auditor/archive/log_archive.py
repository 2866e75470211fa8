"""One log's folder of an archive: its manifest, and the files of its segments, verified as they are read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import BinaryIO

from auditor.archive.failure import ArchiveError
from auditor.archive.manifest import Manifest, file_of, folder_of, manifest_of, name_of, parse_manifest
from auditor.archive.raw import is_sealed, read_records
from auditor.archive.store import CHUNK_BYTES, Store, reported
from auditor.checkpoint import Note
from events.codec import dump
from events.kafka.connection import RawRecord
from events.model.audit import Segment


@dataclass(frozen=True, slots=True)
class LogArchive:
    """Of the log `log` in `store`. Reads block: call them from a thread."""

    store: Store
    log: str

    def manifest(self) -> tuple[Manifest, Note]:
        """Raises ArchiveError: archive_missing, archive_garbled, archive_foreign."""
        with self.store.open(manifest_of(self.log)) as file:
            manifest, note, _ = parse_manifest(file.read())
        if manifest.log != self.log:
            raise ArchiveError("archive_foreign", f"it is of log {manifest.log}, not of {self.log}")
        return manifest, note

    def write_manifest(self, manifest: Manifest) -> None:
        """Durable when it returns."""
        self.store.put(manifest_of(self.log), BytesIO(dump(manifest)))

    @contextmanager
    def open(self, segment: Segment, kind: str) -> Iterator[BinaryIO]:
        """A segment's file of one kind. Raises ArchiveError: archive_missing, archive_unavailable."""
        name = file_of(self.log, segment, kind)
        with reported(name), self.store.open(name) as file:
            yield file

    @contextmanager
    def records(self, segment: Segment) -> Iterator[Iterator[RawRecord]]:
        """The records of a segment's raw file, whatever they are: see `verify`. Raises ArchiveError."""
        with self.open(segment, "raw") as file:
            yield read_records(file, segment.topic, segment.partition)

    def verify(self, segment: Segment) -> None:
        """Reads a segment's raw file and computes its root. Raises ArchiveError: archive_missing, archive_garbled,
        or archive_unverified if the root is not the segment's."""
        with self.records(segment) as records:
            if not is_sealed(segment, records):
                raise ArchiveError("archive_unverified", f"{name_of(segment)} is not what was sealed")


def logs_in(store: Store) -> list[str]:
    """Folders in which an archive of a log lies."""
    found: list[str] = []
    for folder in store.folders():
        try:
            with store.open(f"{folder}/manifest.json") as file:
                log = parse_manifest(file.read())[0].log
        except ArchiveError:
            continue
        if folder_of(log) == folder:
            found.append(log)
    return found


def digest_of(file: BinaryIO) -> tuple[int, bytes]:
    """(length, SHA-256) of a file from its beginning; it stands at its beginning again afterwards."""
    file.seek(0)
    known, size = hashlib.sha256(), 0
    while chunk := file.read(CHUNK_BYTES):
        known.update(chunk)
        size += len(chunk)
    file.seek(0)
    return size, known.digest()
