"""Seals events into the records of one stream: seq, prev, control position, signature, size. Pure.

A record that its carrier refuses burns its number: the next one takes the number after it and still names
the last record that was *sent*, so that every reader sees the hole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from events.codec import encode_batch
from events.errors import KvledgerError
from events.hooks.draft import Draft
from events.ids import StreamKey
from events.model.batch import ControlPosition
from events.model.part import Ack, Closed, DomainEvent, Opened, Refused, SnapshotEnd, Statement, StreamEvent
from events.signing import Signer
from events.topic import MAX_RECORD_BYTES, stream_record_key

RECORD_BYTES = 192 * 1024
"""What a record is cut down to, well below what a reader takes: readers apply a record in one piece, and 9,000
blocks at once keep lookups waiting long enough. A record of a snapshot just fits."""
_ID_BYTES = 21
"""An id's least share of a record."""
_SIGNED = (Opened, SnapshotEnd, Ack, Refused, Statement, Closed)


class OversizeEventError(KvledgerError):
    """One event can't be cut small enough for a record; the caller treats it as a lost batch."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"one {kind} is larger than a record may be")
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Epoch:
    """One registered life of the reporting. `first_prev` is the SHA-256 of the registration's raw value."""

    stream: StreamKey
    epoch_no: int
    first_prev: bytes
    partition: int
    engine_life: str
    signer: Signer


@dataclass(frozen=True, slots=True, repr=False)
class SealedRecord:
    """One record of `kv.events`, ready to be sent as it is; `signature` None where the chain suffices."""

    stream: StreamKey
    seq: int
    partition: int
    key: bytes
    value: bytes
    signature: bytes | None
    header_sha256: bytes

    def __repr__(self) -> str:
        return f"SealedRecord({self.stream} seq={self.seq} bytes={len(self.value)})"


Offer = Callable[[SealedRecord], bool]
"""Takes a record to be sent in order, or returns False at once: then it is not sent, ever."""


class StreamWriter:
    """The one writer of an epoch's stream. `alias_of` names a domain within this epoch. Records are cut at
    `RECORD_BYTES`; an event that can't be cut may be as large as `limit_bytes`, or else the log, allows."""

    __slots__ = ("_alias_of", "_key", "_limit_bytes", "burnt", "epoch", "next_seq", "prev")

    def __init__(
        self, epoch: Epoch, alias_of: Callable[[str], bytes], *, limit_bytes: int | None = None
    ) -> None:
        self.epoch = epoch
        self.next_seq = 0
        self.prev = epoch.first_prev
        self.burnt = 0
        self._alias_of = alias_of
        self._limit_bytes = MAX_RECORD_BYTES if limit_bytes is None else limit_bytes
        self._key = stream_record_key(epoch.stream.worker, epoch.stream.rank)

    def write(
        self,
        stream_events: Sequence[StreamEvent],
        parts: Mapping[str, Sequence[DomainEvent]],
        control: ControlPosition,
        offer: Offer,
    ) -> bool:
        """Seals and offers what is given, in as many records as its size needs; False if any was refused.

        Record 0 is never burnt: if it is refused nothing has happened, offer it again. Raises
        OversizeEventError for an event that no cut makes small enough.
        """
        waiting = [Draft.of(stream_events, parts)]
        whole = True
        while waiting:
            draft = waiting.pop()
            record = self._seal(draft, control, RECORD_BYTES)
            if record is None:
                halves = draft.halves()
                if halves is not None:
                    waiting.extend(reversed(halves))
                    continue
                record = self._seal(draft, control, MAX_RECORD_BYTES)
            if record is None:
                raise OversizeEventError(draft.kind)
            if offer(record):
                self.next_seq, self.prev = record.seq + 1, record.header_sha256
            else:
                whole = False
                if record.seq == 0:
                    return False
                self.next_seq, self.burnt = record.seq + 1, self.burnt + 1
        return whole

    def _seal(self, draft: Draft, control: ControlPosition, limit_bytes: int) -> SealedRecord | None:
        """None: too large."""
        limit_bytes = min(limit_bytes, self._limit_bytes)
        if draft.ids * _ID_BYTES > limit_bytes:
            return None
        stream = self.epoch.stream
        try:
            encoded = encode_batch(
                worker=stream.worker,
                rank=stream.rank,
                epoch=stream.epoch,
                epoch_no=self.epoch.epoch_no,
                seq=self.next_seq,
                prev=self.prev,
                control=control,
                stream_events=draft.stream_events,
                parts=[(self._alias_of(domain), events) for domain, events in draft.parts],
            )
        except ValueError:
            # Too many bytes, or more parts than a header may hold.
            return None
        if len(encoded.value) > limit_bytes:
            return None
        signed = encoded.seq == 0 or _asks_signature(draft.events())
        return SealedRecord(
            stream,
            encoded.seq,
            self.epoch.partition,
            self._key,
            encoded.value,
            self.epoch.signer.sign(encoded.header_line) if signed else None,
            encoded.header_sha256,
        )


def _asks_signature(events: Iterable[StreamEvent | DomainEvent]) -> bool:
    return any(isinstance(event, _SIGNED) for event in events)
