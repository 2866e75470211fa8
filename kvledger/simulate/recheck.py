"""Judges a recorded history again, by the rules of today."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvledger.simulate.checker import Checker
from kvledger.simulate.history import RecordedRun


@dataclass(frozen=True, slots=True)
class Recheck:
    """The checker with its counts and explanations; `different`: (number of the lookup from 0, outcome on
    record, outcome now) where the two differ."""

    checker: Checker
    different: tuple[tuple[int, str, str], ...]


def recheck(path: Path) -> Recheck:
    """Takes seconds for a run of minutes. Raises HistoryError, and OSError if there is no such file."""
    run = RecordedRun(path)
    allowed = run.allowance
    checker = Checker(
        run.truth,
        floor_ms=allowed.floor_ms,
        transit_ms=allowed.transit_ms,
        beacon_ms=allowed.beacon_ms,
        settle_ms=allowed.settle_ms,
        silent_ms=allowed.silent_ms,
    )
    different: list[tuple[int, str, str]] = []
    for number, (lookup, before) in enumerate(run.lookups()):
        now = checker.check(lookup)
        if now.outcome is not before.outcome:
            different.append((number, before.outcome.value, now.outcome.value))
    return Recheck(checker, tuple(different))
