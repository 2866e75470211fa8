"""What a soak found: counts, shares and times by kind of fault, and every violation in words."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field

from rich.table import Table

from kvledger.simulate.fault import Strike
from kvledger.simulate.report import percentile

CALM = "none"


@dataclass(slots=True)
class SoakCounts:
    """Filled while a soak runs. `asked` and `answered` count lookups with a bound of 500 ms by the fault that
    was in force, `CALM` for none; `kills` counts SIGKILLs by fault."""

    asked: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    struck: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    repairs_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    unrepaired: list[str] = field(default_factory=list)

    def repaired(self, strike: Strike) -> None:
        """One fault is over."""
        self.struck[strike.name] += 1
        if strike.repair_s is not None:
            self.repairs_s[strike.name].append(strike.repair_s)


@dataclass(frozen=True, slots=True)
class KindReport:
    """One kind of fault. `in_bound_share` is that of lookups answered within 500 ms while it was in force
    and repaired; None if none was asked."""

    fault: str
    struck: int
    kills: int
    lookups: int
    in_bound_share: float | None
    repair_p50_s: float | None
    repair_max_s: float | None


@dataclass(frozen=True, slots=True)
class SoakReport:
    """One soak. `digest` is empty if index and log are equal, `lost_events` and `unrepaired` if nothing was
    lost and everything was repaired. `whys` has the first violations in words, `explained` the very first wrong
    answers with their records. `excused_share`: lookups that are right only because of a disturbance.
    """

    seed: int
    elapsed_s: float
    workers: int
    bridged: int
    requests: int
    events: int
    lookups: int
    refused: int
    wrong_unflagged: int
    wrong_flagged: int
    unjustified_refusals: int
    unjustified_exclusions: int
    unjustified_silences: int
    excused_share: float
    process_kills: int
    kinds: tuple[KindReport, ...]
    unrepaired: tuple[str, ...] = ()
    lost_events: tuple[str, ...] = ()
    digest: str = ""
    failed: str = ""
    host_slow_s: float = 0.0
    whys: tuple[str, ...] = ()
    explained: tuple[str, ...] = ()
    journal: tuple[str, ...] = ()
    home: str = ""

    @property
    def violations(self) -> int:
        """0 means that the soak is passed."""
        return (
            self.wrong_unflagged
            + self.unjustified_refusals
            + self.unjustified_exclusions
            + self.unjustified_silences
            + len(self.unrepaired)
            + len(self.lost_events)
            + bool(self.digest)
            + bool(self.failed)
        )

    def json_line(self) -> str:
        """All fields and `violations` as one line without a line end."""
        return json.dumps({**asdict(self), "violations": self.violations}, separators=(",", ":"))

    def tables(self) -> tuple[Table, Table]:
        """For people: the totals, and a row for each kind of fault."""
        totals = Table.grid(padding=(0, 3))
        totals.add_column(style="dim")
        totals.add_column(justify="right")
        for name, value in (
            ("seed", self.seed),
            ("seconds", round(self.elapsed_s)),
            ("workers", f"{self.workers} in process, {self.bridged} behind bridges"),
            ("requests", f"{self.requests:,}"),
            ("events", f"{self.events:,}"),
            ("lookups", f"{self.lookups:,}"),
            ("refused", f"{self.refused:,}"),
            ("excused", f"{self.excused_share:.1%}"),
            ("processes killed", f"{self.process_kills:,}"),
            ("wrong, unflagged", f"{self.wrong_unflagged:,}"),
            ("refused for no cause", f"{self.unjustified_refusals:,}"),
            ("left out for no cause", f"{self.unjustified_exclusions:,}"),
            ("silent for no cause", f"{self.unjustified_silences:,}"),
            ("not repaired", f"{len(self.unrepaired):,}"),
            ("streams with lost events", f"{len(self.lost_events):,}"),
            ("index and log", self.digest or "equal"),
            ("host stood still", f"{self.host_slow_s:.1f} s"),
        ):
            totals.add_row(name, str(value))
        kinds = Table("fault", "struck", "kills", "lookups", "in 500 ms", "repair p50", "max")
        for kind in self.kinds:
            share = "-" if kind.in_bound_share is None else f"{kind.in_bound_share:.2%}"
            kinds.add_row(
                kind.fault,
                str(kind.struck),
                str(kind.kills),
                f"{kind.lookups:,}",
                share,
                _s(kind.repair_p50_s),
                _s(kind.repair_max_s),
            )
        return totals, kinds


def kind_reports(counts: SoakCounts) -> tuple[KindReport, ...]:
    """One for each kind that was struck or asked under, by name, the calm first."""
    names = sorted({*counts.struck, *counts.asked} - {CALM})
    made: list[KindReport] = []
    for name in (CALM, *names):
        asked = counts.asked[name]
        repairs_s = counts.repairs_s.get(name, [])
        made.append(
            KindReport(
                name,
                counts.struck[name],
                counts.kills[name],
                asked,
                round(counts.answered[name] / asked, 5) if asked else None,
                _rounded(percentile(repairs_s, 0.5)),
                _rounded(max(repairs_s, default=None)),
            )
        )
    return tuple(made)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _s(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"
