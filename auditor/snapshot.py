"""What a snapshot under way has said so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from auditor.residency import HolderView
from events.chain import MODULUS
from events.model.part import SnapshotRange


@dataclass(slots=True)
class SnapshotWork:
    """Of one name, begun in record `begin_seq`, under the order `begin_installed`. `inspected`: from the pool itself;
    `broken`: something was lost or came meanwhile that nobody can name; `pending`: transfers that it lists as under
    way."""

    name: str
    begin_seq: int
    begin_installed: int
    ranges: dict[tuple[str, int], list[tuple[int, int]]] = field(default_factory=dict)
    broken: bool = False
    inspected: bool = False
    pending: set[str] = field(default_factory=set)

    def note(self, mark: SnapshotRange) -> None:
        """Takes in that a range was listed."""
        bounds = (int.from_bytes(mark.low, "big"), int.from_bytes(mark.high, "big"))
        self.ranges.setdefault((mark.holder, mark.group), []).append(bounds)

    def covers(self, holders: Mapping[str, HolderView]) -> bool:
        """Whether the ranges leave no id of any of the holders and their groups out."""
        for name, holder in holders.items():
            for group in holder.groups:
                reached = 0
                for low, high in sorted(self.ranges.get((name, group), [])):
                    if low > reached:
                        return False
                    reached = max(reached, high + 1)
                if reached < MODULUS:
                    return False
        return True
