"""How copies that a request covers came to their end, and what became of transfers on their way. Pure.

Only an ordered removal names its request. A clear, an engine's end and an eviction name no cause: what they
ended since the request was installed is counted here, and nothing says that the request was why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from auditor.finding import TransferFound, TransferState
from auditor.lineage import Covered
from auditor.record import StreamRecord
from auditor.registry import EpochRegistered
from auditor.residency import Place
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
    from auditor.case import StreamCase
    from auditor.evidence import Evidence

SHOWN_TRANSFERS = 200


class TransferEnd(NamedTuple):
    transfer: str
    holder: str
    blocks: int
    state: TransferState
    seq: int


How = Literal["cleared", "evicted", "rejected", "closed"]


class Undecided(NamedTuple):
    """A copy that ended: whether it was in scope is asked once all streams are read, as its ancestors may be told of
    in any of them."""

    how: How
    domain: str
    block: bytes
    profile: str | None


@dataclass(slots=True)
class Endings:
    """Of one stream, or what one record adds to it: copies not known to be younger than the request, by what ended
    them. `counted` are in scope; `closed` is a `closed` that ends the engine; `transfers` go with their domain and
    blocks."""

    counted: dict[How, int] = field(default_factory=dict)
    undecided: list[Undecided] = field(default_factory=list)
    transfers: list[tuple[TransferEnd, str, tuple[bytes, ...]]] = field(default_factory=list)

    def add(self, more: Endings) -> None:
        for how, count in more.counted.items():
            self.counted[how] = self.counted.get(how, 0) + count
        self.undecided += more.undecided
        self.transfers += more.transfers

    def in_all(self, evidence: Evidence, how: How) -> int:
        """How many are in scope, or not known to be out of it, by all that was read."""
        return self.counted.get(how, 0) + sum(
            one.how == how and evidence.scope.covers(one.domain, one.block, one.profile) is not Covered.NO
            for one in self.undecided
        )


def look(evidence: Evidence, case: StreamCase, record: StreamRecord) -> Endings:
    """What a record is about to end, seen against the fold before it. Count it only if the record counts. Of a
    copy that one record ends twice the first end counts."""
    found, gone = Endings(), set[tuple[Place, bytes]]()
    holders = case.fold.holders
    for event in record.stream_events:
        if isinstance(event, Cleared):
            _all_of(evidence, case, set(event.holders), gone, "cleared", found)
        elif isinstance(event, Closed) and event.engine_ended:
            volatile = {name for name, holder in holders.items() if holder.durable_id is None}
            _all_of(evidence, case, volatile, gone, "closed", found)
    for alias, events in record.parts.items():
        for told in events:
            if isinstance(told, BlockEvicted) and told.certain:
                place = Place(told.holder, told.group, alias)
                _these(evidence, case, place, told.ids, gone, "evicted", found)
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
        if moving.begun > 1:
            continue
        if state == "rejected":
            pending = [
                block
                for block, copy in case.fold.tables.places.get(moving.place, {}).items()
                if copy.transfer == told.transfer and copy.state is CopyState.PENDING
            ]
            _these(evidence, case, moving.place, pending, gone, "rejected", found)
        if evidence.ages.of_transfer(case, moving).value != "fresh":
            end = TransferEnd(told.transfer, moving.place.holder, len(moving.ids), state, seq)
            domain = _domain(case, moving.place)
            ids = moving.ids[:1] if evidence.scope.reaches_all(domain) else moving.ids
            found.transfers.append((end, domain, ids))


def _all_of(
    evidence: Evidence,
    case: StreamCase,
    holders: set[str],
    gone: set[tuple[Place, bytes]],
    how: How,
    found: Endings,
) -> None:
    for place, table in case.fold.tables.places.items():
        if place.holder in holders:
            _these(evidence, case, place, list(table), gone, how, found)


def _these(
    evidence: Evidence,
    case: StreamCase,
    place: Place,
    blocks: Iterable[bytes],
    gone: set[tuple[Place, bytes]],
    how: How,
    found: Endings,
) -> None:
    table, domain = case.fold.tables.places.get(place, {}), _domain(case, place)
    decided, age = evidence.scope.reaches_all(domain), evidence.ages.of_copy
    for block in blocks:
        copy = table.get(block)
        if copy is None or (place, block) in gone or age(case, place, copy).value == "fresh":
            continue
        gone.add((place, block))
        if decided:
            found.counted[how] = found.counted.get(how, 0) + 1
        else:
            found.undecided.append(Undecided(how, domain, block, copy.profile))


def _concerns(evidence: Evidence, domain: str, ids: Iterable[bytes]) -> bool:
    return any(evidence.scope.covers(domain, block, None) is not Covered.NO for block in ids)


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
        total += case.endings.in_all(evidence, "closed")
        if _attested_behind(evidence, told[-1]):
            volatile = {name for name, holder in case.fold.holders.items() if holder.durable_id is None}
            held = Endings()
            _all_of(evidence, case, volatile, set(), "closed", held)
            total += held.in_all(evidence, "closed")
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
            for one in (*_over(evidence, case), *_open(evidence, case))
        ]
    return found


def _over(evidence: Evidence, case: StreamCase) -> Iterator[TransferEnd]:
    for end, domain, ids in case.endings.transfers:
        if _concerns(evidence, domain, ids):
            yield end


def _open(evidence: Evidence, case: StreamCase) -> Iterator[TransferEnd]:
    for (name, _), moving in case.fold.transfers.items():
        fresh = evidence.ages.of_transfer(case, moving).value == "fresh"
        if not fresh and _concerns(evidence, _domain(case, moving.place), moving.ids):
            yield TransferEnd(name, moving.place.holder, len(moving.ids), "open", moving.seq)
