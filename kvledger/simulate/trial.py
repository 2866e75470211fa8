"""One trial: a fleet under load, faults one after another, every answer judged, the log compared at the end."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from events.errors import KvledgerError
from kvledger.settings import Settings
from kvledger.simulate.asker import TRANSIT_MS, Asker
from kvledger.simulate.checker import Checker
from kvledger.simulate.fault import Arena, Journal, Strike, UnrepairedError
from kvledger.simulate.fleet import Fleet, FleetError
from kvledger.simulate.history import History
from kvledger.simulate.launch import running_fleet
from kvledger.simulate.log_end import LogEnd, Names, caught_up, lost_events
from kvledger.simulate.replay import Replay, ReplayPace
from kvledger.simulate.report import percentile
from kvledger.simulate.rest import RestClient
from kvledger.simulate.scenario import Scenario
from kvledger.simulate.trace import TraceRequest, read_trace, survey_trace
from kvledger.simulate.trial_report import TrialReport
from kvledger.simulate.trouble.probe import Probe
from kvledger.simulate.workload import generate

CONNECTIONS = 8
WARM_UP_S = 20.0
LOOSE_BOUND_MS = 3000.0


@dataclass(slots=True)
class _Trial:
    scenario: Scenario
    fleet: Fleet
    arena: Arena
    asker: Asker
    duration_s: float
    requests: int | None
    strikes: list[Strike] = field(default_factory=list)
    unrepaired: list[str] = field(default_factory=list)
    stop: bool = False

    async def run(self, replay: Replay, work: Iterator[TraceRequest]) -> None:
        """Until the time is over and every fault has struck. Raises FleetError."""
        await self._warm_up()
        load = asyncio.create_task(replay.run(self._until_stopped(work)))
        try:
            striking = asyncio.create_task(self._strike())
            await asyncio.wait([load, striking], return_when=asyncio.FIRST_COMPLETED)
            if load.done() and not striking.done():
                striking.cancel()
                await asyncio.gather(striking, return_exceptions=True)
            else:
                striking.result()
                self.stop = True
            await load
        finally:
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)

    async def _warm_up(self) -> None:
        """Every rank is heard of and answered for before anything counts: one that never said a word is left
        out, and that is not what a trial is about."""
        basis = self.fleet.plan.basis
        probes = [
            Probe(self.arena, worker, "unconfirmed" if basis == "unconfirmed" else None)
            for worker in self.fleet.workers
        ]
        try:
            await asyncio.gather(*(probe.credited("warm-up", within_s=WARM_UP_S) for probe in probes))
        except UnrepairedError as error:
            self.arena.journal.append(str(error))
            self.unrepaired.append(str(error))

    def _until_stopped(self, work: Iterator[TraceRequest]) -> Iterator[TraceRequest]:
        for number, request in enumerate(work):
            if self.stop or (self.requests is not None and number >= self.requests):
                return
            yield request

    async def _strike(self) -> None:
        scenario, rng = self.scenario, self.arena.rng
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + self.duration_s
        await asyncio.sleep(scenario.warm_up_s)
        faults = scenario.make_faults()
        struck = 0
        while faults:
            for fault in faults:
                struck += 1
                try:
                    self.strikes.append(await fault.strike(self.arena))
                except UnrepairedError as error:
                    self.arena.journal.append(str(error))
                    self.unrepaired.append(str(error))
                await asyncio.sleep(scenario.pause_s * rng.uniform(0.5, 1.5))
                if loop.time() >= ends_s and self.requests is None and struck >= len(faults):
                    return
        await asyncio.sleep(max(0.0, ends_s - loop.time()))


def dice(scenario: Scenario, seed: int) -> random.Random:
    """What decides a trial's schedule, and nothing else does: the same seed strikes the same."""
    return random.Random(f"trial/{scenario.name}/{seed}")


