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
    if file.read(len(MAGIC)) != MAGIC:
        raise ArchiveError("archive_garbled", f"a raw file of {where} doesn't begin as one")
    while frame := _exactly(file, _FRAME.size, where):
        offset, timestamp_ms, key_bytes, signature_bytes, value_bytes = _FRAME.unpack(frame)
        if max(key_bytes, signature_bytes, value_bytes) > MAX_FIELD_BYTES or key_bytes < -1:
            raise ArchiveError("archive_garbled", f"a raw file of {where} holds an impossible length")
        size = max(key_bytes, 0) + signature_bytes + value_bytes
        body = _exactly(file, size, where)
        if len(body) != size:
            raise ArchiveError("archive_garbled", f"a raw file of {where} is cut")
        at = max(key_bytes, 0)
        yield RawRecord(
            topic,
            partition,
            offset,
            None if key_bytes < 0 else body[:at],
            body[at + signature_bytes :],
            body[at : at + signature_bytes] or None,
            timestamp_ms,
        )


def _exactly(file: BinaryIO, size: int, where: str) -> bytes:
    """`size` bytes, or none at the file's end."""
    found = file.read(size)
    while found and len(found) < size:
        more = file.read(size - len(found))
        if not more:
            raise ArchiveError("archive_garbled", f"a raw file of {where} is cut")
        found += more
    return found


def is_sealed(segment: Segment, records: Iterable[RawRecord]) -> bool:
    """Whether these records, all of them and in this order, are what the segment's root was taken over."""
    tree, last = Tree(), segment.first - 1
    for record in records:
        if not last < record.offset < segment.next:
            return False
        last = record.offset
        tree.append(raw_leaf(record.offset, record.value, record.signature))
    return (tree.size, tree.root()) == (segment.records, segment.root)
