"""`kvledger demo`: a real trace through everything, on this machine, in about a minute."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvledger.failure import CommandError, ExitCode
from kvledger.settings import configured_settings

if TYPE_CHECKING:
    from kvledger.demonstration.run import DemoPlan

DEFAULT_REQUESTS = 1500
FULL_REQUESTS = 12_000
DEFAULT_RATE = 60.0
FULL_RATE = 100.0
WIDTH_UNKNOWN = 110


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("demo")(demo)


def demo(
    trace: Annotated[
        Path | None, typer.Option(help="Mooncake's JSON lines or the run-length form, gzipped or not")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="the whole trace, however long it takes")] = False,
    requests: Annotated[
        int | None, typer.Option(min=1, help=f"how much of it; default {DEFAULT_REQUESTS}")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=2, max=64, help="simulated workers")] = None,
    capacity: Annotated[
        int | None, typer.Option(min=64, help="blocks in each worker's pool; a trace's id is one block")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(min=0, help="requests a second; 0: as fast as it goes; default 60, with --full 100"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="end with one line of JSON on stdout")] = False,
) -> None:
    """Replay a request trace through simulated workers on a stack of its own, and show what kvledger promises.

    Each worker is a real hook that writes to a real Kafka; each request is routed by a real REST lookup, and
    every answer is checked against what the engines really held. Then: a refused lookup, a restart, a lost
    record, a quota, a deletion with its proof. Stops everything it started, also on Ctrl-C. Without --trace a
    generated workload of chats and agents. Exit code 1 if an answer was wrong and unflagged, or the deletion
    isn't PROVEN.

    Example: kvledger demo --trace mooncake_conversation.jsonl.gz --full
    """
    from rich.console import Console

    from kvledger.demonstration.run import run_demo
    from kvledger.demonstration.stage import Stage

    chosen = rate if rate is not None else FULL_RATE if full else DEFAULT_RATE
    plan = _plan(trace, full, requests, workers, capacity, chosen)
    settings = configured_settings()
    console = Console(stderr=as_json, highlight=False)
    if not console.is_terminal:
        console.width = WIDTH_UNKNOWN
    stage = Stage(console)
    summary = run_demo(settings, plan, stage)
    if as_json:
        typer.echo(summary.json_line())
    if summary.wrong_unflagged:
        raise CommandError(
            f"{summary.wrong_unflagged} answers were wrong and unflagged; the first: {summary.whys[0]}",
            exit_code=ExitCode.FAILED,
        )
    if summary.verdict != "PROVEN":
        raise CommandError(f"the deletion is {summary.verdict}", exit_code=ExitCode.FAILED)


def _plan(
    trace: Path | None,
    full: bool,
    requests: int | None,
    workers: int | None,
    capacity: int | None,
    rate: float,
) -> DemoPlan:
    from kvledger.demonstration.run import DemoPlan
    from kvledger.simulate.fleet_plan import FleetPlan
    from kvledger.simulate.trace import read_trace, survey_trace
    from kvledger.simulate.workload import WorkloadSettings, generate

    tenants = WorkloadSettings().tenants
    pace = rate or None
    if trace is None:
        count = requests or (FULL_REQUESTS if full else DEFAULT_REQUESTS)
        work = WorkloadSettings(requests=count)
        fleet = FleetPlan(workers=workers or 4, capacity_blocks=capacity or 1000)
        return DemoPlan(
            "Generated chats and agents", lambda: generate(work), count, tuple(tenants), fleet, pace
        )
    limit = None if full and requests is None else requests or DEFAULT_REQUESTS
    # Read once before anything is started: a bad file fails here, with its line.
    survey = survey_trace(trace, tenants=tenants, limit=limit)
    fleet = FleetPlan(workers=workers or 8, capacity_blocks=capacity or 3000)
    return DemoPlan(
        trace.name,
        lambda: read_trace(trace, tenants=tenants, limit=limit),
        survey.requests,
        survey.tenants,
        fleet,
        pace,
    )
