"""Is an answer true? Every credit, and what isn't credited where the answer calls itself complete.

The rule is one-sided on purpose. A credit is right if its worker had exactly that many leading blocks, on each
cumulative tier, at one instant from (start of the read - reported staleness) to the end of the read; absence
likewise with none. An entry that the answer itself flags claims the same, but its fault is counted apart.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvledger.simulate.lookup import BASES, Credit, Lookup
from kvledger.simulate.residency import Spans, longest_in, when_length
from kvledger.simulate.truth import Truth
from kvledger.simulate.vouch import WorkerRank

NS_PER_MS = 1_000_000
LEAVING = frozenset({"draining", "fenced", "unregistered", "closed", "superseded"})
"""Reasons of those that an answer may call itself complete without."""
ROUNDING_MS = 0.001


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with an answer, and about whom."""

    worker: str
    rank: int
    why: str
    flagged: bool = False


@dataclass(slots=True)
class _Reads:
    end_ns: list[int] = field(default_factory=list)
    as_of_ns: list[int] = field(default_factory=list)


class AnswerRule:
    """Judges answers in the order in which they ended. `excused` tells whether the last judgement rested on a
    deletion that may have hidden blocks, or on what is forgotten."""

    def __init__(self, truth: Truth) -> None:
        self.excused = False
        self._truth = truth
        self._reads: dict[tuple[str, str, int, str, str], _Reads] = {}

    def fault(self, lookup: Lookup) -> Fault | None:
        """The first unflagged fault of a 200, else the first flagged one. Call once a lookup."""
        self.excused = False
        flagged: Fault | None = None
        seen: set[WorkerRank] = set()
        for credit in lookup.credits:
            who = (credit.worker, credit.rank)
            why = "credited twice" if who in seen else self._credit_wrong(lookup, credit)
            seen.add(who)
            if why is not None:
                fault = Fault(*who, why, credit.flagged)
                if not fault.flagged:
                    return fault
                flagged = flagged or fault
        return (
            self._unanswered(lookup) or (self._absence_wrong(lookup) if lookup.complete else None) or flagged
        )

    def _credit_wrong(self, lookup: Lookup, credit: Credit) -> str | None:
        who = (credit.worker, credit.rank)
        stale_ms = credit.staleness_ms
        known = math.isfinite(stale_ms) and stale_ms >= 0
        if not known and not (credit.flagged and math.isnan(stale_ms)):
            return f"staleness {stale_ms}"
        if credit.within_bound:
            if lookup.bound_ms is not None and stale_ms > lookup.bound_ms:
                return f"{stale_ms} ms stale is called within a bound of {lookup.bound_ms} ms"
            if BASES.index(credit.basis) > BASES.index(lookup.basis):
                return f"basis {credit.basis} is weaker than asked"
            if self._fell_back(lookup, credit):
                return "staleness fell back: an earlier read of this epoch knew a newer state"
        log = self._truth.residency.get(who)
        if log is None:
            return "no such worker"
        if credit.within_bound and BASES.index(credit.basis) < BASES.index(self._truth.basis_of(who)):
            return f"basis {credit.basis} is stronger than what the worker gives"
        low_ns = lookup.start_ns - ns(stale_ms) if known else -1
        if credit.basis != "engine":
            low_ns = log.published_through_ns(low_ns)
        if low_ns < log.forgotten_ns:
            self.excused = True
            return None
        if known and credit.first_missing_ns is not None and credit.first_missing_ns < low_ns:
            late_ms = (low_ns - credit.first_missing_ns) / NS_PER_MS
            return f"a mutation {late_ms:.1f} ms older than its staleness allows is missing"
        lengths = credit.tier_blocks
        if lengths is not None and lengths[-1] != credit.matched_blocks:
            return f"tiers {lengths} don't add up to {credit.matched_blocks} blocks"
        told = lengths or (credit.matched_blocks,)
        return self._length_wrong(lookup, who, told, low_ns, at_least=credit.at_least)

    def _length_wrong(
        self,
        lookup: Lookup,
        who: WorkerRank,
        lengths: Sequence[int],
        low_ns: int,
        *,
        at_least: bool = False,
    ) -> str | None:
        """`lengths` by cumulative tier, or the last one's alone."""
        window = [(low_ns, lookup.end_ns)]
        for process in (who, *self._truth.ghosts_of(who, low_ns)):
            if self._had_lengths(process, lookup.chain, lengths, window, at_least):
                return None
        longest = longest_in(self._truth.levels_of(who)[-1], lookup.chain, window)
        if lengths[-1] <= longest and self._truth.was_hidden(lookup.tenant, low_ns, lookup.end_ns):
            self.excused = True
            return None
        told = lengths[0] if len(set(lengths)) == 1 else tuple(lengths)
        return f"{told} blocks were never the longest prefix in the window (at most {longest})"

    def _had_lengths(
        self, who: WorkerRank, chain: Sequence[int], lengths: Sequence[int], spans: Spans, at_least: bool
    ) -> bool:
        """Whether all of them were true together at one instant, as they are or as the least."""
        judged: tuple[int, int] | None = None
        for logs, length in zip(self._truth.levels_of(who)[-len(lengths) :], lengths, strict=True):
            if not logs:
                spans = spans if length == 0 else []
            elif (len(logs), length) != judged:
                asked = chain[:length] if at_least else chain
                spans, judged = when_length(logs, asked, length, spans), (len(logs), length)
            if not spans:
                return False
        return True

    def _unanswered(self, lookup: Lookup) -> Fault | None:
        answered = {c.worker for c in lookup.credits} | {e.worker for e in lookup.exclusions}
        for name in lookup.candidates or ():
            if name not in answered:
                return Fault(name, 0, "a candidate without an answer")
        return None

    def _absence_wrong(self, lookup: Lookup) -> Fault | None:
        for one in lookup.exclusions:
            if one.reason not in LEAVING:
                return Fault(one.worker, one.rank, f"complete although {one.worker}/{one.rank} is excluded")
        if lookup.coverage is not None and not 0 < lookup.coverage[0] == lookup.coverage[1]:
            return Fault("", 0, f"complete with a coverage of {lookup.coverage}")
        if lookup.staleness_ms is None or not lookup.staleness_ms >= 0:
            return None if lookup.limited else Fault("", 0, "absence claimed without a staleness")
        for credit in lookup.credits:
            if credit.staleness_ms > lookup.staleness_ms + ROUNDING_MS:
                return Fault(credit.worker, credit.rank, "an entry is older than the whole answer")
        if lookup.limited:
            return None
        if (
            lookup.bound_ms is not None
            and lookup.staleness_ms > lookup.bound_ms
            and lookup.on_stale != "include"
        ):
            bound = f"called within a bound of {lookup.bound_ms} ms"
            return Fault("", 0, f"absence {lookup.staleness_ms} ms old is {bound}")
        low_ns = lookup.start_ns - ns(lookup.staleness_ms)
        answered = {(c.worker, c.rank) for c in lookup.credits} | {
            (e.worker, e.rank) for e in lookup.exclusions
        }
        for who in self._truth.eligible_through(low_ns, lookup.end_ns):
            log = self._truth.residency.get(who)
            if log is None or who in answered:
                continue
            engine = self._truth.basis_of(who) == "engine"
            since_ns = low_ns if engine else log.published_through_ns(low_ns)
            why = self._length_wrong(lookup, who, (0,), since_ns)
            if why is not None:
                return Fault(*who, f"called absent: {why}")
        return None

    def _fell_back(self, lookup: Lookup, credit: Credit) -> bool:
        if credit.epoch is None:
            return False
        name = (lookup.reader, credit.worker, credit.rank, credit.epoch, lookup.basis)
        reads = self._reads.setdefault(name, _Reads())
        stale_ns = ns(credit.staleness_ms)
        index = bisect_right(reads.end_ns, lookup.start_ns)
        behind = index > 0 and lookup.end_ns - stale_ns + ns(ROUNDING_MS) < reads.as_of_ns[index - 1]
        if reads.end_ns and lookup.end_ns < reads.end_ns[-1]:
            raise ValueError("lookups must be checked in the order in which they ended")
        newest = max(lookup.start_ns - stale_ns, reads.as_of_ns[-1] if reads.as_of_ns else 0)
        reads.end_ns.append(lookup.end_ns)
        reads.as_of_ns.append(newest)
        return behind

    def forget_before(self, at_ns: int) -> None:
        """Lets go of reads that ended before then, but for the newest of each epoch."""
        for reads in self._reads.values():
            gone = max(0, bisect_right(reads.end_ns, at_ns) - 1)
            del reads.end_ns[:gone], reads.as_of_ns[:gone]


def ns(milliseconds: float) -> int:
    """In nanoseconds, rounded up."""
    return math.ceil(milliseconds * NS_PER_MS)
