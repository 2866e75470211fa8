"""`kvledger simulate`: simulated workers on a running stack, to look at it with."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvledger.command.soak import seconds
from kvledger.failure import CommandError, ExitCode
from kvledger.settings import Settings, load_settings
from kvledger.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from kvledger.simulate.fleet_plan import FleetPlan
    from kvledger.simulate.rest import RestClient
    from kvledger.simulate.trace import TraceRequest

TRIAL_S = 8.0


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("simulate")(simulate)


def simulate(
    workers: Annotated[
        int | None, typer.Option(min=1, max=64, help="simulated workers [default: 4; 2 with a bridge]")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Mooncake's JSON lines or the run-length form; default: generated")
    ] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="stop after so many; default: all")] = None,
    rate: Annotated[float, typer.Option(min=0, help="requests a second; 0: as fast as it goes")] = 20.0,
    capacity: Annotated[
        int | None, typer.Option(min=64, help="blocks in each rank's pool [default: 2000; 400 with a bridge]")
    ] = None,
    bound: Annotated[
        float | None,
        typer.Option(min=0, help="staleness bound of its lookups in ms [default: 1000; 500 with faults]"),
    ] = None,
    stay: Annotated[bool, typer.Option("--stay", help="keep the workers up after the last request")] = False,
    seed: Annotated[int, typer.Option(help="of the generated workload, and of the faults' schedule")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="end with one line of JSON on stdout")] = False,
    ranks: Annotated[
        int | None, typer.Option(min=1, max=16, help="ranks of each worker [default: 1; 2 with a bridge]")
    ] = None,
    tiers: Annotated[str, typer.Option(help="gpu, or gpu,cpu with an offloading connector")] = "gpu",
    attachment: Annotated[
        str | None,
        typer.Option(
            help="direct: fed in this process; bridge: over ZMQ, as vLLM is [default: bridge with faults]"
        ),
    ] = None,
    fault: Annotated[list[str] | None, typer.Option(help="strike with it; may be given repeatedly")] = None,
    seeds: Annotated[str | None, typer.Option(help="one trial each, such as 1-10; instead of --seed")] = None,
    duration: Annotated[
        float | None,
        typer.Option(
            parser=seconds,
            metavar="DURATION",
            help="how long a trial or a soak strikes, such as 90s or 30m [default: 8s; 30m with --soak]",
        ),
    ] = None,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="the ten faults of a release, each under --seeds (default 1-10)")
    ] = False,
    soak: Annotated[
        bool,
        typer.Option("--soak", help="on a stack of its own: every fault there is, those of processes too"),
    ] = False,
    history: Annotated[
        Path | None, typer.Option(help="record each trial in this folder, to be judged again by --check")
    ] = None,
    check: Annotated[Path | None, typer.Option(help="judge a recorded trial again, and end")] = None,
    list_faults: Annotated[bool, typer.Option("--list-faults", help="name all faults and end")] = False,
) -> None:
    """Run simulated workers against the running stack, each request routed by a real lookup.

    Until the trace ends or Ctrl-C; then every stream is closed. While it runs, ask the lookup service, look
    at the SQL views, delete a tenant. With --fault, --seeds or --matrix it is a trial: faults strike, every
    answer, refusal and exclusion is judged, and at the end the log must be what the engines hold. Exit code 1
    if an answer was wrong and unflagged, or a trial found any violation.

    Example: kvledger simulate --workers 4 --rate 20 --stay

    Example: kvledger simulate --fault hook-killed --seeds 1-3

    Example: kvledger simulate --soak --duration 30m --seed 7
    """
    from rich.console import Console

    from kvledger.command import soak as soaking
    from kvledger.command import trial
    from kvledger.stack.own import log_to_file

    console = Console(stderr=as_json, highlight=False)
    if list_faults:
        trial.list_faults()
        return
    if check is not None:
        trial.check(check, console, as_json=as_json)
        return
    if soak:
        if trace is not None or stay or matrix or seeds is not None:
            raise CommandError("--trace, --stay, --seeds and --matrix don't go with --soak")
        soaking.run(seed, duration, tuple(fault or ()), console, as_json=as_json)
        return
    tried = matrix or bool(fault) or seeds is not None or history is not None
    plan = trial.plan_of(workers, ranks, tiers, attachment or ("bridge" if tried else "direct"), capacity)
    settings = load_settings()
    log_to_file(settings.home, "simulate")
    if tried:
        if stay:
            raise CommandError("--stay doesn't go with --fault, --seeds or --matrix")
        asked = trial.Asked(
            tuple(fault or ()),
            seeds,
            seed,
            duration or TRIAL_S,
            requests,
            min(rate, 50.0) or 50.0,
            bound,
            matrix,
            history,
            trace,
        )
        trial.run(settings, plan, asked, console, as_json=as_json)
        return
    source, total, tenants = _source(trace, requests, seed)
    counts = asyncio.run(
        _run(settings, plan, source, total, tenants, rate or None, bound or 1000.0, stay, console)
    )
    if as_json:
        typer.echo(json.dumps(counts))
    if counts["wrong_unflagged"]:
        raise CommandError(f"{counts['wrong_unflagged']} answers were wrong and unflagged")


def _source(
    trace: Path | None, requests: int | None, seed: int
) -> tuple[Callable[[], Iterator[TraceRequest]], int | None, tuple[str, ...]]:
    """What gives the requests, how many they are if that is known, and whose."""
    from kvledger.simulate.trace import read_trace, survey_trace
    from kvledger.simulate.workload import WorkloadSettings, generate

    tenants = tuple(WorkloadSettings().tenants)
    if trace is None:
        work = WorkloadSettings(requests=requests or 1_000_000_000, seed=seed)
        return lambda: generate(work), requests, tenants
    survey = survey_trace(trace, tenants=tenants, limit=requests)
    return lambda: read_trace(trace, tenants=tenants, limit=requests), survey.requests, survey.tenants


async def _run(
    settings: Settings,
    plan: FleetPlan,
    source: Callable[[], Iterator[TraceRequest]],
    total: int | None,
    tenants: tuple[str, ...],
    rate: float | None,
    bound_ms: float,
    stay: bool,
    console: Console,
) -> dict[str, int | float]:
    from kvledger.control import or_unavailable
    from kvledger.demonstration.stage import Stage
    from kvledger.simulate.asker import TRANSIT_MS, Asker
    from kvledger.simulate.checker import Checker
    from kvledger.simulate.fleet_plan import MODEL
    from kvledger.simulate.launch import running_fleet
    from kvledger.simulate.replay import Replay, ReplayPace
    from kvledger.simulate.rest import RestClient

    url = f"http://127.0.0.1:{settings.lookup_port}"
    rest = RestClient(url, connections=4)
    end_as_interrupted()

    async def work() -> dict[str, int | float]:
        await require_service(rest, url)
        async with running_fleet(settings, plan, tenants) as fleet:
            asker = Asker(fleet, rest, Checker(fleet.truth, transit_ms=TRANSIT_MS))
            stage = Stage(console)
            stage.say(
                f"model {MODEL} served by {counted(plan.workers, 'worker')} for {', '.join(tenants)}; lookups at {url}"
            )
            with stage.progress(total, "requests") as bar:

                def advanced(done: int) -> None:
                    bar(done, f"wrong {asker.tally.wrong_unflagged}, refused {asker.tally.refused}")

                replay = Replay(fleet, asker, ReplayPace(bound_ms=bound_ms, rate=rate), advanced=advanced)
                try:
                    await replay.run(source())
                    if stay:
                        stage.say("The trace has ended; the workers stay until Ctrl-C.")
                        await asyncio.Event().wait()
                except asyncio.CancelledError:
                    stage.say("closing all streams …")
                    raise
            return {
                "requests": replay.counts.requests,
                "events": sum(worker.events for worker in fleet.workers),
                "blocks_stored": sum(worker.engine.blocks_stored for worker in fleet.workers),
                "lookups": asker.tally.lookups,
                "lookups_refused": asker.tally.refused,
                "wrong_unflagged": asker.tally.wrong_unflagged,
            }

    try:
        return await or_unavailable(work)
    finally:
        await rest.close()


def end_as_interrupted() -> None:
    """From now on SIGTERM ends this process as Ctrl-C does: streams are closed before it goes."""
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


async def require_service(rest: RestClient, url: str) -> None:
    """Raises CommandError unless the lookup service answers and is ready."""
    from kvledger.simulate.rest import RestError

    try:
        reply = await rest.get("/readyz")
    except RestError as error:
        raise CommandError(
            f"no lookup service answers at {url}",
            advice="start the stack with `kvledger up`",
            exit_code=ExitCode.UNAVAILABLE,
        ) from error
    if reply.status != 200:
        raise CommandError(
            f"the lookup service at {url} is not ready",
            advice="see `kvledger status` and `kvledger logs serve`",
            exit_code=ExitCode.UNAVAILABLE,
        )
