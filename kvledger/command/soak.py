"""`kvledger simulate --soak`: faults of all kinds against a stack of its own, for as long as asked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import typer

from kvledger.failure import CommandError
from kvledger.settings import configured_settings
from kvledger.wording import counted

if TYPE_CHECKING:
    from rich.console import Console

DURATION_S = 1800.0
_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smh]?)")


def seconds(text: str) -> float:
    """`90`, `90s`, `30m` or `2h`; raises typer.BadParameter."""
    found = _DURATION.fullmatch(text.strip())
    if found is None or float(found[1]) <= 0:
        raise typer.BadParameter(f"{text!r} is no duration: 90, 90s, 30m or 2h")
    return float(found[1]) * _UNITS_S[found[2]]


def run(
    seed: int, duration_s: float | None, faults: tuple[str, ...], console: Console, *, as_json: bool
) -> None:
    """Runs the soak and tells what it found. Raises CommandError for any violation."""
    from kvledger.simulate.nemesis.arsenal import SoakPlan
    from kvledger.simulate.nemesis.soak import run_soak

    plan = SoakPlan(duration_s=duration_s or DURATION_S, seed=seed, only=faults)
    report = run_soak(configured_settings(), plan, lambda line: console.print(line, markup=False))
    if as_json:
        typer.echo(report.json_line())
    for table in report.tables():
        console.print(table)
    for line in (*report.whys, *report.explained, *report.unrepaired, *report.lost_events):
        console.print(line, markup=False)
    if report.failed:
        console.print(f"the fleet failed: {report.failed}", markup=False)
    if report.violations:
        raise CommandError(
            f"{counted(report.violations, 'violation')} under seed {seed}",
            advice=f"logs and data are kept in {report.home}",
        )
