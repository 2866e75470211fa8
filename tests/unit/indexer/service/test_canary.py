"""The canary's gauge, and where a canary must not count."""

from __future__ import annotations

from events.ids import CANARY_WORKER
from indexer.service.canary_gauge import CanaryGauge
from indexer.service.watch import ANY
from router_client.standing import survey
from tests.support.lookup_http import ASKED, browser, service
from tests.support.reader_world import MS, Hook, World, chain_of, reasons

TOKENS = list(range(320))


def sung() -> tuple[World, Hook, Hook, CanaryGauge]:
    """A worker and a canary, both confirmed now."""
    world = World()
    hook, canary = world.join("w0"), world.join(CANARY_WORKER)
    hook.store(chain_of(TOKENS)[:4])
    world.round(hook, canary)
    gauge = CanaryGauge(world.view, monotonic_ns=lambda: world.now_ns)
    gauge.begin(world.registry.current[CANARY_WORKER, 0])
    return world, hook, canary, gauge


def change(world: World, canary: Hook, gauge: CanaryGauge) -> None:
    gauge.changing(canary.builder.seq, world.now_ns)
    canary.write()


def test_what_is_missing_is_measured_and_reported_is_never_less() -> None:
    world, hook, canary, gauge = sung()
    canary.hold = True
    world.wait(50)
    change(world, canary, gauge)
    for _ in range(4):
        world.wait(100)
        world.round(hook, canary)
        gauge.sample()
    assert gauge.measured_ns() == 400 * MS
    assert gauge.reported_ns == 450 * MS
    canary.release()
    gauge.sample()
    assert gauge.reported_ns == 0
    assert gauge.violations == 0
    world.wait(20_000)
    assert gauge.measured_ns() is None
    gauge.sample()
    assert gauge.measured_ns() == 0


def test_a_view_that_says_it_is_fresher_than_it_is_is_accused_once_for_each_change() -> None:
    world, _, canary, gauge = sung()
    canary.hold = True
    for accused in (1, 2):
        change(world, canary, gauge)
        world.wait(300)
        world.beacon()
        # A pulse that announces what was applied, and echoes a beacon from after the change: a lie.
        canary.pulse(
            next_seq=canary.builder.seq - len(canary.held), prev=canary.builder.sent[0].header_sha256
        )
        for _ in range(3):
            gauge.sample()
        assert gauge.violations == accused
        canary.release()
        gauge.sample()


def test_a_canary_is_in_no_answer_and_no_coverage() -> None:
    world, _, canary, _ = sung()
    found = world.get(token_ids=TOKENS)
    assert (found.complete, found.coverage.eligible, found.excluded) == (True, 1, [])
    canary.write()
    world.wait(5_000)
    eligible, others = survey(world.view, ANY, world.now_ns)
    assert ([s.key.worker for s in eligible], others) == (["w0"], [])
    named = world.get(token_ids=TOKENS, candidates=["w0", CANARY_WORKER], consistency="any")
    assert reasons(named) == {CANARY_WORKER: "unregistered"}


def test_a_canarys_way_sets_no_floor() -> None:
    world = World()
    canary = world.join(CANARY_WORKER)
    floor_ms = world.view.floor_ms()
    world.beacon()
    world.wait(40)
    canary.pulse()
    assert world.view.floor_ms() == floor_ms


async def test_a_canary_is_in_no_list_and_owes_nothing_and_its_figures_show() -> None:
    world, _, _, _ = sung()
    made = service(world=world)
    async with browser(made) as http:
        workers = (await http.get("/v1/workers")).json()["workers"]
        found = (await http.post("/v1/lookup", json=ASKED)).json()
        marks = (await http.get("/v1/watermarks")).json()
        page = (await http.get("/metrics")).text
    assert [worker["worker"] for worker in workers] == ["w0"]
    assert found["coverage"] == {"included": 1, "eligible": 1}
    assert (marks["canary"]["state"], marks["canary"]["why"]) == ("off", "there is no enrolment key here")
    assert "kvledger_canary_running 0.0" in page
    assert "kvledger_canary_measured_staleness_seconds NaN" in page
    assert "kvledger_canary_violations_total 0.0" in page
