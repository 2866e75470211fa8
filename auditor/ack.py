"""An ack of a request, with what the fold held when it was written. Pure."""

from __future__ import annotations

from auditor.age import Ages
from auditor.case import AckRead, Age, Base, Resident, StreamCase
from auditor.record import StreamRecord
from auditor.residency import Tables
from events.chain import MODULUS
from events.model.part import Ack, RequestStanding


def read_ack(
    ages: Ages, case: StreamCase, record: StreamRecord, name: bytes, event: Ack, standing: RequestStanding
) -> AckRead:
    """`standing` is how the request stands by this ack, `name` the alias of the domain that it is of."""
    return AckRead(
        record.header.seq,
        record.offset,
        record.header.control.offset,
        standing,
        event.nonce,
        _residents(ages, case, name),
        {
            holder.name: Base(
                holder.base_seq,
                holder.from_opened,
                holder.inventory,
                holder.durable_id,
                holder.orphans,
                holder.unassigned,
                holder.base_installed,
                holder.groups,
            )
            for holder in case.fold.holders.values()
        },
        ages.open_transfers(case, name),
        _held(case.fold.tables, name),
    )


def _residents(ages: Ages, case: StreamCase, name: bytes) -> tuple[Resident, ...]:
    """Copies that aren't known to be younger than the request."""
    residents: list[Resident] = []
    for place, table in case.fold.tables.places.items():
        if place.alias == name:
            # Few objects stand for many copies, see HeldCopy: each is judged once, and told apart by identity.
            kinds = {id(copy): copy for copy in table.values()}
            found = {one: ages.of_copy(case, place, copy) for one, copy in kinds.items()}
            if any(age is not Age.FRESH for age in found.values()):
                residents += [
                    Resident(place, block, copy.profile, found[id(copy)])
                    for block, copy in table.items()
                    if found[id(copy)] is not Age.FRESH
                ]
    return tuple(residents)


def _held(tables: Tables, name: bytes) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for place in tables.places:
        if place.alias == name:
            count, total = tables.inventory(place)
            before = found.get(place.holder, (0, 0))
            ids = (before[1] + int.from_bytes(total, "big")) % MODULUS
            found[place.holder] = before[0] + count, ids
    return found
