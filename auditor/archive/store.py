"""Where an archive lies: a directory, or any file system that fsspec reaches, such as an object store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from auditor.archive.failure import ArchiveError

CHUNK_BYTES = 1 << 20
BUCKETS = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci"})
"""Protocols of fsspec under which folders need not be made; making one would make a bucket that doesn't exist."""


class Store(Protocol):
    """Named files below one place. Every call raises ArchiveError(archive_unavailable) when the place doesn't answer
    or refuses; names have forward slashes."""

    def put(self, name: str, content: BinaryIO) -> None:
        """Writes a file whole, from where `content` stands to its end, in the place of an older one. When it
        returns the bytes are durable; a process that dies before leaves the older file, or none."""

    def open(self, name: str) -> BinaryIO:
        """A file to read. Raises ArchiveError(archive_missing) if there is none."""

    def folders(self) -> list[str]:
        """Names of the folders at the top, in order; none if the place doesn't exist yet."""


class FsspecStore:
    """`url` as fsspec understands it: a path, `file://…`, `s3://bucket/folder`, `memory://…`.

    On a local disk a file is written beside its place, synced and moved there. Elsewhere it is one write of fsspec,
    which object stores carry out whole or not at all.
    """

    def __init__(self, url: str) -> None:
        import fsspec.core
        from fsspec.implementations.local import LocalFileSystem

        try:
            self._fs, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError, OSError) as error:
            raise ArchiveError("archive_unavailable", f"{url} can't be opened: {error}") from error
        self._root = str(root).rstrip("/")
        self._local = isinstance(self._fs, LocalFileSystem)
        protocol = self._fs.protocol
        self._buckets = not BUCKETS.isdisjoint((protocol,) if isinstance(protocol, str) else protocol)

    def put(self, name: str, content: BinaryIO) -> None:
        path = f"{self._root}/{name}"
        with reported(path):
            if self._local:
                _put_local(Path(path), content)
                return
            if not self._buckets:
                self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            with self._fs.open(path, "wb") as file:
                while chunk := content.read(CHUNK_BYTES):
                    file.write(chunk)

    def open(self, name: str) -> BinaryIO:
        path = f"{self._root}/{name}"
        with reported(path):
            try:
                return cast(BinaryIO, self._fs.open(path, "rb"))
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
                raise ArchiveError("archive_missing", f"there is no {path}") from error

    def folders(self) -> list[str]:
        with reported(self._root):
            if not self._fs.isdir(self._root):
                return []
            found: list[Any] = self._fs.ls(self._root, detail=True)
            return sorted(
                str(one["name"]).rstrip("/").rpartition("/")[2] for one in found if one["type"] == "directory"
            )


def _put_local(path: Path, content: BinaryIO) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("wb") as file:
            while chunk := content.read(CHUNK_BYTES):
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)  # a full disk isn't to be filled with what didn't fit
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def reported(path: str) -> Iterator[None]:
    """Turns whatever a file system raises into ArchiveError(archive_unavailable)."""
    try:
        yield
    except ArchiveError:
        raise
    except Exception as error:
        raise ArchiveError("archive_unavailable", f"{path}: {type(error).__name__}: {error}") from error
