"""Whose word a record's events are: what counts under a signature only, which holders it says hold something, so that
they aren't dead, and what else is learnt of it for its stream and the scope."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from auditor.case import StreamCase
from auditor.content import Landing
from auditor.known_scope import KnownScope
from auditor.lineage import links
from auditor.record import StreamRecord
from auditor.residency import Place
from events.model.part import (
    Ack,
    BlockEvicted,
    BlockInvalidated,
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
    if record.kinds.isdisjoint(WORDS):
        return record
    return replace(
        record,
        stream_events=tuple(event for event in record.stream_events if type(event) not in WORDS),
        parts={
            alias: tuple(event for event in events if type(event) not in WORDS)
            for alias, events in record.parts.items()
        },
    )


def learn(
    scope: KnownScope,
    case: StreamCase,
    record: StreamRecord,
    landed: list[Landing],
    *,
    signed: bool,
    earlier: Sequence[StreamCase],
) -> None:
    """Takes in what a record tells besides the copies themselves, which have `landed`. Which block is whose child is
    learnt once a record is `signed`, as its signature speaks for those before it; of transfers that `earlier` epochs of
    the engine life have under way, which ones the stream tells of."""
    arrived = [one.place.holder for one in landed if one.event == "transfer_committed"]
    for holder in (*_told_of(record), *arrived):
        # It tells of copies in the holder, so that its memory was there when the record was written.
        case.told_seq = record.header.seq
        case.told_under[holder] = case.reached
    for name, events in record.parts.items():
        domain = case.domain_of(name)
        keep = not scope.everywhere and not scope.reaches_all(domain)
        for event in events:
            if type(event) is BlockStored or type(event) is TransferStarted:
                case.appeared[Place(event.holder, event.group, name)] = record.header.seq
            elif type(event) is BlockInvalidated and event.request == scope.request.number:
                case.removed += len(event.ids)
            if keep:
                known = scope.lineage(domain).parents
                new = ((domain, *link) for link in links(event) if known.get(link[0]) != link[1])
                case.unvouched.update(dict.fromkeys(new))
            if earlier:
                names = (one for one in _transfers_named(event) if _under_way(earlier, domain, one))
                case.moves.update((domain, one) for one in names)
    if signed:
        for domain, block, parent in case.unvouched:
            scope.learn(domain, block, parent)
        case.unvouched.clear()


def _under_way(earlier: Sequence[StreamCase], domain: str, transfer: str) -> bool:
    return any(
        name == transfer and one.domains.get(place.alias) == domain
        for one in earlier
        for name, place in one.fold.transfers
    )


def _transfers_named(event: DomainEvent) -> Iterator[str]:
    """Names of transfers of which the event says how they stand."""
    match event:
        case TransferStarted() | TransferCommitted() | TransferAborted() | TransferRejected():
            yield event.transfer
        case SnapshotPart():
            yield from (run.transfer for run in event.runs if run.transfer is not None)
        case _:
            return


def _told_of(record: StreamRecord) -> set[str]:
    """Names of holders of which the record tells copies: stored, begun, landed, moved, listed, or counted in the pool.
    A commit, a look into the pool, an ack that leaves some and a refusal because they are in use name none: they
    give ""."""
    listed, told = "", set[str]()
    for event in record.stream_events:
        if isinstance(event, SnapshotRange) and not listed:
            listed = event.holder
        elif isinstance(event, SnapshotBegin) and event.source == "pool":
            told.add("")
    for events in record.parts.values():
        for said in events:
            holder = _holder(said, listed)
            if holder is not None:
                told.add(holder)
    return told


def _holder(event: DomainEvent, listed: str) -> str | None:
    match event:
        case BlockStored() | TransferStarted():
            return event.holder if event.ids else None
        case BlockEvicted():  # by far the most of the rest
            return None
        case TransferCommitted():
            return ""
        case Ack():
            return "" if any(one.old_left for one in event.requests) else None
        case Refused():
            return "" if event.reason == "blocks_in_use" else None
        case TierChanged():
            return event.to_holder if event.ids else None
        case SnapshotPart():
            return listed if any(run.ids for run in event.runs) else None
        case Statement():
            return event.holder if event.source == "pool" and event.count else None
        case _:
            return None
