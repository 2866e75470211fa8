"""How copies that a request covers came to their end, and what became of transfers on their way. Pure.

Only an ordered removal names its request. A clear, an engine's end and an eviction name no cause: what they
ended since the request was installed is counted here, and nothing says that the request was why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from auditor.finding import TransferFound, TransferState
from auditor.lineage import Covered
from auditor.record import StreamRecord
from auditor.registry import EpochRegistered
from auditor.residency import HeldCopy, Place
from events.ids import CopyState, StreamKey
from events.model.part import (
    BlockEvicted,
    Cleared,
    Closed,
    DomainEvent,
    TransferAborted,
    TransferCommitted,
    TransferRejected,
)

if TYPE_CHECKING:
    from auditor.case import Age, StreamCase
    from auditor.evidence import Evidence

SHOWN_TRANSFERS = 200


class TransferEnd(NamedTuple):
    transfer: str
    holder: str
    blocks: int
    state: TransferState
    seq: int


@dataclass(slots=True)
class Endings:
    """Of one stream, or what one record adds to it: copies in scope, not known to be younger than the request, by
    what ended them. `closed`: by a `closed` that ends the engine."""

    cleared: int = 0
    evicted: int = 0
    rejected: int = 0
    closed: int = 0
    transfers: list[TransferEnd] = field(default_factory=list)

    def add(self, more: Endings) -> None:
        self.cleared += more.cleared
        self.evicted += more.evicted
        self.rejected += more.rejected
        self.closed += more.closed
        self.transfers += more.transfers


def look(evidence: Evidence, case: StreamCase, record: StreamRecord) -> Endings:
    """What a record is about to end, seen against the fold before it. Count it only if the record counts. Of a
    copy that one record ends twice the first end counts."""
    found, gone = Endings(), set[tuple[Place, bytes]]()
    holders = case.fold.holders
    for event in record.stream_events:
        if isinstance(event, Cleared):
            found.cleared += _all_of(evidence, case, set(event.holders), gone)
        elif isinstance(event, Closed) and event.engine_ended:
            volatile = {name for name, holder in holders.items() if holder.durable_id is None}
            found.closed += _all_of(evidence, case, volatile, gone)
    for alias, events in record.parts.items():
        for told in events:
            if isinstance(told, BlockEvicted) and told.certain:
                place = Place(told.holder, told.group, alias)
                found.evicted += _these(evidence, case, place, told.ids, gone)
            elif isinstance(told, TransferCommitted | TransferAborted | TransferRejected):
                _end_transfer(evidence, case, alias, told, record.header.seq, gone, found)
    return found


def _end_transfer(
    evidence: Evidence,
    case: StreamCase,
    alias: bytes,
    told: DomainEvent,
    seq: int,
    gone: set[tuple[Place, bytes]],
    found: Endings,
) -> None:
    assert isinstance(told, TransferCommitted | TransferAborted | TransferRejected)
    state: TransferState = "committed"
    if isinstance(told, TransferAborted):
        state = "aborted"
    elif isinstance(told, TransferRejected):
        state = "rejected"
    for moving in case.fold.content.under(alias, told.transfer):
        if state == "rejected":
            pending = [
                block
                for block, copy in case.fold.tables.places.get(moving.place, {}).items()
                if copy.transfer == told.transfer and copy.state is CopyState.PENDING
            ]
            found.rejected += _these(evidence, case, moving.place, pending, gone)
        if _concerns(evidence, case, moving.place, moving.ids, evidence.claim_age(case, moving)):
            found.transfers.append(
                TransferEnd(told.transfer, moving.place.holder, len(moving.ids), state, seq)
            )


def _all_of(evidence: Evidence, case: StreamCase, holders: set[str], gone: set[tuple[Place, bytes]]) -> int:
    return sum(
        _these(evidence, case, place, list(table), gone)
        for place, table in case.fold.tables.places.items()
        if place.holder in holders
    )


def _these(
    evidence: Evidence,
    case: StreamCase,
    place: Place,
    blocks: Iterable[bytes],
    gone: set[tuple[Place, bytes]],
) -> int:
    table, count = case.fold.tables.places.get(place, {}), 0
    for block in blocks:
        copy = table.get(block)
        if copy is None or (place, block) in gone or not _counts(evidence, case, place, block, copy):
            continue
        gone.add((place, block))
        count += 1
    return count


def _counts(evidence: Evidence, case: StreamCase, place: Place, block: bytes, copy: HeldCopy) -> bool:
    """Whether a copy isn't known to be younger than the request, and in scope or not known to be out of it."""
    if evidence.age(case, place, copy).value == "fresh":
        return False
    return evidence.covers(_domain(case, place), block, copy.profile) is not Covered.NO


def _concerns(evidence: Evidence, case: StreamCase, place: Place, ids: Iterable[bytes], age: Age) -> bool:
    if age.value == "fresh":
        return False
    domain = _domain(case, place)
    return any(evidence.covers(domain, block, None) is not Covered.NO for block in ids)


def _domain(case: StreamCase, place: Place) -> str:
    return case.domains.get(place.alias, place.alias.hex())


def died(evidence: Evidence, gone: Mapping[StreamKey, str]) -> int:
    """Copies that volatile memory held as it ended, of engine lives that ended behind the request: what the newest
    epoch of each still listed."""
    total = 0
    for epochs in evidence.registry.lives().values():
        told = [epoch for epoch in epochs if epoch.stream in evidence.streams]
        if epochs[-1].stream not in gone or not told:
            continue
        case = evidence.streams[told[-1].stream]
        total += case.endings.closed
        if _attested_behind(evidence, told[-1]):
            volatile = {name for name, holder in case.fold.holders.items() if holder.durable_id is None}
            total += _all_of(evidence, case, volatile, set())
    return total


def _attested_behind(evidence: Evidence, epoch: EpochRegistered) -> bool:
    attested = evidence.registry.exits.get((epoch.body.worker, epoch.body.engine_life))
    return attested is not None and attested > evidence.request.number


def transfers(evidence: Evidence) -> list[TransferFound]:
    """Transfers that may have carried something in scope and old: ended since the request was installed, or open."""
    found: list[TransferFound] = []
    for case in sorted(evidence.streams.values(), key=lambda one: one.epoch.epoch_no):
        body = case.epoch.body
        found += [
            TransferFound(worker=body.worker, rank=body.rank, epoch=body.epoch, **one._asdict())
            for one in (*case.endings.transfers, *_open(evidence, case))
        ]
    return found


def _open(evidence: Evidence, case: StreamCase) -> Iterator[TransferEnd]:
    for (name, _), moving in case.fold.transfers.items():
        if _concerns(evidence, case, moving.place, moving.ids, evidence.claim_age(case, moving)):
            yield TransferEnd(name, moving.place.holder, len(moving.ids), "open", moving.seq)
