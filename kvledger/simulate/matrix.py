"""Trials one after another, and what they say together: by fault, in a table and as one line."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from events.errors import KvledgerError
from kvledger.settings import Settings
from kvledger.simulate.fleet_plan import Attachment, FleetPlan
from kvledger.simulate.report import percentile
from kvledger.simulate.scenario import Scenario
from kvledger.simulate.trial import run_trial
from kvledger.simulate.trial_report import TrialReport
from kvledger.simulate.trouble.roster import make_faults, plan_for

TRIAL_PLAN = FleetPlan(workers=2, ranks=2, capacity_blocks=400, attachment=Attachment.BRIDGE)
TRIAL_RATE = 20.0


class SeedsError(KvledgerError):
    """What was given is no list of seeds such as `1-10` or `3,7`."""


def read_seeds(text: str) -> tuple[int, ...]:
    """`1-10`, `3,7` or a mixture. Raises SeedsError."""
    seeds: list[int] = []
    for piece in text.split(","):
        first, dash, last = piece.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise SeedsError(f"{piece.strip()!r} is no seed and no range of seeds")
        some = range(int(first), int(last if dash else first) + 1)
        if not some:
            raise SeedsError(f"{piece.strip()!r} has no seed in it")
        seeds += some
    return tuple(seeds)


def scenario_of(
    names: tuple[str, ...], plan: FleetPlan, *, rate: float, bound_ms: float, trace: Path | None = None
) -> Scenario:
    """Those faults in turn on that fleet, under a generated workload or a trace.

    Raises UnknownFaultError, UnsuitablePlanError.
    """
    make_faults(names)
    return Scenario(
        name="+".join(names),
        plan=plan_for(names, plan),
        make_faults=lambda: make_faults(names),
        rate=rate,
        bound_ms=bound_ms,
        trace=trace,
    )


async def trials(
    settings: Settings,
    scenarios: Sequence[Scenario],
    seeds: Sequence[int],
    *,
    duration_s: float,
    requests: int | None = None,
    histories: Path | None = None,
) -> AsyncIterator[TrialReport]:
    """Each scenario under each seed, one after the other on the running stack; each one's history goes into
    that folder, if there is one. Raises as `run_trial`."""
    for scenario in scenarios:
        for seed in seeds:
            path = None if histories is None else histories / f"{scenario.name}-{seed}.jsonl.gz"
            yield await run_trial(
                settings, scenario, seed, duration_s=duration_s, requests=requests, history=path
            )


@dataclass(slots=True)
class Matrix:
    """Adds up trials by scenario, in the order in which they came. `in_bound` is the share of lookups that
    were answered at once within the bound, `strict` that of those that were judged without any excuse."""

    reports: dict[str, list[TrialReport]] = field(default_factory=dict)

    def add(self, report: TrialReport) -> None:
        """Counts one trial."""
        self.reports.setdefault(report.scenario, []).append(report)

    @property
    def violations(self) -> int:
        """Of all trials."""
        return sum(report.violations for some in self.reports.values() for report in some)

    def rows(self) -> list[dict[str, object]]:
        """One document a scenario."""
        return [_row(name, reports) for name, reports in self.reports.items()]

    def json_line(self) -> str:
        """Everything as one line without a line end."""
        return json.dumps({"violations": self.violations, "faults": self.rows()}, separators=(",", ":"))

    def table(self) -> Table:
        """For people."""
        table = Table(box=None, header_style="dim", pad_edge=False)
        rows = self.rows()
        for title in rows[0] if rows else ():
            left = title == "fault"
            table.add_column(title.replace("_", " "), justify="left" if left else "right", no_wrap=left)
        for row in rows:
            table.add_row(*("-" if value is None else str(value) for value in row.values()))
        return table


def _row(name: str, reports: Sequence[TrialReport]) -> dict[str, object]:
    repairs = [one for report in reports for one in report.repairs_s]
    lookups = sum(report.lookups for report in reports)
    answered = sum(report.answered_in_bound for report in reports)
    p50 = percentile(repairs, 0.5)
    strict = [(report.strict_share or 0.0) * report.lookups for report in reports]
    return {
        "fault": name,
        "seeds": len(reports),
        "strikes": sum(len(report.strikes) for report in reports),
        "lookups": lookups,
        "in_bound": f"{answered / lookups:.2%}" if lookups else None,
        "strict": f"{sum(strict) / lookups:.0%}" if lookups else None,
        "wrong": sum(report.wrong_unflagged for report in reports),
        "refused_wrongly": sum(report.unjustified_refusals for report in reports),
        "excluded_wrongly": sum(report.unjustified_exclusions for report in reports),
        "silent_wrongly": sum(report.unjustified_silences for report in reports),
        "unrepaired": sum(len(report.unrepaired) for report in reports),
        "lost": sum(len(report.lost_events) for report in reports),
        "failed": sum(bool(report.failed) for report in reports),
        "repair_p50_s": None if p50 is None else round(p50, 2),
        "repair_max_s": round(max(repairs), 2) if repairs else None,
        "host_slow_s": round(sum(report.host_slow_s for report in reports), 1),
    }
