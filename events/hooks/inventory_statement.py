"""An inventory in counts and checksums, as pulses and statements carry it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from events.chain import MODULUS
from events.hooks.inventory import Table
from events.model.part import Statement
from events.model.signal import PulseChecksum


def pulse_checksums(tables: Iterable[Table]) -> tuple[PulseChecksum, ...]:
    """Inventory of each table over all domains."""
    sums: list[PulseChecksum] = []
    for table in tables:
        tallies = table.by_domain.values()
        total = sum(tally.total for tally in tallies) % MODULUS
        sums.append(
            PulseChecksum(
                holder=table.holder.name,
                group=table.index,
                count=sum(tally.count for tally in tallies),
                checksum=total.to_bytes(16, "big"),
            )
        )
    return tuple(sums)


def statements(tables: Iterable[Table]) -> dict[str, list[Statement]]:
    """Inventory of each table by domain; one that has become empty is stated once more, then left out."""
    stated: dict[str, list[Statement]] = {}
    for table in tables:
        for domain, tally in list(table.by_domain.items()):
            if not tally.count:
                del table.by_domain[domain]
            stated.setdefault(domain, []).append(
                Statement(
                    holder=table.holder.name,
                    group=table.index,
                    count=tally.count,
                    checksum=tally.checksum,
                    source="derived",
                )
            )
    return stated
