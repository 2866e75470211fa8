"""Judges lookups against the truth: was any answer wrong without saying so, any refusal without cause?

The rule is one-sided on purpose. An answer is right if every worker it credits had exactly that many leading
blocks at some instant from (start of the read - reported staleness) to the end of the read; claims of absence
likewise with none. Flagged answers (excluded, or `within_bound: false`) claim nothing. A refusal is right
only if too few workers could have been answered for, as far as pulses sent and known disturbances tell.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from kvledger.simulate.truth import Truth, WorkerRank

_NS_PER_MS = 1_000_000
_LEAVING = frozenset({"draining", "fenced", "unregistered", "closed", "superseded"})


class Outcome(StrEnum):
    """The three ways a lookup can be judged."""

    OK = "ok"
    WRONG_UNFLAGGED = "wrong_unflagged"
    UNJUSTIFIED_REFUSAL = "unjustified_refusal"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One lookup's judgement; `why` names the worker and the rule, and is empty if ok."""

    outcome: Outcome
    why: str = ""


@dataclass(frozen=True, slots=True)
class Credit:
    """One entry of `matches`.

    `first_missing_ns` is the stamp of the first mutation that its position doesn't contain, if known.
    """

    worker: str
    rank: int
    matched_blocks: int
    staleness_ms: float
    within_bound: bool = True
    basis: str = "engine"
    epoch: str | None = None
    first_missing_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Exclusion:
    """One entry of `excluded`."""

    worker: str
    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class Lookup:
    """One lookup and its answer; `start_ns` and `end_ns` enclose the call, on the truth's clock.

    `chain` is the asked blocks' keys, `bound_ms` None means `consistency: any`, `status` 0 means that no
    answer came, `limited` that it may have been cut by `limit` or `candidates`: its absences say nothing.
    """

    reader: str
    tenant: str
    chain: Sequence[int]
    bound_ms: float | None
    start_ns: int
    end_ns: int
    status: int
    credits: Sequence[Credit] = ()
    exclusions: Sequence[Exclusion] = ()
    complete: bool = False
    staleness_ms: float | None = None
    on_stale: str = "drop"
    min_coverage: float = 0.0
    limited: bool = False


@dataclass(slots=True)
class _Reads:
    end_ns: list[int] = field(default_factory=list)
    as_of_ns: list[int] = field(default_factory=list)


