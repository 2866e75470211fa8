"""Judges lookups against the truth: was any answer wrong without saying so, anything left unsaid without cause?

`docs/checker.md` states every rule. Answers are judged by `answer_rule`, refusals and
exclusions by `refusal_rule`, what a 200 leaves unsaid by `silence_rule`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from kvledger.simulate.answer_rule import AnswerRule, ns
from kvledger.simulate.explain import Explanation, explain
from kvledger.simulate.history import History
from kvledger.simulate.lookup import Lookup, Outcome, Verdict
from kvledger.simulate.refusal_rule import Allowance, RefusalRule
from kvledger.simulate.silence_rule import SilenceRule
from kvledger.simulate.truth import Truth

EXPLAINED = 5
FORGET_EVERY = 1000


@dataclass(slots=True)
class CheckCounts:
    """What was judged. `excused` lookups are ok only because something was disturbed, hidden or long ago: a
    run that excuses everything proves nothing. `excluded` counts entries by reason."""

    lookups: int = 0
    answered: int = 0
    refused: int = 0
    credits: int = 0
    flagged_credits: int = 0
    absences: int = 0
    excused: int = 0
    excluded: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[Outcome] = field(default_factory=Counter)

    @property
    def strict_share(self) -> float | None:
        """The share of lookups judged without any excuse; None without lookups."""
        return (self.lookups - self.excused) / self.lookups if self.lookups else None


class Checker:
    """Judges lookups one by one, in the order in which they ended; `counts` and the first violations'
    `explanations` grow with them. `keep_s` bounds how much of the past the truth keeps in memory.
    """

    def __init__(
        self,
        truth: Truth,
        *,
        floor_ms: float = 500.0,
        transit_ms: float = 250.0,
        beacon_ms: float = 100.0,
        settle_ms: float = 5000.0,
        silent_ms: float = 2000.0,
        history: History | None = None,
        keep_s: float = 600.0,
    ) -> None:
        self.counts = CheckCounts()
        self.explanations: list[Explanation] = []
        self.allowance = Allowance(floor_ms, transit_ms, beacon_ms, settle_ms, silent_ms)
        self._truth = truth
        self._answers = AnswerRule(truth)
        self._refusals = RefusalRule(truth, self.allowance)
        self._silences = SilenceRule(truth, self._refusals)
        self._history = history
        self._keep_ns = ns(keep_s * 1000)
        if history is not None:
            history.begin(truth, self.allowance)

    def check(self, lookup: Lookup) -> Verdict:
        """The verdict; call once a lookup (it remembers how fresh each epoch was), in order of `end_ns`."""
        verdict = self._judge(lookup)
        self._count(lookup, verdict)
        if verdict.outcome is not Outcome.OK and len(self.explanations) < EXPLAINED:
            self.explanations.append(explain(self._truth, lookup, verdict))
        if self._history is not None:
            self._history.judged(lookup, verdict)
        if self.counts.lookups % FORGET_EVERY == 0:
            self._truth.forget_before(lookup.start_ns - self._keep_ns)
            self._answers.forget_before(lookup.start_ns - self._keep_ns)
        return verdict

    def _judge(self, lookup: Lookup) -> Verdict:
        if lookup.status != 200:
            return self._refusals.refusal(lookup)
        fault = self._answers.fault(lookup)
        excused = self._answers.excused
        if fault is not None and not fault.flagged:
            who = f"{fault.worker}/{fault.rank}: " if fault.worker else ""
            return Verdict(Outcome.WRONG_UNFLAGGED, who + fault.why, fault.worker, fault.rank)
        left_out = {(e.worker, e.rank) for e in lookup.exclusions}
        if left_out and left_out.issuperset(self._truth.eligible_through(lookup.start_ns, lookup.end_ns)):
            verdict = self._refusals.refusal(lookup)
            if verdict.outcome is not Outcome.OK:
                return verdict
            excused |= verdict.excused
        for judge in (self._refusals.exclusions, self._silences.silence):
            verdict = judge(lookup)
            if verdict.outcome is not Outcome.OK:
                return verdict
            excused |= verdict.excused
        if fault is not None:
            why = f"{fault.worker}/{fault.rank}: {fault.why}"
            return Verdict(Outcome.WRONG_FLAGGED, why, fault.worker, fault.rank)
        return Verdict(Outcome.OK, excused=excused)

    def _count(self, lookup: Lookup, verdict: Verdict) -> None:
        counts = self.counts
        counts.lookups += 1
        counts.answered += lookup.status == 200
        counts.refused += lookup.status != 200
        counts.credits += len(lookup.credits)
        counts.flagged_credits += sum(credit.flagged for credit in lookup.credits)
        counts.absences += lookup.complete
        counts.excused += verdict.excused
        counts.excluded.update(one.reason for one in lookup.exclusions)
        counts.outcomes[verdict.outcome] += 1
