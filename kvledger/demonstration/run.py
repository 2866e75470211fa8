"""The whole demonstration: stack up, trace through it, scenes, one screen at the end, stack down."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kvledger.demonstration import bound, deletion, loss, quota, restart
from kvledger.demonstration.cast import BOUND_MS, Cast
from kvledger.demonstration.stage import Stage
from kvledger.failure import CommandError
from kvledger.settings import Settings
from kvledger.simulate.asker import TRANSIT_MS, Asker
from kvledger.simulate.checker import Checker
from kvledger.simulate.fleet import Fleet
from kvledger.simulate.fleet_plan import FleetPlan
from kvledger.simulate.launch import running_fleet
from kvledger.simulate.replay import Replay, ReplayPace
from kvledger.simulate.report import RunSummary, percentile
from kvledger.simulate.rest import RestClient
from kvledger.simulate.routing import HitRate, simulate_round_robin
from kvledger.simulate.trace import TraceRequest
from kvledger.simulate.visibility import VisibilityProbe
from kvledger.stack import session
from kvledger.stack.own import FREE_PORTS, in_force, log_to_file
from kvledger.stack.plan import Extent
from kvledger.stack.state import Endpoints, Home

LANES = 4
SHOW_EVERY = 20


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """What is shown. `requests` gives the same trace each time it is called; `total` its length if known."""

    name: str
    requests: Callable[[], Iterator[TraceRequest]]
    total: int | None
    tenants: tuple[str, ...]
    fleet: FleetPlan
    rate: float | None


@dataclass(slots=True)
class _RoundRobin:
    """The comparison, computed while services start; a daemon, so that it never holds up an interruption."""

    plan: DemoPlan
    result: HitRate | None = None
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        fleet = self.plan.fleet
        self.result = simulate_round_robin(
            self.plan.requests(),
            fleet.workers,
            fleet.capacity_blocks,
            block_size=fleet.block_tokens,
            expand=fleet.expand,
            slots=fleet.slots,
        )

    async def rate(self) -> float:
        await asyncio.to_thread(self._thread.join)
        return self.result.rate if self.result is not None else 0.0


def own_stack(settings: Settings) -> Settings:
    """Settings of a stack that is the demonstration's own: a fresh home below the usual one and free ports,
    so that it meets neither data nor processes of anybody else. What the settings name outside is used.

    Raises CommandError while another demonstration runs there.
    """
    mine = settings.model_copy(update={**FREE_PORTS, "home": settings.home / "demo"})
    if not settings.home.exists():
        # So that `kvledger down --wipe` knows the folder as ours even if nothing else was ever started here.
        settings.home.mkdir(parents=True)
        Home(settings.home).marker.write_text(f"{Home.FORMAT}\n")
    home = Home(mine.home)
    state = home.read_state()
    if state is not None and state.supervisor.is_alive():
        raise CommandError(
            f"another demonstration runs in {mine.home}", advice="wait for its end, or press Ctrl-C there"
        )
    session.stop(mine)
    session.wipe(home)
    return mine


def run_demo(settings: Settings, plan: DemoPlan, stage: Stage) -> RunSummary:
    """Runs it all; interrupted at any moment it leaves no process behind.

    Raises StackError, CommandError, FleetError, SceneError and TraceError.
    """
    mine = own_stack(settings)
    comparison = _RoundRobin(plan)
    began_s = time.monotonic()
    log_to_file(mine.home, "demo")
    stage.say(f"Starting Kafka, PostgreSQL and kvledger in {mine.home} …")
    with session.running_stack(mine, extent=Extent.ALL, progress=lambda line: stage.say(f"  {line}")) as at:
        stage.say(f"  ready after {time.monotonic() - began_s:.1f} s: lookup service at {at.lookup_url}")
        try:
            summary = asyncio.run(_perform(in_force(mine, at), at, plan, stage, comparison))
        except KeyboardInterrupt:
            stage.say("Interrupted; stopping everything …")
            raise
        stage.summary(summary)
        stage.say("Stopping …")
    stage.say(f"Logs and data stay in {mine.home} until the next demonstration; all processes have ended.")
    return summary


async def _perform(
    settings: Settings, at: Endpoints, plan: DemoPlan, stage: Stage, comparison: _RoundRobin
) -> RunSummary:
    async with running_fleet(settings, plan.fleet, plan.tenants) as fleet:
        rest = RestClient(at.lookup_url, connections=LANES + 2)
        try:
            asker = Asker(fleet, rest, Checker(fleet.truth, transit_ms=TRANSIT_MS))
            probe = VisibilityProbe(fleet, asker)
            summary = await _replay(plan, stage, fleet, asker, probe)
            verdict = await _scenes(Cast(settings, at, fleet, rest, asker, stage), plan.tenants)
            await fleet.settle()
            return summary(await comparison.rate(), verdict)
        finally:
            await rest.close()


async def _replay(
    plan: DemoPlan, stage: Stage, fleet: Fleet, asker: Asker, probe: VisibilityProbe
) -> Callable[[float, str], RunSummary]:
    """Replays the trace; what is returned makes the summary from what only the end knows."""
    stage.scene(
        f"{plan.name}, {plan.fleet.workers} workers",
        f"Each request is routed by a real lookup, which may be {BOUND_MS:.0f} ms old. Every answer is checked"
        f" against what the engines really held. Pools of {plan.fleet.capacity_blocks} blocks.",
    )
    began_s = time.monotonic()
    with stage.progress(plan.total, "requests") as bar:
        since = 0

        def advanced(done: int) -> None:
            nonlocal since
            since += done
            if since >= SHOW_EVERY:
                bar(since, _how(fleet, asker))
                since = 0

        replay = Replay(
            fleet,
            asker,
            ReplayPace(bound_ms=BOUND_MS, lanes=LANES, rate=plan.rate),
            probe=probe,
            advanced=advanced,
        )
        await replay.run(plan.requests())
        bar(since, _how(fleet, asker))
    await probe.stop()
    elapsed_s = time.monotonic() - began_s
    tally, workers = asker.tally, fleet.workers
    asked = sum(worker.asked_tokens for worker in workers)
    hit = sum(worker.hit_tokens for worker in workers)
    requests = replay.counts.requests
    latency_ms, visible_ms = list(tally.latency_ms), list(probe.seen.delay_ms)

    def summary(round_robin_hit_rate: float, verdict: str) -> RunSummary:
        return RunSummary(
            trace=plan.name,
            workers=len(workers),
            elapsed_s=elapsed_s,
            requests=requests,
            events=sum(worker.events for worker in workers),
            blocks_stored=sum(worker.engine.blocks_stored for worker in workers),
            blocks_evicted=sum(worker.engine.blocks_evicted for worker in workers),
            hit_rate=hit / asked if asked else 0.0,
            round_robin_hit_rate=round_robin_hit_rate,
            lookups=tally.lookups,
            lookups_refused=tally.refused,
            unjustified_refusals=tally.unjustified_refusals,
            wrong_unflagged=tally.wrong_unflagged,
            lookup_p50_ms=percentile(latency_ms, 0.5),
            lookup_p99_ms=percentile(latency_ms, 0.99),
            visible_p50_ms=percentile(visible_ms, 0.5),
            visible_p99_ms=percentile(visible_ms, 0.99),
            verdict=verdict,
            whys=tuple(tally.whys),
        )

    return summary


async def _scenes(cast: Cast, tenants: tuple[str, ...]) -> str:
    first, second, last = tenants[0], tenants[1 % len(tenants)], tenants[-1]
    await bound.play(cast, first)
    await restart.play(cast, first)
    await loss.play(cast, second)
    await quota.play(cast, second)
    return await deletion.play(cast, last)


def _how(fleet: Fleet, asker: Asker) -> str:
    asked = sum(worker.asked_tokens for worker in fleet.workers)
    hit = sum(worker.hit_tokens for worker in fleet.workers)
    recent = percentile(asker.tally.latency_ms[-200:], 0.5)
    return (
        f"hits {hit / asked if asked else 0:.0%}, lookup {recent or 0:.1f} ms,"
        f" wrong {asker.tally.wrong_unflagged}"
    )
