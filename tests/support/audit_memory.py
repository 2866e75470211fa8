"""What an engine of a simulated fleet really holds, and how its hook tells of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from events.chain import MODULUS
from events.ids import CopyState, Tier
from events.model.part import CopyRun, DomainEvent, Statement

HOLDERS = (("gpu", Tier.GPU), ("cpu", Tier.CPU))


def older(left: int | None, right: int | None) -> int | None:
    """Of two admissions; None is unknown, which may be older than anything."""
    return None if left is None or right is None else min(left, right)


@dataclass
class Copies:
    """What a life really holds: admissions of the physical copies by (holder, block)."""

    table: dict[tuple[str, bytes], list[int]] = field(default_factory=dict)

    def old(self, request: int) -> bool:
        return any(after < request for copies in self.table.values() for after in copies)


def stated(copies: Copies, landing: Mapping[str, tuple[bytes, int]]) -> list[DomainEvent]:
    """Statements from the pool: what is really there, landing copies included."""
    found: list[DomainEvent] = []
    for holder, _ in HOLDERS:
        ids = {one for (name, one), there in copies.table.items() if name == holder and there}
        ids |= {one for one, _ in landing.values()} if holder == "gpu" else set()
        total = sum(int.from_bytes(one, "big") for one in ids) % MODULUS
        found.append(
            Statement(
                holder=holder, group=0, count=len(ids), checksum=total.to_bytes(16, "big"), source="pool"
            )
        )
    return found


def listed(
    holder: str, known: Mapping[tuple[str, bytes], int | None], landing: Mapping[str, tuple[bytes, int]]
) -> list[CopyRun]:
    """One holder's copies as a snapshot lists them; what is on its way comes to the GPU."""
    coming = {one for one, _ in landing.values()}
    runs = [
        CopyRun(profile=0, admitted_after=after, ids=(one,), parents=(bytes(16),))
        for (where, one), after in known.items()
        if where == holder and not (where == "gpu" and one in coming)
    ]
    if holder == "gpu":
        runs += [
            CopyRun(
                profile=0,
                state=CopyState.PENDING,
                admitted_after=after,
                transfer=transfer,
                ids=(one,),
                parents=(bytes(16),),
            )
            for transfer, (one, after) in landing.items()
        ]
    return runs
