"""Did a 200 say all that it had to? Whoever certainly held the prefix must be in it, as long as it certainly was,
and an answer that knows everybody must call itself complete.

Certain is what was there at every instant of the whole window, on a stream that the answer itself counts as
within the bound or whose hook vouched for enough. A partial inventory is believed after a trouble that the reader
has not shown to be over by an entry with a known one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvledger.simulate.answer_rule import ns
from kvledger.simulate.lookup import Credit, Lookup, Outcome, Verdict
from kvledger.simulate.refusal_rule import RefusalRule
from kvledger.simulate.residency import ResidencyLog
from kvledger.simulate.truth import Truth
from kvledger.simulate.vouch import WorkerRank

NOBODY: WorkerRank = ("", 0)


class SilenceRule:
    """Judges what a 200 leaves unsaid, in the order in which answers ended."""

    def __init__(self, truth: Truth, refusals: RefusalRule) -> None:
        self._truth = truth
        self._refusals = refusals
        self._known_ns: dict[tuple[str, WorkerRank], int] = {}

    def silence(self, lookup: Lookup) -> Verdict:
        """Call once a 200 that is not wrong."""
        excused = False
        try:
            for (worker, rank), why in self._faults(lookup):
                if not self._excused(lookup, (worker, rank)):
                    who = f"{worker}/{rank} " if worker else ""
                    return Verdict(Outcome.UNJUSTIFIED_SILENCE, who + why, worker, rank)
                excused = True
        finally:
            for credit in lookup.credits:
                if not credit.at_least:
                    self._known_ns[lookup.reader, (credit.worker, credit.rank)] = lookup.start_ns
        return Verdict(Outcome.OK, excused=excused)

    def _faults(self, lookup: Lookup) -> Iterator[tuple[WorkerRank, str]]:
        there = self._there(lookup)
        yield from self._miscounted(lookup, there)
        for credit in lookup.credits:
            who = (credit.worker, credit.rank)
            if who in there:
                yield from ((who, why) for why in self._understated(lookup, who, credit))
        cut = lookup.limited and lookup.candidates is None
        if cut and lookup.credits:
            return
        named = {(c.worker, c.rank) for c in lookup.credits} | {(e.worker, e.rank) for e in lookup.exclusions}
        for who in there:
            if who not in named and self._in_bound(lookup, who):
                least = self._least(lookup, who, self._truth.basis_of(who))
                if least is not None and least[-1]:
                    yield who, f"is not named, but held {least[-1]} blocks all through the window"
        if not lookup.complete and not cut:
            yield from self._incomplete(lookup, there)

    def _miscounted(self, lookup: Lookup, there: Sequence[WorkerRank]) -> Iterator[tuple[WorkerRank, str]]:
        if lookup.coverage is None:
            return
        included, eligible = lookup.coverage
        if eligible - included > len(lookup.exclusions):
            yield NOBODY, f"a coverage of {included}/{eligible} with {len(lookup.exclusions)} excluded"
        named = {(e.worker, e.rank) for e in lookup.exclusions if e.reason == "fenced"}
        calm = [who for who in there if who not in named and not self._refusals.disturbed(lookup, who[0])]
        if len(calm) > eligible:
            yield NOBODY, f"a coverage of {included}/{eligible} where {len(calm)} were eligible"

    def _understated(self, lookup: Lookup, who: WorkerRank, credit: Credit) -> Iterator[str]:
        """What an entry that isn't judged exactly owes all the same."""
        old = not credit.staleness_ms <= self._cap_ms(lookup)
        if not (credit.flagged or credit.at_least or old):
            return
        vouched = self._vouched(lookup, who)
        if not credit.within_bound and vouched:
            yield "is called out of bound, but was confirmed"
        if credit.at_least and not self._doubted(lookup, who):
            yield "is called partial, but nothing of it was lost"
        if not vouched and not (credit.within_bound and self._claimed(lookup, who)):
            return
        told = credit.tier_blocks or (credit.matched_blocks,)
        least = self._least(lookup, who, credit.basis)
        if least is not None and any(a < b for a, b in zip(told, least[-len(told) :], strict=True)):
            yield f"is credited with {told}, but held {tuple(least)} all through the window"

    def _incomplete(self, lookup: Lookup, there: Sequence[WorkerRank]) -> Iterator[tuple[WorkerRank, str]]:
        """The answer doesn't call itself complete: is there anybody who explains it?"""
        if any(one.reason != "fenced" for one in lookup.exclusions):
            return
        sometime = set(
            self._asked(lookup, self._truth.eligible_sometime(self._low_ns(lookup), lookup.end_ns))
        )
        if not there or sometime.difference(there):
            return
        if not all(self._in_bound(lookup, who) for who in there):
            return
        if any(self._doubted(lookup, who) for who in there):
            return
        # Anybody's excuse excuses the whole answer.
        reason = next((who for who in there if self._excused(lookup, who)), NOBODY)
        yield reason, "the answer is not called complete, but everybody was known, none is left out"

    def _there(self, lookup: Lookup) -> Sequence[WorkerRank]:
        """Who was asked about and had long been there, and has not said that it leaves."""
        truth, low_ns = self._truth, self._low_ns(lookup)
        return [
            who
            for who in self._asked(lookup, truth.eligible_through(low_ns, lookup.end_ns))
            if not truth.was_draining(who, lookup.end_ns) and not truth.ghosts_of(who, low_ns)
        ]

    def _asked(self, lookup: Lookup, whom: Sequence[WorkerRank]) -> list[WorkerRank]:
        return [who for who in whom if lookup.candidates is None or who[0] in lookup.candidates]

    def _in_bound(self, lookup: Lookup, who: WorkerRank) -> bool:
        return self._claimed(lookup, who) or self._vouched(lookup, who)

    def _claimed(self, lookup: Lookup, who: WorkerRank) -> bool:
        """Whether the answer itself counts it among those within the bound."""
        if lookup.bound_ms is None or lookup.on_stale == "include" or lookup.coverage is None:
            return False
        included, eligible = lookup.coverage
        left_out = {(e.worker, e.rank) for e in lookup.exclusions}
        return eligible - included <= len(left_out) and who not in left_out

    def _vouched(self, lookup: Lookup, who: WorkerRank) -> bool:
        capped = replace(lookup, bound_ms=self._cap_ms(lookup))
        return self._refusals.servable(capped, who)

    def _cap_ms(self, lookup: Lookup) -> float:
        return self._refusals.allowance.settle_ms if lookup.bound_ms is None else lookup.bound_ms

    def _low_ns(self, lookup: Lookup) -> int:
        return min(self._refusals.low_ns(lookup), lookup.start_ns - ns(self._cap_ms(lookup)))

    def _least(self, lookup: Lookup, who: WorkerRank, basis: str) -> list[int] | None:
        """The leading blocks that were there on each cumulative tier at every instant of the window; None if
        that is not known any more."""
        log = self._truth.residency.get(who)
        if log is None:
            return None
        low_ns = lookup.start_ns - ns(self._cap_ms(lookup))
        if basis != "engine":
            low_ns = log.published_through_ns(low_ns)
        if low_ns < log.forgotten_ns or low_ns < 0:
            return None
        levels = self._truth.levels_of(who)
        return [always_there(logs, lookup.chain, low_ns, lookup.end_ns) for logs in levels]

    def _doubted(self, lookup: Lookup, who: WorkerRank) -> bool:
        """Whether any of the blocks may have been in doubt for the reader."""
        logs = self._truth.levels_of(who)[-1]
        return any(log.was_doubted(lookup.chain, self._low_ns(lookup), lookup.end_ns) for log in logs)

    def _excused(self, lookup: Lookup, who: WorkerRank) -> bool:
        worker = who[0] or None
        if self._refusals.disturbed(lookup, worker) or self._may_be_partial(lookup, who):
            return True
        return self._truth.was_hidden(lookup.tenant, self._low_ns(lookup), lookup.end_ns)

    def _may_be_partial(self, lookup: Lookup, who: WorkerRank) -> bool:
        """Whether some of what it holds may have been lost on the way, for good, since it was last known."""
        if who == NOBODY:
            return False
        if self._truth.basis_of(who) == "unconfirmed":
            return True
        since_ns = self._truth.eligible_since(who, lookup.end_ns)
        known_ns = self._known_ns.get((lookup.reader, who))
        if known_ns is not None:
            since_ns = max(since_ns, known_ns - ns(self._refusals.allowance.settle_ms))
        return self._truth.disturbances.lasted(who[0], since_ns, lookup.end_ns)


def always_there(logs: Sequence[ResidencyLog], chain: Sequence[int], low_ns: int, high_ns: int) -> int:
    """Leading blocks of `chain` of which each was, without doubt, in some of `logs` at every instant of
    [low, high]."""
    for index, key in enumerate(chain):
        missing = [(low_ns, high_ns)]
        for log in logs:
            missing = log.when_missing(key, missing)
            if not missing:
                break
        else:
            return index
    return len(chain)
