"""The soak: a stack of its own, a mixed fleet, lookups all the time, and faults of all kinds one after another."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from events.errors import KvledgerError
from kvledger.settings import Settings
from kvledger.simulate.asker import TRANSIT_MS, Asker
from kvledger.simulate.checker import Checker
from kvledger.simulate.fault import Arena, Fault, Journal, UnrepairedError
from kvledger.simulate.fleet import Fleet, FleetError
from kvledger.simulate.fleet_plan import Attachment, FleetPlan
from kvledger.simulate.launch import running_fleet
from kvledger.simulate.nemesis import clock
from kvledger.simulate.nemesis.arsenal import SoakPlan, make_faults
from kvledger.simulate.nemesis.block_name import BlockNames
from kvledger.simulate.nemesis.bridged import bridged_workers
from kvledger.simulate.nemesis.direct import add_direct_workers
from kvledger.simulate.nemesis.lost import lost_events, unequal_digest
from kvledger.simulate.nemesis.schedule import schedule
from kvledger.simulate.nemesis.soak_report import CALM, SoakCounts, SoakReport, kind_reports
from kvledger.simulate.nemesis.trouble import until
from kvledger.simulate.nemesis.whole import IndexCurrent, answers_complete
from kvledger.simulate.prompt import Prompt
from kvledger.simulate.replay import Replay, ReplayPace
from kvledger.simulate.rest import RestClient
from kvledger.simulate.trace import TraceRequest
from kvledger.simulate.workload import WorkloadSettings, generate
from kvledger.stack.own import ALL_OWN, in_force, log_to_file
from kvledger.stack.plan import Extent
from kvledger.stack.session import running_stack

BOUNDS_MS: tuple[float | None, ...] = (500.0, 500.0, 500.0, 750.0, 1000.0, 2000.0, 10_000.0, None)
MEASURED_MS = 500.0
READY_S = 60.0
RECENT = 300
UNLIMITED = 1_000_000_000

Progress = Callable[[str], None]


@dataclass(slots=True)
class _Soak:
    plan: SoakPlan
    settings: Settings
    fleet: Fleet
    rest: RestClient
    asker: Asker
    checker: Checker
    names: BlockNames
    faults: Mapping[str, Fault]
    progress: Progress
    counts: SoakCounts = field(default_factory=SoakCounts)
    current: str = CALM
    recent: deque[Prompt] = field(default_factory=lambda: deque(maxlen=RECENT))
    failed: str = ""
    lost: list[str] = field(default_factory=list)
    digest: str = ""
    journal: Journal = field(init=False)
    replay: Replay = field(init=False)
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.journal = Journal(self.fleet.truth.now_ns)
        self.replay = Replay(self.fleet, self.asker, ReplayPace(bound_ms=MEASURED_MS, rate=self.plan.rate))
        self.rng = random.Random(self.plan.seed)

    async def run(self) -> None:
        """Strikes until the time is over, then settles and compares. Never raises for what it finds."""
        stop = asyncio.Event()
        load = asyncio.create_task(self.replay.run(self._requests(stop)))
        asking = asyncio.create_task(self._ask())
        try:
            await self._strikes(load, asking)
            stop.set()
            # Lanes end with their source.
            await load
            asking.cancel()
            await self._compare()
        except* KvledgerError as group:
            self.failed = "; ".join(str(error) for error in group.exceptions)
        finally:
            for task in (load, asking):
                task.cancel()
            await asyncio.gather(load, asking, return_exceptions=True)

    def _requests(self, stop: asyncio.Event) -> Iterator[TraceRequest]:
        work = WorkloadSettings(
            requests=UNLIMITED, tenants=self.plan.tenants, max_context_tokens=6000, seed=self.plan.seed
        )
        for request in generate(work):
            if stop.is_set():
                return
            self.recent.append(self.fleet.prompt(request))
            yield request

    async def _ask(self) -> None:
        """Random lookups beside those that place requests."""
        rng = random.Random(self.plan.seed + 1)
        names = sorted({worker.name for worker in self.fleet.workers})
        while True:
            await asyncio.sleep(rng.expovariate(self.plan.lookups_per_s))
            if not self.recent:
                continue
            bound_ms = rng.choice(BOUNDS_MS)
            candidates = rng.sample(names, 2) if rng.random() < 0.2 else ()
            fault = self.current
            answer = await self.asker.ask(
                rng.choice(self.recent),
                bound_ms=bound_ms,
                candidates=candidates,
                min_coverage=0 if rng.random() < 0.2 else None,
            )
            if bound_ms == MEASURED_MS and not candidates:
                self.counts.asked[fault] += 1
                self.counts.answered[fault] += answer.status == 200 and bool(
                    answer.document["coverage"]["included"]
                )

    async def _strikes(self, *others: asyncio.Task[None]) -> None:
        plan, loop = self.plan, asyncio.get_running_loop()
        ends_s = loop.time() + plan.duration_s
        arena = Arena(self.fleet, self.settings, self.rng, self.journal, self.rest)
        await asyncio.sleep(min(plan.calm_s, plan.duration_s))
        for name in schedule(list(self.faults), self.rng):
            for task in others:
                if task.done():
                    task.result()
            if loop.time() >= ends_s or self.counts.struck.total() == plan.strikes:
                return
            self.current = name
            fault = self.faults[name]
            killed = _kills(fault)
            try:
                strike = await fault.strike(arena)
            except UnrepairedError as error:
                self.counts.struck[name] += 1
                self.counts.unrepaired.append(str(error))
            else:
                self.counts.repaired(strike)
            self.counts.kills[name] += _kills(fault) - killed
            self.current = CALM
            self.progress(self._line(ends_s - loop.time()))
            await asyncio.sleep(self.rng.uniform(*plan.pause_s))

    def _line(self, left_s: float) -> str:
        tally, counts = self.asker.tally, self.counts
        return (
            f"{max(0.0, left_s):5.0f} s left, {counts.struck.total()} faults, {counts.kills.total()} kills, "
            f"{tally.lookups} lookups, wrong {tally.wrong_unflagged}, unjustified "
            f"{tally.unjustified}, unrepaired {len(counts.unrepaired)}; "
            f"last: {self.journal.lines[-1][1] if self.journal.lines else ''}"
        )

    async def _compare(self) -> None:
        arena = Arena(self.fleet, self.settings, self.rng, self.journal, self.rest)
        behind = await until(IndexCurrent(arena), READY_S)
        if behind:
            self.counts.unrepaired.append(f"at the end: {behind}")
        self.progress("comparing every stream with its engine, and the index with the log …")
        self.lost = await lost_events(self.settings, self.fleet, self.names)
        self.digest = await unequal_digest(self.settings)

    def report(self, elapsed_s: float) -> SoakReport:
        tally, fleet, counts = self.asker.tally, self.fleet, self.counts
        began_ns = self.journal.lines[0][0] if self.journal.lines else 0
        return SoakReport(
            seed=self.plan.seed,
            elapsed_s=round(elapsed_s, 1),
            workers=len(fleet.workers) - self.plan.bridged,
            bridged=self.plan.bridged,
            requests=self.replay.counts.requests,
            events=sum(worker.events for worker in fleet.workers),
            lookups=tally.lookups,
            refused=tally.refused,
            wrong_unflagged=tally.wrong_unflagged,
            wrong_flagged=tally.wrong_flagged,
            unjustified_refusals=tally.unjustified_refusals,
            unjustified_exclusions=tally.unjustified_exclusions,
            unjustified_silences=tally.unjustified_silences,
            excused_share=round(tally.excused / tally.lookups, 4) if tally.lookups else 0.0,
            process_kills=counts.kills.total(),
            kinds=kind_reports(counts),
            unrepaired=tuple(counts.unrepaired),
            lost_events=tuple(self.lost),
            digest=self.digest,
            failed=self.failed,
            host_slow_s=round(fleet.watch.slow_s, 1),
            whys=tuple(tally.whys),
            explained=tuple(line for one in self.checker.explanations[:2] for line in one.lines()),
            journal=tuple(f"{(at_ns - began_ns) / 1e9:8.2f} {text}" for at_ns, text in self.journal),
            home=str(self.settings.home),
        )


def run_soak(settings: Settings, plan: SoakPlan, progress: Progress) -> SoakReport:
    """Runs it all on a stack of its own in a temporary home, which is kept if anything was wrong;
    what this process logs is there too, as `log/soak.log`.

    Interrupted at any moment it leaves no process behind. Raises StackError, FleetError and CommandError
    when it can't begin.
    """
    home = Path(tempfile.mkdtemp(prefix="kvledger-soak-"))
    mine = settings.model_copy(update={**ALL_OWN, "home": home})
    log_to_file(home, "soak")
    keep = True
    try:
        with (
            _environment(clock.environment(home)),
            running_stack(mine, extent=Extent.ALL, progress=progress) as at,
        ):
            report = asyncio.run(_perform(in_force(mine, at), at.lookup_url, plan, progress))
        keep = report.violations > 0
        return report if keep else replace(report, home="")
    except KeyboardInterrupt:
        keep = False
        raise
    finally:
        if not keep:
            shutil.rmtree(home, ignore_errors=True)


async def _perform(settings: Settings, url: str, plan: SoakPlan, progress: Progress) -> SoakReport:
    rest = RestClient(url, connections=8)
    fleet_plan = FleetPlan(
        workers=plan.workers,
        capacity_blocks=plan.capacity_blocks,
        slots=4,
        attachment=Attachment.BRIDGE,
        names="wired",
    )
    try:
        async with (
            running_fleet(settings, fleet_plan, plan.tenants) as fleet,
            bridged_workers(settings, fleet, plan.bridged) as bridged,
        ):
            await add_direct_workers(fleet, plan.direct)
            faults = make_faults(plan, bridged)
            names = BlockNames(fleet)
            fleet.submitted = names
            # A bridge confirms nothing of an engine that has never said anything.
            greetings = generate(WorkloadSettings(requests=len(fleet.workers), tenants=plan.tenants))
            for index, request in enumerate(greetings):
                fleet.submit(index, fleet.prompt(request))
            arena = Arena(fleet, settings, random.Random(0), Journal(fleet.truth.now_ns), rest)
            missing = await until(lambda: answers_complete(arena), READY_S)
            if missing:
                raise FleetError(f"the fleet did not come up within {READY_S:.0f} s: {missing}")
            checker = Checker(fleet.truth, transit_ms=TRANSIT_MS)
            asker = Asker(fleet, rest, checker)
            soak = _Soak(plan, settings, fleet, rest, asker, checker, names, faults, progress)
            began_s = time.monotonic()
            await soak.run()
            return soak.report(time.monotonic() - began_s)
    finally:
        await rest.close()


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """The processes of the stack inherit them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _kills(fault: Fault) -> int:
    kills = getattr(fault, "kills", 0)
    return kills if isinstance(kills, int) else 0
