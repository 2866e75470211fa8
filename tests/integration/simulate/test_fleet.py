"""Simulated workers on a real log: the fold of what their hooks wrote is what their engines hold."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from pathlib import Path
from zlib import crc32

import pytest

from events.fold.change import Outcome
from events.ids import Role, StreamKey, StreamStatus
from events.model.control import DeletionRequested, TenantScope
from kvledger.control import control_writer
from kvledger.settings import Settings
from kvledger.simulate.fleet import Fleet
from kvledger.simulate.fleet_plan import FleetPlan
from kvledger.simulate.launch import running_fleet
from kvledger.simulate.trace import TraceRequest
from kvledger.simulate.workload import WorkloadSettings, generate
from tests.support.simulation import Names, folded, held, prepared_log

PLAN = FleetPlan(workers=3, capacity_blocks=300, slots=4, step_s=0.002)
TENANTS = ("acme", "globex")
WORK = WorkloadSettings(requests=400, tenants=TENANTS, max_context_tokens=8000, seed=7)


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch, home: Path, kafka: str, topic_prefix: str) -> Settings:
    return prepared_log(monkeypatch, home, kafka, topic_prefix)


async def serve(fleet: Fleet, names: Names, requests: Iterable[TraceRequest]) -> int:
    """Each session to its own worker, so that there are hits and evictions; the number served."""
    jobs = []
    for request in requests:
        at = crc32((request.session or "").encode()) % len(fleet.workers)
        jobs.append(fleet.submit(at, names.learn(request)))
        if len(jobs) % 16 == 0:
            await asyncio.wait([job.done for job in jobs[-16:]])
    await fleet.settle()
    return sum(job.done.result() is not None for job in jobs)


async def until(what: Callable[[], Awaitable[bool]], timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not await what():
            await asyncio.sleep(0.05)


async def check(settings: Settings, fleet: Fleet, names: Names) -> None:
    """The fold of each worker's current stream is whole and equals its engine's pool."""
    assert await fleet.host.emitter.flush(10)
    fleet.check()
    states = await folded(settings)
    for worker in fleet.workers:
        assert worker.hook is not None
        assert worker.hook.stream is not None
        state = states[worker.hook.stream]
        assert (state.status, state.fault) == (StreamStatus.LIVE, "")
        assert held(state) == names.pool(worker)


async def test_the_fold_of_the_log_is_what_the_engines_hold(settings: Settings) -> None:
    async with running_fleet(settings, PLAN, TENANTS) as fleet:
        names = Names(fleet)
        assert await serve(fleet, names, generate(WORK)) > 300
        assert sum(worker.engine.blocks_evicted for worker in fleet.workers) > 100
        assert sum(worker.hit_tokens for worker in fleet.workers) > 0
        await check(settings, fleet, names)


async def test_a_restarted_worker_begins_an_empty_epoch(settings: Settings) -> None:
    async with running_fleet(settings, PLAN, TENANTS) as fleet:
        names = Names(fleet)
        requests = generate(WORK)
        await serve(fleet, names, islice(requests, 100))
        worker = fleet.workers[0]
        assert worker.hook is not None
        before = worker.hook.stream
        await fleet.restart(worker)
        assert worker.hook.stream != before
        assert worker.engine.cached_keys() == {}
        await serve(fleet, names, islice(requests, 100))
        await check(settings, fleet, names)
        states = await folded(settings)
        assert before is not None
        assert states[before].status is StreamStatus.CLOSED
        assert states[before].engine_ended


async def test_a_restart_in_mid_step_loses_no_request(settings: Settings) -> None:
    async with running_fleet(settings, PLAN, TENANTS) as fleet:
        names = Names(fleet)
        worker = fleet.workers[0]
        jobs = [worker.submit(names.learn(request)) for request in islice(generate(WORK), 40)]
        async with asyncio.timeout(60):
            # Each step is over in a moment: whoever looks now and then may never see one.
            while not worker.engine.dirty:
                await asyncio.sleep(0)
        await fleet.restart(worker)
        await fleet.settle()
        assert all(job.done.done() for job in jobs)
        await check(settings, fleet, names)


async def test_a_lost_record_is_repaired_by_a_snapshot(settings: Settings) -> None:
    async with running_fleet(settings, PLAN, TENANTS) as fleet:
        names = Names(fleet)
        requests = generate(WORK)
        await serve(fleet, names, islice(requests, 100))
        worker = fleet.workers[1]
        hook = worker.hook
        assert hook is not None
        fleet.lose_records(worker, 1, repair_after_s=0.5)
        jobs = [worker.submit(names.learn(request)) for request in islice(requests, 20)]
        await asyncio.wait([job.done for job in jobs])
        assert hook.dropped == 1
        assert hook.stream is not None
        assert await fleet.host.emitter.flush(10)
        await until(lambda: _true(hook.repair.written > 0 and hook.ready))
        fleet.calm(worker)
        await fleet.settle()
        await check(settings, fleet, names)
        outcomes: Counter[tuple[StreamKey, Outcome]] = Counter()
        await folded(settings, outcomes)
        assert outcomes[hook.stream, Outcome.GAP] >= 1


@pytest.mark.parametrize("restarted", [False, True], ids=["first life", "after a restart"])
async def test_a_deletion_empties_its_tenant_and_nobody_else(settings: Settings, restarted: bool) -> None:
    async with running_fleet(settings, PLAN, TENANTS) as fleet:
        names = Names(fleet)
        requests = generate(WORK)
        await serve(fleet, names, islice(requests, 200))
        if restarted:
            await fleet.restart(fleet.workers[0])
            await serve(fleet, names, islice(generate(WORK), 50))
        others = {
            worker.name: {
                names.ids[key]
                for request in islice(generate(WORK), 200)
                if request.tenant == "globex"
                for key in fleet.prompt(request).keys
                if key in worker.engine.cached_keys()
            }
            for worker in fleet.workers
        }
        async with control_writer(settings, fleet.host.registry, Role.CONTROL) as writer:
            order = await writer.append(
                DeletionRequested(scope=TenantScope(tenant="acme"), requester="test"),
                idempotency_key="one",
                key_scope="test",
            )

        async def acknowledged() -> bool:
            states = await folded(settings)
            for worker in fleet.workers:
                assert worker.hook is not None
                assert worker.hook.stream is not None
                standings = states[worker.hook.stream].standings
                if not any(n == order.offset and s.discharged for (_, n), s in standings.items()):
                    return False
            return True

        await until(acknowledged)
        await fleet.settle()
        await check(settings, fleet, names)
        for worker in fleet.workers:
            assert names.pool(worker) >= others[worker.name]
            kept = {names.ids[key] for key in worker.engine.cached_keys()}
            acme = {
                names.ids[key]
                for request in islice(generate(WORK), 200)
                if request.tenant == "acme"
                for key in fleet.prompt(request).keys
            }
            assert not kept & acme


async def test_a_killed_worker_says_nothing_more(settings: Settings) -> None:
    async with running_fleet(settings, PLAN, TENANTS) as fleet:
        names = Names(fleet)
        await serve(fleet, names, islice(generate(WORK), 60))
        worker = fleet.workers[2]
        assert worker.hook is not None
        stream, life = worker.hook.stream, worker.engine.life
        assert stream is not None
        await fleet.kill(worker)
        state = (await folded(settings))[stream]
        assert state.status is StreamStatus.LIVE
    state = (await folded(settings))[stream]
    assert state.status is StreamStatus.LIVE
    async with running_fleet(settings, PLAN, TENANTS) as fleet:
        assert (worker.name, life) in fleet.host.registry.exits
        assert fleet.host.registry.ignored == {}


async def _true(value: bool) -> bool:
    return value
