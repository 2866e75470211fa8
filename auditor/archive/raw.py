"""A segment's records as bytes, exactly. Pure: files are given.

A raw file is a line of magic and then, for each record, a frame and its bytes:

    offset u64 | timestamp in ms i64 | key length i32, -1: no key | signature length u32 | value length u32
    key, signature, value

all numbers big endian. The root is over offset, value and signature (`auditor.segment`); timestamp and key are
Kafka's own and information only. No signature and an empty one are the same.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from auditor.archive.failure import ArchiveError
from auditor.segment import raw_leaf
from auditor.tree import Tree
from events.kafka.connection import RawRecord
from events.model.audit import Segment

MAGIC = b"kvledger raw segment v1\n"
MAX_FIELD_BYTES = 64 << 20
"""No key, signature or value is longer: brokers take 2 MB."""
CHUNK_BYTES = 1 << 18
"""Read at once: a file system behind fsspec makes every call dear."""
_FRAME = struct.Struct(">QqiII")


def write_record(file: BinaryIO, record: RawRecord) -> None:
    """Appends one record; the file begins with `MAGIC`."""
    key, signature = record.key or b"", record.signature or b""
    length = -1 if record.key is None else len(key)
    file.write(_FRAME.pack(record.offset, record.timestamp_ms, length, len(signature), len(record.value)))
    file.write(key + signature + record.value)


def read_records(file: BinaryIO, topic: str, partition: int) -> Iterator[RawRecord]:
    """Every record of a raw file in order. Raises ArchiveError(archive_garbled) where its form fails; whether the
    records are the sealed ones is `root_of`'s to say."""
    where = f"{topic}/{partition}"
    buffer, at = file.read(len(MAGIC)), len(MAGIC)
    if buffer != MAGIC:
        raise ArchiveError("archive_garbled", f"a raw file of {where} doesn't begin as one")
    while True:
        if len(buffer) - at < _FRAME.size:
            buffer, at = _filled(file, buffer[at:], _FRAME.size), 0
            if not buffer:
                return
        _must_hold(buffer, _FRAME.size, where)
        offset, timestamp_ms, key_bytes, signature_bytes, value_bytes = _FRAME.unpack_from(buffer, at)
        at += _FRAME.size
        if max(key_bytes, signature_bytes, value_bytes) > MAX_FIELD_BYTES or key_bytes < -1:
            raise ArchiveError("archive_garbled", f"a raw file of {where} holds an impossible length")
        signed = max(key_bytes, 0)
        valued = signed + signature_bytes
        size = valued + value_bytes
        if len(buffer) - at < size:
            buffer, at = _filled(file, buffer[at:], size), 0
            _must_hold(buffer, size, where)
        yield RawRecord(
            topic,
            partition,
            offset,
            None if key_bytes < 0 else buffer[at : at + signed],
            buffer[at + valued : at + size],
            buffer[at + signed : at + valued] or None,
            timestamp_ms,
        )
        at += size


def _filled(file: BinaryIO, rest: bytes, size: int) -> bytes:
    """The rest and what follows it: at least `size` bytes, fewer at the file's end."""
    parts, have = [rest], len(rest)
    while have < size:
        more = file.read(max(CHUNK_BYTES, size - have))
        if not more:
            break
        parts.append(more)
        have += len(more)
    return b"".join(parts)


def _must_hold(buffer: bytes, size: int, where: str) -> None:
    if len(buffer) < size:
        raise ArchiveError("archive_garbled", f"a raw file of {where} is cut")


def is_sealed(segment: Segment, records: Iterable[RawRecord]) -> bool:
    """Whether these records, all of them and in this order, are what the segment's root was taken over."""
    tree, last = Tree(), segment.first - 1
    for record in records:
        if not last < record.offset < segment.next:
            return False
        last = record.offset
        tree.append(raw_leaf(record.offset, record.value, record.signature))
    return (tree.size, tree.root()) == (segment.records, segment.root)
