"""Which holders a record says hold something: whose word that is, is not dead. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from auditor.record import StreamRecord
from events.model.part import (
    BlockStored,
    DomainEvent,
    SnapshotBegin,
    SnapshotPart,
    SnapshotRange,
    Statement,
    TierChanged,
    TransferCommitted,
    TransferStarted,
)


def told_of(record: StreamRecord) -> frozenset[str]:
    """Names of holders of which the record tells copies: stored, begun, landed, moved, listed, or counted in the pool.
    A commit, and a look into the pool, names none: it gives ""."""
    mark = next((event for event in record.stream_events if isinstance(event, SnapshotRange)), None)
    listed = "" if mark is None else mark.holder
    told = {
        holder for events in record.parts.values() for event in events for holder in _holders(event, listed)
    }
    if any(isinstance(event, SnapshotBegin) and event.source == "pool" for event in record.stream_events):
        told.add("")
    return frozenset(told)


def _holders(event: DomainEvent, listed: str) -> Iterator[str]:
    match event:
        case BlockStored() | TransferStarted() if event.ids:
            yield event.holder
        case TransferCommitted():
            yield ""
        case TierChanged() if event.ids:
            yield event.to_holder
        case SnapshotPart() if any(run.ids for run in event.runs):
            yield listed
        case Statement() if event.source == "pool" and event.count:
            yield event.holder
        case _:
            return
