"""`EventBatch`: one Kafka record of `kv.events`; lines of JSON, a header and then one part per domain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from events.ids import StreamKey
from events.model.field import Count, Hex16, Hex32, Name, Offset, Rank, Record
from events.model.part import DomainEvent, StreamEvent


class ControlPosition(Record):
    """Newest control offset installed, and the running hash of all control records up to it."""

    offset: Offset
    hash: Hex32


class PartRef(Record):
    """What the header says of a part; `alias` is None for part 0 and for nothing else."""

    alias: Hex16 | None = None
    sha256: Hex32
    events: Count


class Header(Record):
    """Hashes of headers chain a stream; hashes of parts hang from the header.

    `prev` = SHA-256 of the header line of the last record sent in this stream, at seq 0 of the
    registration record's value. A jump in `seq` says that the hook dropped batches.
    """

    v: Literal[1] = 1
    worker: Name
    rank: Rank
    epoch: Name
    epoch_no: Offset
    seq: Count
    prev: Hex32
    control: ControlPosition
    parts: Annotated[tuple[PartRef, ...], Field(min_length=1, max_length=4_096)]

    @property
    def stream(self) -> StreamKey:
        return StreamKey(self.worker, self.rank, self.epoch)


@dataclass(frozen=True, slots=True)
class DecodedPart:
    """One domain's events, under the alias that only its keys explain."""

    alias: bytes
    events: tuple[DomainEvent, ...]


@dataclass(frozen=True, slots=True)
class EventBatch:
    """A decoded record. `header_sha256` is what the next record's `prev` must be."""

    header: Header
    header_sha256: bytes
    stream_events: tuple[StreamEvent, ...]
    parts: tuple[DecodedPart, ...]
