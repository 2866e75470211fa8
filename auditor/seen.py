"""The header hashes of a stream's records: by them a record that comes again is told from another one in its place.

They grow with the log, by 32 bytes a record. So all but the newest may lie in a file; memory holds one entry for
each `CHUNK` of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from events.chain import sha256
from events.errors import KvledgerError

CHUNK = 256
_SEQ_BYTES, _HASH_BYTES = 8, 32
_ENTRY_BYTES = _SEQ_BYTES + _HASH_BYTES


class SpillError(KvledgerError):
    """What was put into the file of older hashes isn't what it gives back; the caller reads the log again from its
    start."""


class Spill(Protocol):
    """A file that only grows, shared by all streams of one evidence."""

    def append(self, chunk: bytes) -> int:
        """Where the chunk begins."""

    def read(self, at: int, size: int) -> bytes:
        """`size` bytes from there, fewer at the file's end."""


@dataclass(slots=True)
class SeenHashes:
    """Of one stream. Without a spill all of them stay in memory."""

    spill: Spill | None = None
    first: int | None = None
    _newest: bytearray = field(default_factory=bytearray)
    _chunks: list[tuple[int, int, int, bytes]] = field(default_factory=list)
    """(first number, offset, length, SHA-256)"""

    def add(self, seq: int, header_sha256: bytes) -> None:
        """Of a record whose number is above all that were added."""
        if self.first is None:
            self.first = seq
        self._newest += seq.to_bytes(_SEQ_BYTES, "big") + header_sha256
        if self.spill is not None and len(self._newest) >= CHUNK * _ENTRY_BYTES:
            chunk = bytes(self._newest)
            self._chunks.append((_seq(chunk, 0), self.spill.append(chunk), len(chunk), sha256(chunk)))
            self._newest.clear()

    def get(self, seq: int) -> bytes | None:
        """The hash of record `seq`, None if it never came. Raises SpillError."""
        found = _find(self._newest, seq)
        if found is not None or self.spill is None:
            return found
        index = bisect_right(self._chunks, seq, key=lambda chunk: chunk[0]) - 1
        if index < 0:
            return None
        _, at, size, digest = self._chunks[index]
        chunk = self.spill.read(at, size)
        if sha256(chunk) != digest:
            raise SpillError("the file of older header hashes was changed")
        return _find(chunk, seq)


NewSeen = Callable[[], SeenHashes]


def _seq(entries: bytes | bytearray, index: int) -> int:
    start = index * _ENTRY_BYTES
    return int.from_bytes(entries[start : start + _SEQ_BYTES], "big")


def _find(entries: bytes | bytearray, seq: int) -> bytes | None:
    low, high = 0, len(entries) // _ENTRY_BYTES
    while low < high:
        middle = (low + high) // 2
        here = _seq(entries, middle)
        if here == seq:
            start = middle * _ENTRY_BYTES
            return bytes(entries[start + _SEQ_BYTES : start + _ENTRY_BYTES])
        if here < seq:
            low = middle + 1
        else:
            high = middle
    return None
