"""Faults on engines, their wire and their bridges: no wrong answer, nothing lost, and repaired in time."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from events.ids import Role
from indexer.service.config import ServiceConfig
from indexer.service.server import start
from kvledger.control import connection
from kvledger.keyfile import load_signers
from kvledger.settings import Settings
from kvledger.simulate.fleet_plan import Attachment, FleetPlan
from kvledger.simulate.matrix import scenario_of
from kvledger.simulate.scenario import TRIAL_WORK
from kvledger.simulate.tenant import ensure_tenants
from kvledger.simulate.trial import run_trial
from tests.support.simulation import prepared_log

BRIDGED = FleetPlan(workers=2, ranks=2, capacity_blocks=300, attachment=Attachment.BRIDGE)
DIRECT = FleetPlan(workers=2, capacity_blocks=300)
WORK = replace(TRIAL_WORK, max_context_tokens=2000)


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch, home: Path, kafka: str, topic_prefix: str) -> Settings:
    return prepared_log(monkeypatch, home, kafka, topic_prefix)


@asynccontextmanager
async def served(settings: Settings) -> AsyncIterator[Settings]:
    """The settings with the port of a lookup service on that log."""
    ring = await ensure_tenants(settings, TRIAL_WORK.tenants)
    config = ServiceConfig(
        connection=connection(settings),
        keyring=ring,
        reader=f"reader-{secrets.token_hex(4)}",
        port=0,
        signers=load_signers(settings.home, Role.CONTROL),
    )
    server = await start(config)
    try:
        yield settings.model_copy(update={"lookup_port": server.port})
    finally:
        await server.stop()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("names", "plan"),
    [
        pytest.param(("loss-with-replay", "duplicates"), BRIDGED, id="records late, twice or by replay"),
        pytest.param(("short-replay-ring", "idle-resets"), BRIDGED, id="a loss that nothing fills"),
        pytest.param(("restart-with-loss", "hook-killed"), BRIDGED, id="engines and bridges die"),
        pytest.param(("loss-without-replay",), BRIDGED, id="no replay socket"),
        pytest.param(("engine-restart", "long-steps"), DIRECT, id="attached directly"),
    ],
)
async def test_faults_are_repaired_and_no_answer_is_wrong(
    prepared: Settings, names: tuple[str, ...], plan: FleetPlan
) -> None:
    async with served(prepared) as settings:
        scenario = scenario_of(names, plan, rate=20.0, bound_ms=500.0)
        scenario = replace(scenario, warm_up_s=0.5, pause_s=0.1, workload=WORK)
        report = await run_trial(settings, scenario, seed=5, duration_s=1.0)
    assert report.violations == 0, (report.failed, report.unrepaired, report.lost_events, report.whys)
    struck = [strike.name for strike in report.strikes]
    assert struck == (list(names) * len(struck))[: len(struck)]
    assert len(struck) >= len(names)
    assert all(strike.repaired_ns is not None for strike in report.strikes)
    assert report.lookups > 0
    assert sum(report.folds.values()) == plan.workers * plan.ranks
