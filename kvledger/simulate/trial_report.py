"""What a trial found, for people and as one line for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from kvledger.simulate.fault import Strike
from kvledger.simulate.report import percentile


@dataclass(frozen=True, slots=True)
class TrialReport:
    """One trial of a scenario under one seed.

    `answered_in_bound` counts lookups answered 200 within the scenario's bound, of `lookups`; what the
    checker found is in `wrong_unflagged`, `unjustified_refusals`, `unjustified_exclusions` and
    `unjustified_silences`;
    `lost_events` says for each stream whose fold isn't what its engine holds how; `unrepaired` has a line
    for each fault that wasn't repaired by its deadline; `failed` says why a trial could not go on.
    No violations: `wrong_flagged` answers were wrong and said themselves not to rely on them, `excused`
    lookups are right only because something was disturbed; `strict_share` of all were judged without any
    excuse. `folds` counts streams by what their end is. `whys` are the first violations in words,
    `explanations` those of the checker with their records.
    """

    scenario: str
    seed: int
    elapsed_s: float
    requests: int
    events: int
    lookups: int
    answered_in_bound: int
    refused: int
    wrong_unflagged: int
    unjustified_refusals: int
    unjustified_exclusions: int
    unjustified_silences: int
    wrong_flagged: int = 0
    excused: int = 0
    failed: str = ""
    strikes: tuple[Strike, ...] = ()
    unrepaired: tuple[str, ...] = ()
    lost_events: tuple[str, ...] = ()
    excluded: Mapping[str, int] = field(default_factory=dict)
    folds: Mapping[str, int] = field(default_factory=dict)
    lookup_p50_ms: float | None = None
    lookup_p99_ms: float | None = None
    host_slow_s: float = 0.0
    strict_share: float | None = None
    whys: tuple[str, ...] = ()
    explanations: tuple[Mapping[str, object], ...] = ()
    journal: tuple[str, ...] = ()

    @property
    def violations(self) -> int:
        """0 means that the trial is passed."""
        return (
            self.wrong_unflagged
            + self.unjustified_refusals
            + self.unjustified_exclusions
            + self.unjustified_silences
            + len(self.unrepaired)
            + len(self.lost_events)
            + bool(self.failed)
        )

    @property
    def in_bound_share(self) -> float:
        """Share of lookups that were answered within the bound; 1 without lookups."""
        return self.answered_in_bound / self.lookups if self.lookups else 1.0

    @property
    def repairs_s(self) -> list[float]:
        """Times from the end of each trouble to its repair."""
        return [strike.repair_s for strike in self.strikes if strike.repair_s is not None]

    def document(self) -> dict[str, object]:
        """All fields and what follows from them, ready for JSON."""
        struck: dict[str, int] = {}
        for strike in self.strikes:
            struck[strike.name] = struck.get(strike.name, 0) + 1
        fields = asdict(self)
        fields.update(
            violations=self.violations,
            in_bound_share=round(self.in_bound_share, 5),
            struck=struck,
            repair_p50_s=_rounded(percentile(self.repairs_s, 0.5)),
            repair_max_s=_rounded(max(self.repairs_s, default=None)),
            elapsed_s=round(self.elapsed_s, 2),
            host_slow_s=round(self.host_slow_s, 2),
        )
        return fields

    def json_line(self) -> str:
        """`document` as one line without a line end."""
        return json.dumps(self.document(), separators=(",", ":"))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
