"""What is true: when each block really was in each worker's cache, stamped as the engine mutates.

All stamps are nanoseconds of one monotonic clock, the test host's. The checker judges lookups by it; nothing
that serves lookups ever sees it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

ClockNs = Callable[[], int]
WorkerRank = tuple[str, int]


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


class ResidencyLog:
    """One worker rank's residency through all its engine lives; one copy or ten, a block is there or not.

    Stamps strictly grow: where the clock stands still they are one nanosecond apart, so that every state
    between two mutations has an instant. A block of which one copy was removed and another is left is in
    doubt until it is stored again: from the wire alone nobody can know that it is still there, so no answer
    owes it.
    """

    def __init__(self, clock_ns: ClockNs) -> None:
        self._clock_ns = clock_ns
        self._last_ns = -1
        self._stamps: dict[int, list[int]] = {}
        self._doubts: dict[int, list[int]] = {}
        self._lives: list[tuple[str, int]] = []
        self._published_ns: list[int] = []
        self._made_through_ns: list[int] = []
        self._first_made_ns: dict[tuple[str, int], int] = {}

    @property
    def last_ns(self) -> int:
        """Stamp of the newest mutation; -1 before the first."""
        return self._last_ns

    @property
    def lives(self) -> Sequence[tuple[str, int]]:
        """(engine life, its first instant), oldest first."""
        return self._lives

    def stamp(self) -> int:
        """A new instant, later than all before."""
        now = self._clock_ns()
        self._last_ns = now = now if now > self._last_ns else self._last_ns + 1
        return now

    def begin_life(self, life: str) -> None:
        """A new engine life: whatever was resident is gone from this instant, which every basis must know."""
        now = self.clear()
        self._lives.append((life, now))
        self._published_ns.append(now)
        self._made_through_ns.append(now)

    def clear(self) -> int:
        """Everything is gone from this instant, which is returned."""
        now = self.stamp()
        for stamps in self._stamps.values():
            if len(stamps) & 1:
                stamps.append(now)
        for stamps in self._doubts.values():
            if len(stamps) & 1:
                stamps.append(now)
        return now

    def store(self, keys: Sequence[int]) -> int:
        """Each block in turn is resident from its own instant; the first of these is returned.

        A block that is resident already only takes an instant.
        """
        clock_ns, known, doubts = self._clock_ns, self._stamps, self._doubts
        last = self._last_ns
        first = -1
        for key in keys:
            now = clock_ns()
            last = now if now > last else last + 1
            if first < 0:
                first = last
            stamps = known.get(key)
            if stamps is None:
                known[key] = [last]
            elif not len(stamps) & 1:
                stamps.append(last)
            elif key in doubts and len(doubts[key]) & 1:
                doubts[key].append(last)
        self._last_ns = last
        return first

    def doubt(self, key: int) -> int:
        """One copy of the block is gone from this instant, another is left."""
        now = self.stamp()
        stamps = self._doubts.setdefault(key, [])
        if not len(stamps) & 1:
            stamps.append(now)
        return now

    def drop(self, key: int) -> int:
        """The block's last copy is gone from this instant; no-op but for the stamp if it wasn't there."""
        now = self._clock_ns()
        self._last_ns = now = now if now > self._last_ns else self._last_ns + 1
        stamps = self._stamps.get(key)
        if stamps is not None and len(stamps) & 1:
            stamps.append(now)
        doubts = self._doubts.get(key)
        if doubts is not None and len(doubts) & 1:
            doubts.append(now)
        return now

    def publish(self, life: str, engine_seq: int, first_made_ns: int) -> None:
        """Step `engine_seq` is on the wire from now; its first mutation was made at `first_made_ns`."""
        self._published_ns.append(self._clock_ns())
        self._made_through_ns.append(self._last_ns)
        self._first_made_ns[life, engine_seq] = first_made_ns

    def published_through_ns(self, at_ns: int) -> int:
        """The newest mutation on the wire at `at_ns`: what `basis: published` answers for."""
        index = bisect_right(self._published_ns, at_ns)
        return min(at_ns, self._made_through_ns[index - 1]) if index else -1

    def first_made_ns(self, life: str, engine_seq: int) -> int | None:
        """When the first mutation of that step was made; None for a step never published."""
        return self._first_made_ns.get((life, engine_seq))

    def length_at(self, chain: Sequence[int], at_ns: int) -> int:
        """Leading blocks of `chain` that were all resident at that instant."""
        for index, key in enumerate(chain):
            if not bisect_right(self._stamps.get(key, ()), at_ns) & 1:
                return index
        return len(chain)

    def had_length(self, chain: Sequence[int], length: int, low_ns: int, high_ns: int) -> bool:
        """True if at some instant of [low, high] exactly `length` leading blocks were resident, or were so
        without those in doubt."""
        if not 0 <= length <= len(chain) or low_ns > high_ns:
            return False
        spans = [(low_ns, high_ns)]
        for key in chain[:length]:
            spans = _meet(spans, self._stamps.get(key), inside=True)
            if not spans:
                return False
        if length == len(chain):
            return True
        end = chain[length]
        return bool(_meet(spans, self._stamps.get(end), inside=False)) or (
            end in self._doubts and bool(_meet(spans, self._doubts[end], inside=True))
        )

    def longest_within(self, chain: Sequence[int], low_ns: int, high_ns: int) -> int:
        """The most leading blocks that were resident together at any instant of [low, high]."""
        spans = [(low_ns, high_ns)]
        for index, key in enumerate(chain):
            spans = _meet(spans, self._stamps.get(key), inside=True)
            if not spans:
                return index
        return len(chain)


@dataclass(slots=True)
class _Vouches:
    sent_ns: list[int] = field(default_factory=list)
    confirmed_ns: list[int] = field(default_factory=list)


class Truth:
    """A fleet's truth: residency, who was eligible, what was disturbed or hidden, what hooks vouched for."""

    def __init__(self, clock_ns: ClockNs) -> None:
        self._clock_ns = clock_ns
        self.residency: dict[WorkerRank, ResidencyLog] = {}
        self._eligible: dict[WorkerRank, list[Period]] = {}
        self._basis: dict[WorkerRank, str] = {}
        self._disturbed: list[tuple[str | None, Period]] = []
        self._hidden: dict[str, list[Period]] = {}
        self._vouches: dict[WorkerRank, _Vouches] = {}

    def now_ns(self) -> int:
        """The truth's clock, now."""
        return self._clock_ns()

    def log_of(self, worker: str, rank: int = 0) -> ResidencyLog:
        """That worker rank's log, made on first use."""
        log = self.residency.get((worker, rank))
        if log is None:
            log = self.residency[worker, rank] = ResidencyLog(self._clock_ns)
        return log

    def enlist(self, worker: str, rank: int = 0, *, basis: str = "engine") -> None:
        """From now on an answer that calls itself complete must know this worker rank.

        With `basis` "published" it answers for what it put on the wire, else for what it did.
        """
        self._basis[worker, rank] = basis
        self._eligible.setdefault((worker, rank), []).append(Period(self._clock_ns()))

    def retire(self, worker: str, rank: int = 0) -> None:
        """Fenced, closed or superseded: no longer eligible."""
        _close(self._eligible.get((worker, rank), []), self._clock_ns())

    def disturb(self, worker: str | None = None) -> None:
        """Trouble begins for that worker, or with None for everybody (service, log)."""
        self._disturbed.append((worker, Period(self._clock_ns())))

    def calm(self, worker: str | None = None) -> None:
        """The newest open trouble of that scope ends now; the checker allows time to settle after it."""
        for index in range(len(self._disturbed) - 1, -1, -1):
            scope, period = self._disturbed[index]
            if scope == worker and period.end_ns is None:
                self._disturbed[index] = (scope, Period(period.start_ns, self._clock_ns()))
                return

    def was_slow(self, start_ns: int, end_ns: int) -> None:
        """The test's host itself stood still from then to then, which excuses everybody's lateness."""
        self._disturbed.append((None, Period(start_ns, end_ns)))

    def hide(self, tenant: str) -> None:
        """A deletion of the tenant is about to be written: from now on its blocks may be filtered."""
        self._hidden.setdefault(tenant, []).append(Period(self._clock_ns()))

    def unhide(self, tenant: str) -> None:
        """No filter of the tenant can be in force any more."""
        _close(self._hidden.get(tenant, []), self._clock_ns())

    def vouch(self, worker: str, rank: int, confirmed_ns: int) -> None:
        """A hook sends a pulse now that confirms all that was made before `confirmed_ns`."""
        vouches = self._vouches.setdefault((worker, rank), _Vouches())
        vouches.sent_ns.append(self._clock_ns())
        vouches.confirmed_ns.append(
            max(confirmed_ns, vouches.confirmed_ns[-1] if vouches.confirmed_ns else 0)
        )

    def basis_of(self, who: WorkerRank) -> str:
        """What that worker rank answers for."""
        return self._basis.get(who, "engine")

    def eligible_through(self, low_ns: int, high_ns: int) -> list[WorkerRank]:
        """Worker ranks that were eligible at every instant of [low, high]."""
        return [
            who for who, periods in self._eligible.items() if any(p.covers(low_ns, high_ns) for p in periods)
        ]

    def eligible_sometime(self, low_ns: int, high_ns: int) -> list[WorkerRank]:
        """Worker ranks that were eligible at some instant of [low, high]."""
        return [
            who for who, periods in self._eligible.items() if any(p.touches(low_ns, high_ns) for p in periods)
        ]

    def was_disturbed(self, worker: str, low_ns: int, high_ns: int) -> bool:
        """True if trouble of that worker or of everybody touches [low, high]."""
        return any(scope in (None, worker) and p.touches(low_ns, high_ns) for scope, p in self._disturbed)

    def was_hidden(self, tenant: str, low_ns: int, high_ns: int) -> bool:
        """True if a deletion may have hidden the tenant at some instant of [low, high]."""
        return any(p.touches(low_ns, high_ns) for p in self._hidden.get(tenant, ()))

    def vouched_ns(self, who: WorkerRank, sent_by_ns: int) -> int | None:
        """The newest instant that pulses sent by then confirm: None if none did, -1 if none is logged."""
        vouches = self._vouches.get(who)
        if vouches is None:
            return -1
        index = bisect_right(vouches.sent_ns, sent_by_ns)
        return vouches.confirmed_ns[index - 1] if index else None


def _close(periods: list[Period], now_ns: int) -> None:
    if periods and periods[-1].end_ns is None:
        periods[-1] = Period(periods[-1].start_ns, now_ns)


def _meet(spans: list[tuple[int, int]], stamps: list[int] | None, *, inside: bool) -> list[tuple[int, int]]:
    """The closed parts of `spans` inside (or outside) the times that `stamps` begin and end in turn."""
    if stamps is None:
        return [] if inside else spans
    if stamps[-1] <= spans[0][0]:
        # Nothing has changed since the first span began: by far the most frequent case.
        return spans if bool(len(stamps) & 1) == inside else []
    out: list[tuple[int, int]] = []
    for low, high in spans:
        index = bisect_right(stamps, low)
        at = low
        while at <= high:
            until = stamps[index] - 1 if index < len(stamps) else high
            if bool(index & 1) == inside:
                out.append((at, min(until, high)))
            at = until + 1
            index += 1
    return out
