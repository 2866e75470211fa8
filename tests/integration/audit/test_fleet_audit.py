"""A deletion in a fleet of real hooks on a real log, judged, proven and verified from the file."""

from __future__ import annotations

import asyncio
from itertools import islice
from pathlib import Path

import pytest

from auditor.finding import Reason
from auditor.verify import verify_bundle
from events.ids import Role, VerdictKind, VerdictReason
from events.model.control import DeletionRequested, TenantScope
from kvledger.command.audit import audit_requests
from kvledger.control import control_writer
from kvledger.keyfile import load_signer
from kvledger.settings import Settings
from kvledger.simulate.fleet import Fleet
from kvledger.simulate.fleet_plan import FleetPlan
from kvledger.simulate.launch import running_fleet
from kvledger.simulate.workload import WorkloadSettings, generate
from tests.support.simulation import Names, prepared_log

PLAN = FleetPlan(workers=3, capacity_blocks=300, slots=4, step_s=0.002)
TENANTS = ("acme", "globex")
WORK = WorkloadSettings(requests=300, tenants=TENANTS, max_context_tokens=8000, seed=7)


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch, home: Path, kafka: str, topic_prefix: str) -> Settings:
    return prepared_log(monkeypatch, home, kafka, topic_prefix)


async def serve(fleet: Fleet, names: Names, count: int) -> None:
    jobs = [
        fleet.submit(at % len(fleet.workers), names.learn(request))
        for at, request in enumerate(islice(generate(WORK), count))
    ]
    await asyncio.wait([job.done for job in jobs])
    await fleet.settle()
    assert await fleet.host.emitter.flush(10)


async def delete(settings: Settings, fleet: Fleet, tenant: str = "acme") -> int:
    async with control_writer(settings, fleet.host.registry, Role.CONTROL) as writer:
        body = DeletionRequested(scope=TenantScope(tenant=tenant), requester="test")
        return (await writer.append(body)).offset


async def test_a_deletion_in_a_living_fleet_is_proven_and_its_bundle_verifies(
    settings: Settings, tmp_path: Path
) -> None:
    async with running_fleet(settings, PLAN, TENANTS) as fleet:
        await serve(fleet, Names(fleet), 150)
        number = await delete(settings, fleet)
        path = tmp_path / "proof.jsonl"
        (verdict,) = await audit_requests(settings, [number], wait_s=90, bundle=path)
        assert (verdict.kind, verdict.reasons, verdict.counterexamples) == (VerdictKind.PROVEN, (), ())
        assert verdict.removed > 0
        assert {holder.discharge for holder in verdict.holders} == {"ack"}
        operator = load_signer(settings.home, Role.OPERATOR)
        assert verify_bundle(path.read_bytes(), operator.public_key).verdict == verdict
        assert b"globex" not in path.read_bytes()
        await serve(fleet, Names(fleet), 60)
        (later,) = await audit_requests(settings, [number], wait_s=90)
        assert later.kind is VerdictKind.PROVEN
        assert later.recreated > 0


async def test_a_restarted_engine_is_discharged_by_its_end_and_its_next_life_acks(settings: Settings) -> None:
    async with running_fleet(settings, PLAN, TENANTS) as fleet:
        await serve(fleet, Names(fleet), 60)
        number = await delete(settings, fleet)
        await fleet.restart(fleet.workers[0])
        (verdict,) = await audit_requests(settings, [number], wait_s=90)
        assert verdict.kind is VerdictKind.PROVEN
        assert any(holder.discharge.startswith("exit attested") for holder in verdict.holders)


async def test_a_killed_worker_leaves_the_deletion_unproven(settings: Settings) -> None:
    async with running_fleet(settings, PLAN, TENANTS) as fleet:
        await serve(fleet, Names(fleet), 60)
        await fleet.kill(fleet.workers[0])
        number = await delete(settings, fleet)
        waiting, left = set[str](), list[Reason]()
        async with asyncio.timeout(120):
            # Until those that live have answered, an audit waits for them too.
            while waiting != {fleet.workers[0].name}:
                (verdict,) = await audit_requests(settings, [number], wait_s=2)
                assert verdict.kind is VerdictKind.PENDING
                left = [reason for reason in verdict.reasons if reason.condition == "P2"]
                waiting = {reason.subject.split("/")[0] for reason in left}
        assert {reason.reason for reason in left} == {VerdictReason.FRONTIER_BEHIND}
