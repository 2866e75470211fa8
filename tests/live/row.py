"""A row of the table: what was done, how much was compared, and what differed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

WIDTHS = (13, 50, 6, 11, 17)
HEAD = ("ENGINE", "SCENARIO", "BLOCKS", "DIFFERENCES", "BASIS", "NOTE")


@dataclass
class Row:
    """`compared` blocks, of which `differences` were otherwise than the engine's own word. `basis`: the words that
    the answers rest on, or why there was none."""

    engine: str
    scenario: str
    compared: int = 0
    differences: int = 0
    basis: set[str] = field(default_factory=set)
    note: str = ""

    def expect(self, seen: int, right: int, blocks: int | None = None) -> None:
        """So many blocks were seen where it should be `right`; `blocks` were compared, default `right`."""
        self.compared += right if blocks is None else blocks
        self.differences += abs(seen - right)

    def demand(self, holds: bool, failing: str) -> None:
        """Something that isn't counted in blocks: one difference, told in the note, if it doesn't hold."""
        if not holds:
            self.differences += 1
            self.note = f"{self.note}; {failing}" if self.note else failing

    def text(self) -> str:
        basis = ", ".join(sorted(self.basis))
        return line((self.engine, self.scenario, self.compared, self.differences, basis, self.note))

    def document(self) -> dict[str, Any]:
        return asdict(self) | {"basis": sorted(self.basis)}


def line(cells: Sequence[object]) -> str:
    *firsts, last = cells
    return "  ".join(f"{cell!s:<{width}}" for cell, width in zip(firsts, WIDTHS, strict=True)) + f"  {last}"


def totals(rows: Sequence[Row]) -> dict[str, dict[str, int]]:
    """Scenarios, blocks and differences of each engine, in the order in which they ran."""
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        one = found.setdefault(row.engine, {"scenarios": 0, "compared": 0, "differences": 0})
        one["scenarios"] += 1
        one["compared"] += row.compared
        one["differences"] += row.differences
    return found
