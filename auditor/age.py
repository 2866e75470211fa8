"""How old a copy is for a request: by the provenance that is told of it or, where nothing is, by the barrier that it
lies behind. Pure but for the barriers, which are kept with each stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from auditor.case import Age, StreamCase, Transfer
from auditor.content import OpenTransfer
from auditor.registry import EpochRegistered
from auditor.residency import HeldCopy, Place
from events.ids import Lineage


class Ages:
    """For the request of this `number`. What lies behind a barrier was computed after it."""

    def __init__(self, number: int) -> None:
        self._number = number

    def of_copy(self, case: StreamCase, place: Place, copy: HeldCopy) -> Age:
        """Of a held copy."""
        if copy.lineage is Lineage.PREFILL and copy.installed < self._number:
            return Age.OLD  # computed here, before the request could be installed
        return self.of_claim(case, place.holder, None if copy.doubted else copy.provenance, copy.seq)

    def of_transfer(self, case: StreamCase, moving: OpenTransfer) -> Age:
        """Of what a transfer carries, by what its start claims."""
        return self.of_claim(case, moving.place.holder, moving.provenance, moving.seq)

    def of_claim(self, case: StreamCase, holder: str, provenance: int | None, seq: int) -> Age:
        """Of what came into a holder with record `seq` under a claimed provenance."""
        if provenance is None:
            barrier = case.barriers.get(holder)
            return Age.FRESH if barrier is not None and seq > barrier else Age.UNKNOWN
        return Age.OLD if provenance < self._number else Age.FRESH

    def open_transfers(self, case: StreamCase, name: bytes) -> tuple[Transfer, ...]:
        """Transfers under one alias that haven't ended and may carry something old."""
        found: list[Transfer] = []
        for (transfer, _), open_ in case.fold.transfers.items():
            age = self.of_transfer(case, open_)
            if open_.place.alias == name and age is not Age.FRESH:
                found.append(Transfer(transfer, open_.ids, age))
        return tuple(found)

    def raise_barriers(
        self, case: StreamCase, life: Iterable[StreamCase], born: Callable[[EpochRegistered], bool]
    ) -> None:
        """The last clear before a discharging ack, or an empty birth, if the request was installed by then:
        whatever an engine without connector or second tier holds behind it was computed afterwards. `life` are all
        streams of its memory, `born` whether an epoch can tell of its engine's birth."""
        fold = case.fold
        if fold.opened is None or len(fold.holders) != 1:
            return
        if any(one.fold.brought or one.fold.holders.keys() - fold.holders.keys() for one in life):
            return
        for holder in fold.holders.values():
            if holder.durable_id is not None or holder.name in case.barriers:
                continue
            if holder.cleared_seq is not None and holder.cleared_installed >= self._number:
                case.barriers[holder.name] = holder.cleared_seq
            elif holder.from_opened and case.opened_under >= self._number and born(case.epoch):
                case.barriers[holder.name] = 0


def drop_barriers(life: Iterable[StreamCase]) -> None:
    """Something was brought into the engine life's memory: what lies behind a barrier may have come with it."""
    for case in life:
        case.barriers.clear()
