"""What was wrong when, and for whom: the trouble that excuses refusals and exclusions, for a limited time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

EXCUSED_S = 60.0
"""How long one trouble excuses anything unless it says otherwise: whatever isn't repaired by then counts as
unrepaired."""


@dataclass(frozen=True, slots=True)
class Period:
    """From `start_ns` up to, not including, `end_ns`; None is open."""

    start_ns: int
    end_ns: int | None = None

    def touches(self, low_ns: int, high_ns: int) -> bool:
        """True if any instant of [low, high] lies in it."""
        return self.start_ns <= high_ns and (self.end_ns is None or self.end_ns > low_ns)

    def covers(self, low_ns: int, high_ns: int) -> bool:
        """True if every instant of [low, high] lies in it."""
        return self.start_ns <= low_ns and (self.end_ns is None or self.end_ns > high_ns)


@dataclass(frozen=True, slots=True)
class Disturbance:
    """One trouble. `worker` None: of everybody (log, service, host). `kind` is for people. It excuses
    nothing after `excused_ns` from its start, however long it lasts."""

    worker: str | None
    period: Period
    excused_ns: int
    kind: str = ""

    @property
    def excusing(self) -> Period:
        """When it excuses."""
        latest_ns = self.period.start_ns + self.excused_ns
        end_ns = self.period.end_ns
        return Period(self.period.start_ns, latest_ns if end_ns is None else min(end_ns, latest_ns))

    @property
    def line(self) -> str:
        """In words, as one that lasts too long."""
        what, whom = self.kind or "trouble", self.worker or "everybody"
        return f"{what} of {whom} has lasted longer than {self.excused_ns / 1e9:g} s"

    def unrepaired_at(self, now_ns: int) -> bool:
        """Whether it lasts, or lasted, longer than it excuses."""
        end_ns = now_ns if self.period.end_ns is None else self.period.end_ns
        return end_ns - self.period.start_ns > self.excused_ns


@dataclass(slots=True)
class Disturbances:
    """All of a run, in the order in which they began."""

    all: list[Disturbance] = field(default_factory=list)
    longest_ns: int = 0
    """No trouble excuses for longer: those that began so long before an instant needn't be looked at."""

    def add(self, one: Disturbance) -> None:
        """A trouble that may have begun, or be over, before others that are known."""
        insort(self.all, one, key=_began_ns)
        self.longest_ns = max(self.longest_ns, one.excused_ns)

    def begin(self, worker: str | None, now_ns: int, excused_s: float, kind: str) -> None:
        """Trouble begins."""
        self.add(Disturbance(worker, Period(now_ns), round(excused_s * 1e9), kind))

    def end(self, worker: str | None, now_ns: int) -> None:
        """The newest open trouble of exactly that scope ends; without one nothing happens."""
        for index in range(len(self.all) - 1, -1, -1):
            one = self.all[index]
            if one.worker == worker and one.period.end_ns is None:
                self.all[index] = replace(one, period=Period(one.period.start_ns, now_ns))
                return

    def touching(self, worker: str | None, low_ns: int, high_ns: int) -> Sequence[Disturbance]:
        """Those of that worker or of everybody that excuse some instant of [low, high]."""
        first = bisect_left(self.all, low_ns - self.longest_ns, key=_began_ns)
        last = bisect_right(self.all, high_ns, key=_began_ns)
        return [
            one
            for one in self.all[first:last]
            if (one.worker is None or one.worker == worker) and one.excusing.touches(low_ns, high_ns)
        ]

    def ever(self, worker: str, by_ns: int) -> bool:
        """Whether that worker or everybody was in any trouble that began by then."""
        return any(one.worker in (None, worker) and one.period.start_ns <= by_ns for one in self.all)

    def lasted(self, worker: str, low_ns: int, high_ns: int) -> bool:
        """Whether that worker or everybody was in trouble at some instant of [low, high], excused or not."""
        return any(one.worker in (None, worker) and one.period.touches(low_ns, high_ns) for one in self.all)

    def unrepaired(self, now_ns: int) -> Sequence[Disturbance]:
        """Those that last, or lasted, longer than they may."""
        return [one for one in self.all if one.unrepaired_at(now_ns)]


def _began_ns(one: Disturbance) -> int:
    return one.period.start_ns
