"""What others than its owner have told of a durable store: P6. Pure.

A listing speaks of what lay there when it was made. What somebody else put there may have come later, and which of two
streams said something first only `kv.control` can tell: whoever has installed an order wrote behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from auditor.case import Age, StreamCase
from auditor.evidence import Evidence
from auditor.lineage import Covered
from auditor.owing import Owing, owed_domains
from auditor.registry import EpochRegistered
from auditor.residency import Place
from events.ids import StreamKey


@dataclass(frozen=True, slots=True)
class ToldThere:
    """A stream's last word is that copies not known to be younger, which may be in scope, lie in the store. All of that
    was written before the order `behind` was."""

    stream: StreamKey
    life: tuple[str, int, str]
    owes: bool
    domain: str
    behind: int

    def concerns(self, one: Owing) -> bool:
        """Whether this owner has to have listed the store since. Its own epochs are judged as one; its worker's other
        lives that owe by what they hold themselves."""
        same_worker = self.life[0] == one.epoch.body.worker
        return self.life != one.epoch.life and not (same_worker and self.owes)


def told_by_others(
    evidence: Evidence, owing: list[Owing], nonce: int | None, durable_id: str
) -> list[ToldThere]:
    """By stream and domain. What a life that owes has told was written before the closing nonce, what an ended one
    has, before its end was attested."""
    owes = {one.epoch.life: one for one in owing}
    found: list[ToldThere] = []
    for stream, case in evidence.streams.items():
        names = {name for name, holder in case.fold.holders.items() if holder.durable_id == durable_id}
        one = owes.get(case.epoch.life)
        behind = _ended(evidence, case.epoch) if one is None else nonce
        behind = nonce if behind is None else behind
        if not names or behind is None:
            continue  # without a closing nonce nothing is proven anyway
        found += [
            ToldThere(stream, case.epoch.life, one is not None, domain, behind)
            for domain in owed_domains(evidence)
            if _unnamed(case, one, domain, names)
            or any(
                evidence.scope.covers(domain, block, profile) is not Covered.NO
                for block, profile in _there(evidence, case, one, domain, names)
            )
        ]
    return found


def _ended(evidence: Evidence, epoch: EpochRegistered) -> int | None:
    return evidence.registry.exits.get((epoch.body.worker, epoch.body.engine_life))


def _there(
    evidence: Evidence, case: StreamCase, one: Owing | None, domain: str, names: set[str]
) -> Iterator[tuple[bytes, str | None]]:
    """(block, profile) of what isn't known to be younger, by the last ack where there is one that stands."""
    ack = case.acks.get(domain) if one is not None and one.case is case else None
    if ack is not None and ack.discharging:
        yield from ((told.block, told.profile) for told in ack.residents if told.place.holder in names)
        return
    for place in case.fold.tables.places:
        if place.holder in names and case.domains.get(place.alias) == domain:
            yield from _not_fresh(evidence, case, place)


def _unnamed(case: StreamCase, one: Owing | None, domain: str, names: set[str]) -> bool:
    """Whether it counts something there that nobody could name, and that may be in scope. What a life that owes counts
    at its ack is judged there."""
    ack = case.acks.get(domain) if one is not None and one.case is case else None
    if ack is not None and ack.discharging:
        return False
    return any(case.fold.holders[name].orphans or case.fold.holders[name].unassigned for name in names)


def _not_fresh(evidence: Evidence, case: StreamCase, place: Place) -> Iterator[tuple[bytes, str | None]]:
    for block, copy in case.fold.tables.places[place].items():
        if evidence.ages.of_copy(case, place, copy) is not Age.FRESH:
            yield block, copy.profile
