"""A segment's records and events as Parquet, to be asked with SQL. Derived from the raw file; no verdict reads it.

`docs/archive.md` describes the columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from auditor.archive.failure import ArchiveError
from auditor.segment import raw_leaf
from events.codec import decode_batch, decode_control, decode_subject
from events.errors import DecodeError
from events.kafka.connection import RawRecord
from events.model.batch import EventBatch
from events.model.part import DomainEvent, SnapshotPart, StreamEvent
from events.topic import SUBJECTS

ROWS_AT_ONCE = 4_096
BLOCKS_AT_ONCE = 262_144
"""Rows, and ids within them, that are held before they are written."""

_ID = pa.binary(16)
_WHERE = [
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("time", pa.timestamp("ms", tz="UTC")),
]
_STREAM = [
    ("worker", pa.string()),
    ("rank", pa.int32()),
    ("epoch", pa.string()),
    ("epoch_no", pa.int64()),
    ("seq", pa.int64()),
]
RECORDS = pa.schema(
    [
        *_WHERE,
        ("bytes", pa.int64()),
        ("leaf", pa.binary(32)),
        ("signed", pa.bool_()),
        ("kind", pa.string()),
        ("unreadable", pa.string()),
        *_STREAM,
        ("installed", pa.int64()),
        ("signer", pa.string()),
        ("role", pa.string()),
        ("body", pa.string()),
    ]
)
EVENTS = pa.schema(
    [
        *_WHERE,
        *_STREAM,
        ("part", pa.int32()),
        ("alias", _ID),
        ("number", pa.int32()),
        ("type", pa.string()),
        ("holder", pa.string()),
        ("group", pa.int32()),
        ("profile", pa.int64()),
        ("blocks", pa.int64()),
        ("ids", pa.list_(_ID)),
        ("admitted_after", pa.int64()),
        ("request", pa.int64()),
        ("transfer", pa.string()),
        ("reason", pa.string()),
        ("detail", pa.string()),
    ]
)
_SHOWN = frozenset(
    {"type", "holder", "group", "profile", "ids", "admitted_after", "request", "transfer", "reason"}
)
Row = dict[str, Any]


def write_tables(
    records: Iterable[RawRecord], records_file: BinaryIO, events_file: BinaryIO
) -> tuple[int, int]:
    """Writes both tables in one pass; (rows of records, rows of events)."""
    with (
        pq.ParquetWriter(records_file, RECORDS, compression="zstd") as one,
        pq.ParquetWriter(events_file, EVENTS, compression="zstd") as other,
    ):
        told = _Told(one), _Told(other)
        for record in records:
            row, batch = record_row(record)
            told[0].add(row, 0)
            for event in event_rows(row, batch) if batch is not None else ():
                told[1].add(event, event["blocks"] or 0)
        return told[0].finish(), told[1].finish()


class _Told:
    """Rows on their way into one table."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._rows: list[Row] = []
        self._blocks = 0
        self._written = 0

    def add(self, row: Row, blocks: int) -> None:
        self._rows.append(row)
        self._blocks += blocks
        if len(self._rows) >= ROWS_AT_ONCE or self._blocks >= BLOCKS_AT_ONCE:
            self.finish()

    def finish(self) -> int:
        if self._rows:
            self._writer.write_table(pa.Table.from_pylist(self._rows, schema=self._writer.schema))
        self._written += len(self._rows)
        self._rows, self._blocks = [], 0
        return self._written


def record_row(record: RawRecord) -> tuple[Row, EventBatch | None]:
    """The row of one record; its events too if it is a readable record of a stream."""
    row: Row = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "time": record.timestamp_ms if record.timestamp_ms >= 0 else None,
        "bytes": len(record.value),
        "leaf": raw_leaf(record.offset, record.value, record.signature),
        "signed": record.signature is not None,
    }
    try:
        if record.topic == SUBJECTS.name:
            bound = decode_subject(record.value)
            return row | {"kind": "subject_bound", "body": bound.model_dump_json()}, None
        if record.topic.endswith("control"):
            said = decode_control(record.value)
            row |= {"kind": said.header.kind, "signer": said.header.signer, "role": said.header.role.value}
            return row | {"body": said.body.model_dump_json(exclude_none=True)}, None
        batch = decode_batch(record.value)
    except DecodeError as error:
        return row | {"unreadable": error.reason}, None
    header = batch.header
    stream = {name: getattr(header, name) for name in ("worker", "rank", "epoch", "epoch_no", "seq")}
    return row | {"kind": "event_batch", "installed": header.control.offset, **stream}, batch


def event_rows(row: Row, batch: EventBatch) -> Iterator[Row]:
    """A row for each event of a record, in the order of its parts."""
    shared = {name: row[name] for name in EVENTS.names if name in row}
    for number, event in enumerate(batch.stream_events):
        yield {**shared, "part": 0, "number": number, **_event(event)}
    for index, part in enumerate(batch.parts, start=1):
        for number, told in enumerate(part.events):
            yield {**shared, "part": index, "alias": part.alias, "number": number, **_event(told)}


def _event(event: StreamEvent | DomainEvent) -> Row:
    row: Row = {name: getattr(event, name, None) for name in _SHOWN}
    row["reason"] = None if row["reason"] is None else str(row["reason"])
    ids = row["ids"]
    if isinstance(event, SnapshotPart):
        ids = [block for run in event.runs for block in run.ids]
    row["ids"], row["blocks"] = ids, None if ids is None else len(ids)
    row["detail"] = event.model_dump_json(exclude=set(_SHOWN), exclude_none=True)
    return row


def rows_in(file: BinaryIO) -> int:
    """How many rows a table has. Raises ArchiveError(archive_garbled) if it is none."""
    try:
        return int(pq.ParquetFile(file).metadata.num_rows)
    except (pa.ArrowException, OSError) as error:
        raise ArchiveError("archive_garbled", "a Parquet file can't be read") from error


def same_tables(left: BinaryIO, right: BinaryIO) -> bool:
    """Whether two tables hold the same rows, in batches. Raises ArchiveError(archive_garbled)."""
    try:
        one, other = pq.ParquetFile(left), pq.ParquetFile(right)
        if one.schema_arrow != other.schema_arrow or one.num_row_groups != other.num_row_groups:
            return False
        return all(one.read_row_group(n).equals(other.read_row_group(n)) for n in range(one.num_row_groups))
    except (pa.ArrowException, OSError) as error:
        raise ArchiveError("archive_garbled", "a Parquet file can't be read") from error
