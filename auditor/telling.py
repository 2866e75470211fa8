"""Whose word a record's events are: what counts under a signature only, and which holders it says hold something, so
that they aren't dead. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from auditor.record import StreamRecord
from events.model.part import (
    Ack,
    BlockStored,
    Closed,
    DomainEvent,
    Refused,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotPart,
    SnapshotRange,
    Statement,
    TierChanged,
    TransferAborted,
    TransferCommitted,
    TransferRejected,
    TransferStarted,
)

WORDS: frozenset[type] = frozenset({Closed, SnapshotEnd, Statement, Ack, Refused})
"""What a hook says under its epoch's signature only."""


def without_words(record: StreamRecord) -> StreamRecord:
    """What an unsigned record still tells: the same record if nothing in it needs a signature. Whatever else it says
    is taken, as the next signed record vouches for it by the chain."""
    if not any(type(event) in WORDS for events in record.all_events() for event in events):
        return record
    return record._replace(
        stream_events=tuple(event for event in record.stream_events if type(event) not in WORDS),
        parts={
            alias: tuple(event for event in events if type(event) not in WORDS)
            for alias, events in record.parts.items()
        },
    )


def transfers_named(event: DomainEvent) -> Iterator[str]:
    """Names of transfers of which the event says how they stand."""
    match event:
        case TransferStarted() | TransferCommitted() | TransferAborted() | TransferRejected():
            yield event.transfer
        case SnapshotPart():
            yield from (run.transfer for run in event.runs if run.transfer is not None)
        case _:
            return


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
