"""Which of an engine's mutations each record of its streams was the first to tell."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Positions:
    """For one epoch: record numbers and when the first mutation in each of them was made."""

    seqs: list[int] = field(default_factory=list)
    made_ns: list[int] = field(default_factory=list)


class PositionBook:
    """Filled by whoever feeds a hook; in order within each epoch."""

    def __init__(self) -> None:
        self._of: dict[str, _Positions] = {}

    def note(self, epoch: str, seq: int, made_ns: int) -> None:
        """Record `seq` tells what was made from `made_ns` on."""
        known = self._of.setdefault(epoch, _Positions())
        known.seqs.append(seq)
        known.made_ns.append(made_ns)

    def first_missing_ns(self, epoch: str, next_seq: int) -> int | None:
        """When the first mutation was made that a reader at this position doesn't know; None: it knows all."""
        known = self._of.get(epoch)
        if known is None:
            return None
        at = bisect_left(known.seqs, next_seq)
        return known.made_ns[at] if at < len(known.seqs) else None