class Checker:
    """Judges lookups one by one, in the order in which they ended.

    `floor_ms` is the least bound a healthy service must meet, `transit_ms` what a pulse or beacon may take,
    `beacon_ms` the readers' beacon interval, `settle_ms` how long after a disturbance a refusal is excused.
    """

    def __init__(
        self,
        truth: Truth,
        *,
        floor_ms: float = 500.0,
        transit_ms: float = 250.0,
        beacon_ms: float = 100.0,
        settle_ms: float = 5000.0,
    ) -> None:
        self._truth = truth
        self._floor_ms = floor_ms
        self._transit_ns = _ns(transit_ms)
        self._beacon_ns = _ns(beacon_ms)
        self._settle_ns = _ns(settle_ms)
        self._reads: dict[tuple[str, str, int, str], _Reads] = {}

    def check(self, lookup: Lookup) -> Verdict:
        """The verdict; call once a lookup (it remembers how fresh each epoch was), in order of `end_ns`."""
        if lookup.status != 200:
            return self._judge_refusal(lookup)
        why = self._wrong(lookup)
        if why is not None:
            return Verdict(Outcome.WRONG_UNFLAGGED, why)
        left_out = {(e.worker, e.rank) for e in lookup.exclusions}
        if left_out and left_out.issuperset(self._truth.eligible_through(lookup.start_ns, lookup.end_ns)):
            return self._judge_refusal(lookup)
        return Verdict(Outcome.OK)

    def _wrong(self, lookup: Lookup) -> str | None:
        for credit in lookup.credits:
            why = self._credit_wrong(lookup, credit)
            if why is not None:
                return f"{credit.worker}/{credit.rank}: {why}"
        return self._absence_wrong(lookup) if lookup.complete else None

    def _credit_wrong(self, lookup: Lookup, credit: Credit) -> str | None:
        if not credit.within_bound:
            return None
        if not (math.isfinite(credit.staleness_ms) and credit.staleness_ms >= 0):
            return f"staleness {credit.staleness_ms}"
        if lookup.bound_ms is not None and credit.staleness_ms > lookup.bound_ms:
            return f"{credit.staleness_ms} ms stale is called within a bound of {lookup.bound_ms} ms"
        if self._fell_back(lookup, credit):
            return "staleness fell back: an earlier read of this epoch knew a newer state"
        log = self._truth.residency.get((credit.worker, credit.rank))
        if log is None:
            return "no such worker"
        low_ns = lookup.start_ns - _ns(credit.staleness_ms)
        if credit.basis == "published":
            low_ns = log.published_through_ns(low_ns)
        if credit.first_missing_ns is not None and credit.first_missing_ns < low_ns:
            late_ms = (low_ns - credit.first_missing_ns) / _NS_PER_MS
            return f"a mutation {late_ms:.1f} ms older than its staleness allows is missing"
        return self._length_wrong(lookup, (credit.worker, credit.rank), credit.matched_blocks, low_ns)

    def _length_wrong(self, lookup: Lookup, who: WorkerRank, length: int, low_ns: int) -> str | None:
        log = self._truth.residency[who]
        if log.had_length(lookup.chain, length, low_ns, lookup.end_ns):
            return None
        longest = log.longest_within(lookup.chain, low_ns, lookup.end_ns)
        if length <= longest and self._truth.was_hidden(lookup.tenant, low_ns, lookup.end_ns):
            return None
        return f"{length} blocks were never the longest prefix in the window (at most {longest})"

    def _absence_wrong(self, lookup: Lookup) -> str | None:
        staying = [e for e in lookup.exclusions if e.reason not in _LEAVING]
        if staying:
            return f"complete although {staying[0].worker}/{staying[0].rank} is excluded"
        if lookup.limited:
            return None
        if lookup.staleness_ms is None or not lookup.staleness_ms >= 0:
            return "absence claimed without a staleness"
        if (
            lookup.bound_ms is not None
            and lookup.staleness_ms > lookup.bound_ms
            and lookup.on_stale != "include"
        ):
            return f"absence {lookup.staleness_ms} ms old is called within a bound of {lookup.bound_ms} ms"
        low_ns = lookup.start_ns - _ns(lookup.staleness_ms)
        answered = {(c.worker, c.rank) for c in lookup.credits} | {
            (e.worker, e.rank) for e in lookup.exclusions
        }
        for who in self._truth.eligible_through(low_ns, lookup.end_ns):
            log = self._truth.residency.get(who)
            if log is not None and who not in answered:
                published = self._truth.basis_of(who) == "published"
                why = self._length_wrong(
                    lookup, who, 0, log.published_through_ns(low_ns) if published else low_ns
                )
                if why is not None:
                    return f"{who[0]}/{who[1]} called absent: {why}"
        return None

    def _fell_back(self, lookup: Lookup, credit: Credit) -> bool:
        if credit.epoch is None:
            return False
        reads = self._reads.setdefault((lookup.reader, credit.worker, credit.rank, credit.epoch), _Reads())
        stale_ns = _ns(credit.staleness_ms)
        index = bisect_right(reads.end_ns, lookup.start_ns)
        behind = index > 0 and lookup.end_ns - stale_ns < reads.as_of_ns[index - 1]
        if reads.end_ns and lookup.end_ns < reads.end_ns[-1]:
            raise ValueError("lookups must be checked in the order in which they ended")
        newest = max(lookup.start_ns - stale_ns, reads.as_of_ns[-1] if reads.as_of_ns else 0)
        reads.end_ns.append(lookup.end_ns)
        reads.as_of_ns.append(newest)
        return behind

    def _judge_refusal(self, lookup: Lookup) -> Verdict:
        if lookup.status == 422:
            if lookup.bound_ms is not None and lookup.bound_ms < self._floor_ms:
                return Verdict(Outcome.OK)
            return Verdict(
                Outcome.UNJUSTIFIED_REFUSAL, f"422 for a bound of {lookup.bound_ms} ms, above the floor"
            )
        low_ns = lookup.start_ns - self._settle_ns
        if lookup.status not in (0, 200, 503):
            return Verdict(Outcome.UNJUSTIFIED_REFUSAL, f"status {lookup.status}")
        eligible = self._truth.eligible_sometime(low_ns, lookup.end_ns)
        servable = [who for who in eligible if self._servable(lookup, who)]
        needed = max(1, math.ceil(lookup.min_coverage * len(eligible)))
        if lookup.on_stale == "fail":
            needed = max(1, len(eligible))
        if len(servable) < needed:
            return Verdict(Outcome.OK)
        who = servable[0]
        vouched_ns = self._truth.vouched_ns(who, lookup.start_ns)
        age = (
            "always"
            if not vouched_ns or vouched_ns < 0
            else f"{_ms(lookup.start_ns - vouched_ns):.0f} ms before"
        )
        why = f"{len(servable)} of {len(eligible)} workers were in bound, first {who[0]}/{who[1]}, confirmed {age}"
        return Verdict(Outcome.UNJUSTIFIED_REFUSAL, f"status {lookup.status} although {why}")

    def _servable(self, lookup: Lookup, who: WorkerRank) -> bool:
        bound_ns = _ns(lookup.bound_ms) if lookup.bound_ms is not None else self._settle_ns
        low_ns = lookup.start_ns - min(bound_ns, self._settle_ns) - self._settle_ns
        if not any(who == other for other in self._truth.eligible_through(low_ns, lookup.end_ns)):
            return False
        if self._truth.was_disturbed(who[0], low_ns, lookup.end_ns):
            return False
        vouched_ns = self._truth.vouched_ns(who, lookup.start_ns - self._transit_ns)
        if vouched_ns is None:
            return False
        if vouched_ns < 0:
            return lookup.bound_ms is None or lookup.bound_ms >= self._floor_ms
        return lookup.start_ns - (vouched_ns - self._transit_ns - self._beacon_ns) <= bound_ns


def _ns(milliseconds: float) -> int:
    return math.ceil(milliseconds * _NS_PER_MS)


def _ms(nanoseconds: int) -> float:
    return nanoseconds / _NS_PER_MS
