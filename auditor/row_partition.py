"""One partition of `kv.events` as the index has to hold it, up to an offset that only moves on."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field

from auditor.record import StreamRecord, read_record
from auditor.row_stream import RowStream
from events.chain import sha256
from events.ids import StreamKey
from events.kafka.connection import RawRecord

REMEMBERED_STRANGERS = 65_536


@dataclass(slots=True)
class PartitionRows:
    """`streams` are those registered in this partition whose record 0 is in the log. `strangers` were met before
    control registered them, or never; `headless` began before the log does: neither can be compared. What is
    remembered of them is bounded: an invented stream costs its name.

    Memory is that of the copies held and not of the log.
    """

    partition: int
    start: int
    next_offset: int = 0
    last_sha256: bytes = b""
    records: int = 0
    streams: dict[StreamKey, RowStream] = field(default_factory=dict)
    strangers: dict[StreamKey, None] = field(default_factory=dict)
    headless: dict[StreamKey, None] = field(default_factory=dict)

    def feed(
        self, record: RawRecord, belongs: Callable[[StreamKey], bool], unstorable: Container[int]
    ) -> None:
        """Folds the next record. `belongs`: whether control registers the stream here, read further than the
        record. `unstorable`: offsets that the index passed because PostgreSQL can't hold what they say."""
        if record.offset < self.next_offset:
            return
        self.next_offset, self.last_sha256 = record.offset + 1, sha256(record.value)
        self.records += 1
        told = read_record(record.partition, record.offset, record.value, record.signature, _every_part)
        if not isinstance(told, StreamRecord):
            known = self.streams.get(told.stream) if told.stream is not None else None
            if known is not None and told.seq is not None:
                known.offset = record.offset
                known.apply_unreadable(told.seq, told.reason)
            return
        stream = self.streams.get(told.stream)
        if record.offset in unstorable:
            if stream is not None:
                stream.offset = record.offset
                stream.apply_unreadable(told.header.seq, "unstorable")
            return
        if stream is None:
            if told.stream in self.strangers or not belongs(told.stream):
                _remember(self.strangers, told.stream)
                return
            if told.stream in self.headless or (self.start > 0 and told.header.seq > 0):
                _remember(self.headless, told.stream)
                return
            stream = self.streams[told.stream] = RowStream(told.stream, told.header.epoch_no)
        stream.apply(told)

    def let_go(self, superseded: Callable[[StreamKey], bool]) -> None:
        """Frees the volatile copies of superseded streams: the index ends them when it comes to it, so they
        can't be compared. Streams that have nothing durable either go whole."""
        for stream in [stream for stream in self.streams if superseded(stream)]:
            rows = self.streams[stream]
            for name, view in rows.holders.items():
                if view.durable_id is None:
                    rows.rows.free(name)
            if all(view.durable_id is None for view in rows.holders.values()):
                del self.streams[stream]


def _remember(names: dict[StreamKey, None], stream: StreamKey) -> None:
    names.pop(stream, None)
    names[stream] = None
    if len(names) > REMEMBERED_STRANGERS:
        del names[next(iter(names))]


def _every_part(_: object) -> None:
    return None
