"""Judges a recorded history again, by the rules of today; `python -m kvledger.simulate.recheck FILE`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvledger.simulate.checker import Checker
from kvledger.simulate.history import HistoryError, RecordedRun
from kvledger.simulate.lookup import Outcome


@dataclass(frozen=True, slots=True)
class Recheck:
    """The checker with its counts and explanations; `different`: (number of the lookup from 0, outcome on
    record, outcome now) where the two differ."""

    checker: Checker
    different: tuple[tuple[int, str, str], ...]

    @property
    def wrong(self) -> int:
        """Lookups that must not be: whatever isn't right, but for what the answers themselves flagged."""
        outcomes = self.checker.counts.outcomes
        return outcomes.total() - outcomes[Outcome.OK] - outcomes[Outcome.WRONG_FLAGGED]

    def document(self) -> dict[str, Any]:
        """For programs; only JSON's types."""
        counts = self.checker.counts
        return {
            "lookups": counts.lookups,
            "refused": counts.refused,
            "credits": counts.credits,
            "absences": counts.absences,
            "excused": counts.excused,
            "strict_share": counts.strict_share,
            "outcomes": {outcome.value: count for outcome, count in counts.outcomes.items()},
            "excluded": dict(counts.excluded),
            "different": [list(one) for one in self.different],
            "explanations": [one.document() for one in self.checker.explanations],
        }

    def lines(self) -> list[str]:
        """For people."""
        counts = self.checker.counts
        strict = "-" if counts.strict_share is None else f"{counts.strict_share:.1%}"
        out = [f"{counts.lookups} lookups, {strict} judged without any excuse; {counts.refused} refused"]
        out += [f"{outcome.value}: {count}" for outcome, count in sorted(counts.outcomes.items())]
        out += [f"lookup {number} was {before}, is {now} now" for number, before, now in self.different]
        return out + [line for one in self.checker.explanations for line in one.lines()]


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


def main(arguments: Sequence[str]) -> int:
    """0: nothing is wrong; 1: something is; 2: the file can't be judged."""
    names = [one for one in arguments if one != "--json"]
    if len(names) != 1:
        sys.stderr.write("usage: python -m kvledger.simulate.recheck [--json] FILE\n")
        return 2
    try:
        found = recheck(Path(names[0]))
    except (HistoryError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    told = [json.dumps(found.document())] if "--json" in arguments else found.lines()
    sys.stdout.write("\n".join(told) + "\n")
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
