"""What hooks vouched for: each pulse's instant, and up to when it confirmed all that its engine had done."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

WorkerRank = tuple[str, int]


@dataclass(slots=True)
class _Pulses:
    sent_ns: list[int] = field(default_factory=list)
    confirmed_ns: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Vouches:
    """By worker rank. Of one that none is logged of nothing is known: that is no sign of silence."""

    _of: dict[WorkerRank, _Pulses] = field(default_factory=dict)

    def add(self, who: WorkerRank, sent_ns: int, confirmed_ns: int) -> None:
        """A pulse is sent; what one confirmed stays confirmed."""
        pulses = self._of.setdefault(who, _Pulses())
        newest = pulses.confirmed_ns[-1] if pulses.confirmed_ns else -1
        pulses.sent_ns.append(sent_ns)
        pulses.confirmed_ns.append(max(confirmed_ns, newest))

    def confirmed_ns(self, who: WorkerRank, sent_by_ns: int) -> int | None:
        """The newest instant that pulses sent by then confirm: None if none did, -1 if none is logged."""
        pulses = self._of.get(who)
        if pulses is None:
            return -1
        index = bisect_right(pulses.sent_ns, sent_by_ns)
        found = pulses.confirmed_ns[index - 1] if index else -1
        return found if found >= 0 else None

    def newest_ns(self, who: WorkerRank, by_ns: int) -> int | None:
        """When the newest pulse before then was sent: None if none was, -1 if none is logged."""
        pulses = self._of.get(who)
        if pulses is None:
            return -1
        index = bisect_right(pulses.sent_ns, by_ns)
        return pulses.sent_ns[index - 1] if index else None

    def within(self, who: WorkerRank, low_ns: int, high_ns: int) -> list[tuple[int, int]]:
        """(sent, confirmed) of the pulses sent within [low, high]."""
        pulses = self._of.get(who, _Pulses())
        first, last = bisect_left(pulses.sent_ns, low_ns), bisect_right(pulses.sent_ns, high_ns)
        return list(zip(pulses.sent_ns[first:last], pulses.confirmed_ns[first:last], strict=True))

    def forget_before(self, at_ns: int) -> None:
        """Lets go of what no question on `at_ns` or later needs."""
        for pulses in self._of.values():
            gone = max(0, bisect_right(pulses.sent_ns, at_ns) - 1)
            del pulses.sent_ns[:gone], pulses.confirmed_ns[:gone]

    def dump(self) -> list[tuple[str, int, list[int], list[int]]]:
        """All of it in JSON's types, for `load`."""
        return [(*who, pulses.sent_ns, pulses.confirmed_ns) for who, pulses in self._of.items()]

    def load(self, dumped: Sequence[tuple[str, int, list[int], list[int]]]) -> None:
        """Becomes what `dump` gave."""
        self._of = {(worker, rank): _Pulses(sent, confirmed) for worker, rank, sent, confirmed in dumped}
