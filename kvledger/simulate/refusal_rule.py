"""Was it right to say nothing? Every refusal, and every worker that an answer leaves out, needs a cause.

Causes are what hooks vouched for (too little within the bound), what left, and disturbances: of that worker or
of everybody, begun before the end of the read and not over for longer than it takes to settle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvledger.simulate.answer_rule import NS_PER_MS, ns
from kvledger.simulate.lookup import BASES, Exclusion, Lookup, Outcome, Verdict
from kvledger.simulate.truth import Truth
from kvledger.simulate.vouch import WorkerRank

BROKEN = frozenset({"gap", "quarantined", "unregistered", "unopened"})
"""Reasons that only a fault explains, once a worker has been there for a while."""
REASONS = BROKEN | {"stale", "silent", "profile_incomplete", "draining", "fenced", "unconfirmed"}


@dataclass(frozen=True, slots=True)
class Allowance:
    """What is granted, in milliseconds. `floor_ms`: the least bound that a healthy service must meet.
    `transit_ms`: what a pulse or beacon may take. `beacon_ms`: the readers' interval. `settle_ms`: how long
    after a disturbance it still excuses. `silent_ms`: without a pulse for so long a worker is silent."""

    floor_ms: float = 500.0
    transit_ms: float = 250.0
    beacon_ms: float = 100.0
    settle_ms: float = 5000.0
    silent_ms: float = 2000.0


class RefusalRule:
    """Judges what isn't answered. Stateless but for the truth."""

    def __init__(self, truth: Truth, allowance: Allowance) -> None:
        self._truth = truth
        self.allowance = allowance
        self._transit_ns = ns(allowance.transit_ms)
        self._beacon_ns = ns(allowance.beacon_ms)
        self._settle_ns = ns(allowance.settle_ms)
        self._silent_ns = ns(allowance.silent_ms)

    def refusal(self, lookup: Lookup) -> Verdict:
        """Of an answer other than 200, or of one that leaves everybody out."""
        floor_ms = self.allowance.floor_ms
        if lookup.status == 422:
            if lookup.bound_ms is not None and lookup.bound_ms < floor_ms and lookup.on_stale != "include":
                return Verdict(Outcome.OK)
            return _refused(f"422 for a bound of {lookup.bound_ms} ms, above the floor")
        if lookup.status not in (0, 200, 503):
            if lookup.status == 404 and self.disturbed(lookup, None):
                return Verdict(Outcome.OK, excused=True)
            return _refused(f"status {lookup.status}")
        eligible = [
            who
            for who in self._truth.eligible_sometime(lookup.start_ns - self._settle_ns, lookup.end_ns)
            if lookup.candidates is None or who[0] in lookup.candidates
        ]
        servable = [who for who in eligible if self.servable(lookup, who)]
        calm = [who for who in servable if not self.disturbed(lookup, who[0])]
        # Who needs nobody is still owed whoever could have been answered for.
        needed = max(self._needed(lookup, len(eligible)), int(lookup.status == 200))
        if not eligible or len(servable) < needed:
            # Right because of what is granted for transit, if not by the pulses alone: that is an excuse too.
            prompt = sum(self.servable(lookup, who, granting=False) for who in eligible)
            return Verdict(Outcome.OK, excused=0 < needed <= prompt)
        if len(calm) < needed or (not calm and self.disturbed(lookup, None)):
            return Verdict(Outcome.OK, excused=True)
        worker, rank = calm[0] if calm else eligible[0]
        why = (
            f"status {lookup.status} although {len(calm)} of {len(eligible)} workers were in bound, first"
            f" {worker}/{rank}, confirmed {self._confirmed(lookup, (worker, rank))}"
        )
        return Verdict(Outcome.UNJUSTIFIED_REFUSAL, why, worker, rank)

    def exclusions(self, lookup: Lookup) -> Verdict:
        """Of everybody that a 200 leaves out."""
        excused = False
        for one in lookup.exclusions:
            who = (one.worker, one.rank)
            if not self._truth.was_eligible_through(who, self.low_ns(lookup), lookup.end_ns):
                continue
            why = self._cause_missing(lookup, one, who)
            if why is None:
                excused |= one.reason == "stale" and self.servable(lookup, who, granting=False)
                continue
            if not self.disturbed(lookup, one.worker):
                return Verdict(Outcome.UNJUSTIFIED_EXCLUSION, f"{one.reason}, but {why}", *who)
            excused = True
        return Verdict(Outcome.OK, excused=excused)

    def _cause_missing(self, lookup: Lookup, one: Exclusion, who: WorkerRank) -> str | None:
        """Why the reason doesn't fit a worker in no trouble; None if it does."""
        truth = self._truth
        if one.reason not in REASONS:
            return "there is no such reason"
        if one.reason == "stale":
            served = self.servable(lookup, who)
            return f"it was confirmed {self._confirmed(lookup, who)}" if served else None
        if one.reason == "unconfirmed":
            weak = BASES.index(truth.basis_of(who)) > BASES.index(lookup.basis)
            return None if weak else f"it gives {truth.basis_of(who)}, {lookup.basis} was asked"
        if one.reason == "draining":
            return None if truth.was_draining(who, lookup.end_ns) else "it has not said that it leaves"
        if one.reason == "profile_incomplete":
            return "its profile is whole"
        if one.reason in BROKEN and not truth.disturbances.ever(one.worker, lookup.end_ns):
            return "nothing has ever disturbed it"
        # Silent and fenced; and broken for longer than the fault excuses, which only the dead may be.
        return None if self._quiet(lookup, who) else "it sends pulses"

    def servable(self, lookup: Lookup, who: WorkerRank, *, granting: bool = True) -> bool:
        """Whether it has long been there, and what its pulses vouch for is within the bound, with what is
        granted for their way and the beacons' or as if both took no time."""
        transit_ns = self._transit_ns if granting else 0
        beacon_ns = self._beacon_ns if granting else 0
        if not self._truth.was_eligible_through(who, self.low_ns(lookup), lookup.end_ns):
            return False
        if BASES.index(self._truth.basis_of(who)) > BASES.index(lookup.basis):
            return False
        vouched_ns = self._truth.vouches.confirmed_ns(who, lookup.start_ns - transit_ns)
        if vouched_ns is None:
            return False
        bound_ms = lookup.bound_ms
        if vouched_ns < 0:
            return bound_ms is None or bound_ms >= self.allowance.floor_ms
        if bound_ms is None:
            return True
        return lookup.start_ns - (vouched_ns - transit_ns - beacon_ns) <= ns(bound_ms)

    def _quiet(self, lookup: Lookup, who: WorkerRank) -> bool:
        """Whether a reader may have had no pulse of it for so long that it calls it silent."""
        pulsed_ns = self._truth.vouches.newest_ns(who, lookup.start_ns - self._transit_ns)
        return pulsed_ns is None or 0 <= pulsed_ns < lookup.end_ns - self._silent_ns

    def low_ns(self, lookup: Lookup) -> int:
        """From when on a trouble, a coming or a leaving still matters to the answer."""
        bound_ns = ns(lookup.bound_ms) if lookup.bound_ms is not None else self._settle_ns
        return lookup.start_ns - min(bound_ns, self._settle_ns) - self._settle_ns

    def disturbed(self, lookup: Lookup, worker: str | None) -> bool:
        """Whether trouble of that worker or of everybody excuses what the answer says of it."""
        return bool(self._truth.disturbances.touching(worker, self.low_ns(lookup), lookup.end_ns))

    def _needed(self, lookup: Lookup, eligible: int) -> int:
        if lookup.on_stale == "fail":
            return max(1, eligible)
        wanted = lookup.min_coverage
        if lookup.on_stale == "include" or wanted == 0:
            return 0
        if wanted is None:
            return 1
        return max(1, math.ceil(wanted * eligible) if isinstance(wanted, float) else wanted)

    def _confirmed(self, lookup: Lookup, who: WorkerRank) -> str:
        vouched_ns = self._truth.vouches.confirmed_ns(who, lookup.start_ns)
        if vouched_ns is None:
            return "never"
        if vouched_ns < 0:
            return "always"
        return f"{(lookup.start_ns - vouched_ns) / NS_PER_MS:.0f} ms before"


def _refused(why: str) -> Verdict:
    return Verdict(Outcome.UNJUSTIFIED_REFUSAL, why)
