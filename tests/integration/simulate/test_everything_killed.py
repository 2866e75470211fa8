"""Kill -9 of every process of the stack during a replay: no answer is wrong, nothing is lost, the index is the fold."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from events.ids import StreamStatus
from kvledger.command.index import _digest
from kvledger.settings import Settings
from kvledger.simulate.asker import TRANSIT_MS, Asker
from kvledger.simulate.checker import Checker
from kvledger.simulate.fleet import Fleet
from kvledger.simulate.fleet_plan import FleetPlan
from kvledger.simulate.launch import running_fleet
from kvledger.simulate.replay import Replay, ReplayPace
from kvledger.simulate.rest import RestClient, RestError
from kvledger.simulate.workload import WorkloadSettings, generate
from kvledger.stack.own import in_force
from kvledger.stack.plan import Extent
from kvledger.stack.session import read_running, running_stack
from kvledger.stack.state import Endpoints, Home, ServiceState
from tests.support.simulation import Names, folded, held
from tests.support.stack import stack_settings

PLAN = FleetPlan(workers=3, capacity_blocks=400, slots=4)
TENANTS = ("acme", "globex")
WORK = WorkloadSettings(requests=600, tenants=TENANTS, max_context_tokens=6000, seed=11)
SERVICES = ("indexer", "serve", "controller", "postgres", "kafka")


@pytest.mark.timeout(600)
async def test_killing_each_process_once_changes_nothing(tmp_path: Path) -> None:
    settings = stack_settings(tmp_path / "home")
    with running_stack(settings, extent=Extent.ALL) as at:
        told = in_force(settings, at)
        rest = RestClient(at.lookup_url)
        try:
            async with running_fleet(told, PLAN, TENANTS) as fleet:
                await _through_all(told, at, fleet, rest)
        finally:
            await rest.close()


async def _through_all(settings: Settings, at: Endpoints, fleet: Fleet, rest: RestClient) -> None:
    asker = Asker(fleet, rest, Checker(fleet.truth, transit_ms=TRANSIT_MS))
    replay = Replay(fleet, asker, ReplayPace(rate=25))
    names = Names(fleet)
    for request in generate(WORK):
        names.learn(request)
    running = asyncio.get_running_loop().create_task(replay.run(generate(WORK)))
    try:
        for number, service in enumerate(SERVICES, 1):
            await _until(partial(_reached, replay, running, number))
            fleet.truth.disturb()
            await _kill(settings.home, service, rest)
            fleet.truth.calm()
        await running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert asker.tally.wrong_unflagged == 0, asker.tally.whys
    assert replay.counts.requests == WORK.requests
    await _index_is_the_fold(settings, at, fleet)
    states = await folded(settings)
    for worker in fleet.workers:
        assert worker.hook is not None
        assert worker.hook.stream is not None
        state = states[worker.hook.stream]
        assert (state.status, state.fault) == (StreamStatus.LIVE, "")
        assert held(state) == names.pool(worker)
    await _answers_again(asker, fleet)


def _reached(replay: Replay, running: asyncio.Task[None], tenth: int) -> bool:
    return running.done() or replay.counts.requests >= tenth * WORK.requests // 10


async def _kill(home: Path, service: str, rest: RestClient) -> None:
    """SIGKILL, then waits until the supervisor has it running again."""
    (before,) = [one.process for one in read_running(Home(home)).services if one.name == service]
    assert before is not None
    os.kill(before.pid, signal.SIGKILL)

    def back() -> bool:
        (now,) = [one for one in read_running(Home(home)).services if one.name == service]
        return now.state is ServiceState.READY and now.process is not None and now.process != before

    await _until(back)
    for _ in range(600):
        try:
            if (await rest.get("/readyz")).status == 200:
                return
        except RestError:
            pass
        await asyncio.sleep(0.1)
    raise AssertionError(f"after the end of {service} the lookup service is not ready again")


async def _index_is_the_fold(settings: Settings, at: Endpoints, fleet: Fleet) -> None:
    """At the log's end, and not before: all that was sent is committed."""
    await fleet.settle()
    begun_s = time.monotonic()
    while True:
        found = await _digest(settings, at.database_url)
        sent = sum(len(worker.engine.cached_keys()) for worker in fleet.workers)
        if found["equal"] and found["copies"] == sent:
            return
        assert found["equal"], found
        assert time.monotonic() - begun_s < 60, f"{found['copies']} copies are indexed, {sent} are held"
        await asyncio.sleep(0.5)


async def _answers_again(asker: Asker, fleet: Fleet) -> None:
    request = next(iter(generate(WORK)))
    prompt = fleet.prompt(request)
    answer = await asker.ask(prompt, bound_ms=1000)
    for _ in range(300):
        if answer.status == 200 and answer.document["complete"]:
            assert asker.tally.wrong_unflagged == 0, asker.tally.whys
            return
        await asyncio.sleep(0.1)
        answer = await asker.ask(prompt, bound_ms=1000)
    raise AssertionError(f"no complete answer within 30 s: {answer.document}")


async def _until(holds: Callable[[], bool], timeout_s: float = 120.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not holds():
            await asyncio.sleep(0.05)
