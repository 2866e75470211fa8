"""The trials of `kvledger simulate`: faults by name, seeds, the matrix, and how they are told."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kvledger.failure import CommandError
from kvledger.wording import counted

if TYPE_CHECKING:
    from rich.console import Console

    from kvledger.settings import Settings
    from kvledger.simulate.fleet_plan import FleetPlan
    from kvledger.simulate.matrix import Matrix
    from kvledger.simulate.scenario import Scenario
    from kvledger.simulate.trial_report import TrialReport

JOURNAL_LINES = 40
TABLE_WIDTH = 150
WHY_LINES = 60
BOUND_MS = 500.0


@dataclass(frozen=True, slots=True)
class Asked:
    """What the options ask for; `seeds` None is `seed` alone, or 1 to 10 with `matrix`."""

    faults: tuple[str, ...]
    seeds: str | None
    seed: int
    duration_s: float
    requests: int | None
    rate: float
    bound_ms: float | None
    matrix: bool
    histories: Path | None = None
    trace: Path | None = None


def check(path: Path, console: Console, *, as_json: bool) -> None:
    """Judges a recorded trial again; raises CommandError if it can't be or anything is wrong."""
    import json

    from kvledger.simulate.history import HistoryError
    from kvledger.simulate.recheck import recheck

    try:
        found = recheck(path)
    except (HistoryError, OSError) as error:
        raise CommandError(str(error), advice="give a file that --history wrote") from error
    for line in found.lines():
        console.print(line, markup=False, soft_wrap=True)
    if as_json:
        typer.echo(json.dumps(found.document()))
    if found.wrong:
        raise CommandError(counted(found.wrong, "violation"))


def list_faults() -> None:
    """Every fault's name and what it is, one a line on stdout."""
    from kvledger.simulate.nemesis.registry import process_faults
    from kvledger.simulate.trouble.roster import ROSTER

    of_processes = process_faults()
    width = max(map(len, (*ROSTER, *of_processes)))
    for name, listed in ROSTER.items():
        typer.echo(f"{name:<{width}}  {listed.about}")
    for name, fault in of_processes.items():
        about = (type(fault).__doc__ or "").strip().split(". ")[0].splitlines()[0].rstrip(".")
        typer.echo(f"{name:<{width}}  only with --soak: {about}")


def plan_of(
    workers: int | None, ranks: int | None, tiers: str, attachment: str, capacity: int | None
) -> FleetPlan:
    """The fleet that the options describe. Raises CommandError."""
    from kvledger.simulate.fleet_plan import Attachment, FleetPlan
    from kvledger.simulate.matrix import TRIAL_PLAN

    try:
        attached = Attachment(attachment)
    except ValueError as error:
        raise CommandError(f"--attachment is direct or bridge, not {attachment}") from error
    if tiers not in ("gpu", "gpu,cpu"):
        raise CommandError(f"--tiers is gpu or gpu,cpu, not {tiers}")
    bridged = attached is Attachment.BRIDGE
    blocks = capacity or (TRIAL_PLAN.capacity_blocks if bridged else 2000)
    return FleetPlan(
        workers=workers or (TRIAL_PLAN.workers if bridged else 4),
        ranks=ranks or (TRIAL_PLAN.ranks if bridged else 1),
        capacity_blocks=blocks,
        cpu_blocks=2 * blocks if tiers == "gpu,cpu" else 0,
        attachment=attached,
    )


def run(settings: Settings, plan: FleetPlan, asked: Asked, console: Console, *, as_json: bool) -> None:
    """Plays all trials; raises CommandError if any found a violation."""
    from events.errors import KvledgerError
    from kvledger.control import or_unavailable
    from kvledger.simulate.matrix import Matrix, read_seeds, scenario_of
    from kvledger.simulate.trouble.roster import MATRIX

    try:
        seeds = read_seeds(asked.seeds or ("1-10" if asked.matrix else str(asked.seed)))
        rows = [(name,) for name in MATRIX] if asked.matrix else [asked.faults or ("healthy",)]
        bound_ms = BOUND_MS if asked.bound_ms is None else asked.bound_ms
        scenarios = [
            scenario_of(names, plan, rate=asked.rate, bound_ms=bound_ms, trace=asked.trace) for names in rows
        ]
    except KvledgerError as error:
        raise CommandError(str(error), advice="see `kvledger simulate --list-faults`") from error
    if asked.histories is not None:
        asked.histories.mkdir(parents=True, exist_ok=True)
    table = Matrix()
    asyncio.run(
        or_unavailable(lambda: _play(settings, scenarios, seeds, asked, table, console, as_json=as_json))
    )
    if asked.matrix or len(seeds) > 1:
        console.width = max(console.width, TABLE_WIDTH)
        console.print(table.table())
    if as_json and asked.matrix:
        typer.echo(table.json_line())
    if table.violations:
        raise CommandError(f"{counted(table.violations, 'violation')}; see the journal of the trial")


async def _play(
    settings: Settings,
    scenarios: list[Scenario],
    seeds: tuple[int, ...],
    asked: Asked,
    table: Matrix,
    console: Console,
    *,
    as_json: bool,
) -> None:
    from kvledger.command.simulate import require_service
    from kvledger.simulate.matrix import trials
    from kvledger.simulate.rest import RestClient

    url = f"http://127.0.0.1:{settings.lookup_port}"
    rest = RestClient(url)
    try:
        await require_service(rest, url)
    finally:
        await rest.close()
    async for report in trials(
        settings,
        scenarios,
        seeds,
        duration_s=asked.duration_s,
        requests=asked.requests,
        histories=asked.histories,
    ):
        table.add(report)
        _tell(report, console)
        if as_json and not asked.matrix:
            typer.echo(report.json_line())


def _tell(report: TrialReport, console: Console) -> None:
    repairs = report.repairs_s
    told = f", repaired in {', '.join(f'{one:.1f}' for one in repairs)} s" if repairs else ""
    console.print(
        f"{report.scenario} seed {report.seed}: {counted(len(report.strikes), 'strike')}{told}; "
        f"{counted(report.lookups, 'lookup')}, "
        f"{report.in_bound_share:.1%} within the bound; {counted(report.violations, 'violation')}",
        style=None if report.violations == 0 else "red",
        markup=False,
        soft_wrap=True,
    )
    if report.violations:
        for line in (report.failed, *report.unrepaired, *report.lost_events, *report.whys[:WHY_LINES]):
            if line:
                console.print(f"  {line}", markup=False, soft_wrap=True)
        for line in report.journal[-JOURNAL_LINES:]:
            console.print(f"  {line}", markup=False, style="dim", soft_wrap=True)