async def run_trial(
    settings: Settings,
    scenario: Scenario,
    seed: int,
    *,
    duration_s: float = 8.0,
    requests: int | None = None,
    history: Path | None = None,
) -> TrialReport:
    """Plays the scenario under the seed on the stack that the settings name, for about `duration_s` or
    `requests`, at least until each fault has struck once. `history`: all is recorded there for
    `kvledger.simulate.recheck`.

    Raises TraceError, LogUnavailableError, KeyFileError, CommandError while another simulation runs on that home; what
    goes wrong in the fleet itself is in the report's `failed`.
    """
    tenants, work = _work(scenario, seed)
    rest = RestClient(f"http://127.0.0.1:{settings.lookup_port}", connections=CONNECTIONS)
    log = LogEnd(settings)
    await log.mark()
    begun_s = time.monotonic()
    record = History(history)
    try:
        async with running_fleet(settings, scenario.plan, tenants) as fleet:
            fleet.submitted = []
            truth = fleet.truth
            checker = Checker(truth, transit_ms=TRANSIT_MS, history=record)
            asker = Asker(fleet, rest, checker)
            arena = Arena(fleet, settings, dice(scenario, seed), Journal(truth.now_ns), rest)
            basis = scenario.plan.basis
            pace = ReplayPace(
                bound_ms=scenario.bound_ms,
                rate=scenario.rate,
                loose_bound_ms=max(LOOSE_BOUND_MS, scenario.bound_ms),
                bases=("published", basis) if basis == "unconfirmed" else ("published",),
            )
            replay = Replay(fleet, asker, pace)
            trial = _Trial(scenario, fleet, arena, asker, duration_s, requests)
            failed, lost, folds = "", list[str](), dict[str, int]()
            begun_ns = truth.now_ns()
            try:
                await trial.run(replay, work)
                lost, folds = await _compare(arena, log)
            except* KvledgerError as group:
                failed = "; ".join(str(error) for error in group.exceptions)
            tally = asker.tally
            return TrialReport(
                scenario=scenario.name,
                seed=seed,
                elapsed_s=time.monotonic() - begun_s,
                requests=replay.counts.requests,
                events=sum(worker.events for worker in fleet.workers),
                lookups=replay.counts.requests,
                answered_in_bound=replay.counts.answered,
                refused=tally.refused,
                wrong_unflagged=tally.wrong_unflagged,
                unjustified_refusals=tally.unjustified_refusals,
                unjustified_exclusions=tally.unjustified_exclusions,
                unjustified_silences=tally.unjustified_silences,
                wrong_flagged=tally.wrong_flagged,
                excused=tally.excused,
                failed=failed,
                strikes=tuple(trial.strikes),
                unrepaired=(*trial.unrepaired, *(one.line for one in truth.unrepaired())),
                lost_events=tuple(lost),
                excluded=dict(tally.excluded),
                folds=folds,
                lookup_p50_ms=percentile(tally.latency_ms, 0.5),
                lookup_p99_ms=percentile(tally.latency_ms, 0.99),
                host_slow_s=fleet.watch.slow_s,
                strict_share=checker.counts.strict_share,
                explanations=tuple(one.document() for one in checker.explanations),
                whys=tuple([*tally.whys, *(line for one in checker.explanations for line in one.lines())]),
                journal=tuple(f"{(at - begun_ns) / 1e9:.3f} s {text}" for at, text in arena.journal),
            )
    finally:
        record.close()
        await rest.close()


def _work(scenario: Scenario, seed: int) -> tuple[tuple[str, ...], Iterator[TraceRequest]]:
    """Whose requests, and the requests. A trace is read to its end first: what is wrong with it shows here."""
    work = replace(scenario.workload, seed=seed)
    if scenario.trace is None:
        return tuple(work.tenants), generate(work)
    survey = survey_trace(scenario.trace, tenants=work.tenants)
    return survey.tenants, read_trace(scenario.trace, tenants=work.tenants)


async def _compare(arena: Arena, log: LogEnd) -> tuple[list[str], dict[str, int]]:
    """Every engine takes one more step, so that nothing is left untold; then the log must tell it all."""
    fleet = arena.fleet
    for worker in fleet.workers:
        if not worker.dead and await Probe(arena, worker).serve(blocks=1) is None:
            raise FleetError(f"{worker.name}/{worker.engine.rank} serves nothing any more")
    await fleet.settle()
    lines = await caught_up(fleet)
    await fleet.settle()
    prompts = fleet.submitted if fleet.submitted is not None else []
    found, folds = lost_events(fleet, await log.folded(), Names(fleet, prompts))
    # Without replay nobody can know of a tail that was lost; and answers from there say that they don't.
    return ([] if not fleet.plan.replay else lines + found), folds
