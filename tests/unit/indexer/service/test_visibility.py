"""Nothing is missed in silence: who stopped reporting, and why a lookup found nothing, shows from outside."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from events.ids import Inventory
from events.model.control import Fenced
from events.model.part import EngineLoss, Orphans, UnknownEvents
from indexer.service.trouble import Trouble
from tests.support.log import PROFILE
from tests.support.lookup_http import ASKED, TOKENS, browser, service
from tests.support.reader_world import Hook, World, chain_of

CHAIN = chain_of(TOKENS)
UNVERIFIED = PROFILE.model_copy(update={"revision": None})


def row_of(document: dict[str, Any], worker: str) -> dict[str, Any]:
    found = [row for row in document["workers"] if row["worker"] == worker]
    assert len(found) == 1
    return dict(found[0])


async def test_an_emitter_that_stopped_reporting_shows_everywhere() -> None:
    """Renamed, cut off or hanging: nobody has to notice an error in its own log."""
    world = World()
    lost, well = world.join("lost"), world.join("well")
    for hook in (lost, well):
        hook.store(CHAIN[:4])
    world.round(lost, well)
    for _ in range(15):
        world.wait(200)
        world.round(well)
    async with browser(service(world=world)) as http:
        answer = await http.post("/v1/lookup", json=ASKED)
        strict = await http.post("/v1/lookup", json={**ASKED, "min_coverage": 2})
        workers = (await http.get("/v1/workers")).json()
    document = answer.json()
    assert [match["worker"] for match in document["matches"]] == ["well"]
    (excluded,) = document["excluded"]
    assert (excluded["worker"], excluded["reason"], excluded["staleness_ms"]) == ("lost", "silent", 3_000)
    assert document["complete"] is False
    assert answer.headers["kv-coverage"] == "1/2"
    assert strict.status_code == 503
    assert [entry["worker"] for entry in strict.json()["lagging"]] == ["lost"]
    assert row_of(workers, "lost")["pulse_ms_ago"] == 3_000
    assert row_of(workers, "well")["pulse_ms_ago"] == 0


async def test_a_worker_that_was_never_heard_is_listed_as_such() -> None:
    world = World()
    world.round(world.join("well"))
    world.join("never", start=False)
    async with browser(service(world=world)) as http:
        workers = (await http.get("/v1/workers")).json()
        found = (await http.post("/v1/lookup", json=ASKED)).json()
    assert row_of(workers, "never")["status"] == "unopened"
    assert row_of(workers, "well")["status"] == "live"
    assert [(e["worker"], e["reason"]) for e in found["excluded"]] == [("never", "unopened")]


async def test_a_holder_that_may_hold_more_than_is_known_says_so() -> None:
    world = World()
    hook = world.join()
    hook.store(CHAIN[:4])
    hook.write(UnknownEvents(kind="batch", length=7), EngineLoss(first_missing=3))
    world.round(hook)
    async with browser(service(world=world)) as http:
        workers = (await http.get("/v1/workers")).json()
        found = (await http.post("/v1/lookup", json=ASKED)).json()
    assert row_of(workers, "w0")["holders"][0]["inventory"] == Inventory.PARTIAL
    assert (found["matches"], found["complete"]) == ([], False)


async def test_workers_are_told_apart_by_name_and_never_by_address() -> None:
    """Two workers behind one gateway have one address and nothing else in common."""
    world = World()
    gateway = "http://10.0.0.1:8000"
    hooks = [world.join(name, endpoint=gateway) for name in ("behind/a", "behind/b")]
    hooks[0].store(CHAIN[:3])
    hooks[1].store(CHAIN[:7])
    world.round(*hooks)
    async with browser(service(world=world)) as http:
        found = (await http.post("/v1/lookup", json=ASKED)).json()
    assert [(match["worker"], match["matched_blocks"]) for match in found["matches"]] == [
        ("behind/b", 7),
        ("behind/a", 3),
    ]
    assert {match["endpoint"] for match in found["matches"]} == {gateway}


def another_model(world: World) -> Hook:
    other = PROFILE.model_copy(update={"model": "other"})
    hook = world.join("w1", profile=other)
    hook.store(chain_of(TOKENS, profile=other))
    return hook


def another_revision(world: World) -> Hook:
    hook = world.join("w1", profile=UNVERIFIED)
    hook.store(chain_of(TOKENS, profile=UNVERIFIED))
    return hook


def silent(world: World) -> Hook:
    hook = world.join("w1")
    hook.store(CHAIN)
    world.round(hook)
    world.wait(5_000)
    hook.hold = True
    return hook


def lost(world: World) -> Hook:
    hook = world.join("w1")
    hook.store(CHAIN[:2])
    hook.builder.burn()
    hook.store(CHAIN[2:4], CHAIN[1])
    return hook


def uncertain(world: World) -> Hook:
    hook = world.join("w1")
    hook.store(CHAIN)
    hook.write(EngineLoss(first_missing=3))
    return hook


def nothing(world: World) -> Hook:
    return world.join("w1")


@pytest.mark.parametrize(
    ("make", "reason", "note", "stop"),
    [
        (another_model, None, "no_such_profile_here", None),
        (another_revision, "profile_incomplete", "no_such_profile_here", None),
        (silent, "silent", "", None),
        (lost, "gap", "", None),
        (uncertain, None, "", "not_committed"),
        (nothing, None, "", "absent"),
    ],
)
async def test_every_way_to_miss_in_silence_has_an_explanation(
    make: Any, reason: str | None, note: str, stop: str | None
) -> None:
    """Another model or revision, nobody reporting, lost records, doubt, a cold cache: told apart in one call."""
    world = World()
    well, hook = world.join("well"), make(world)
    well.store(CHAIN[:1])
    world.round(*((well,) if hook.hold else (well, hook)))
    asked = {**ASKED, "candidates": ["w1"], "identity": "verified"}
    async with browser(service(world=world)) as http:
        (row,) = (await http.post("/v1/explain", json=asked)).json()["workers"]
    assert (row["worker"], row["reason"], row["note"]) == ("w1", reason, note)
    if stop is not None:
        assert row["profiles"][0]["groups"][0]["stop"]["reason"] == stop


async def test_metrics_show_what_a_reader_left_out() -> None:
    world = World()
    hook = world.join()
    world.deliver(b"garbage")
    hook.builder.burn()
    hook.store(CHAIN[:4])
    made = service(world=world)
    made.view.counters = world.view.counters
    async with browser(made) as http:
        page = (await http.get("/metrics")).text
    assert "\nkvledger_undecodable_records_total 1.0" in page
    assert "\nkvledger_stream_faults_total 1.0" in page


def figures_in(page: str, name: str) -> dict[str, float]:
    """By its one label's value, "" without one."""
    return {
        next(iter(sample.labels.values()), ""): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name
    }


async def test_every_trouble_of_a_stream_is_counted_and_the_list_of_workers_names_it() -> None:
    world = World(domains=[("acme", "hushed-tenant")])
    names = ("well", "hole", "broken", "unread", "untold", "orphaned", "fork", "fenced")
    hooks = {name: world.join(name, start=name != "unread") for name in names}
    world.round(*(hook for name, hook in hooks.items() if name != "unread"))
    hooks["hole"].builder.burn()
    hooks["hole"].store(CHAIN[:1])
    hooks["broken"].builder.prev = bytes(32)
    hooks["broken"].store(CHAIN[:1])
    hooks["untold"].write(UnknownEvents(kind="batch", length=7), UnknownEvents(kind="x", length=0, count=2))
    hooks["orphaned"].write(Orphans(holder="gpu", orphans=5, unassigned=2), EngineLoss(first_missing=3))
    builder = hooks["fork"].builder
    builder.control = builder.control.model_copy(update={"hash": bytes(32)})
    hooks["fork"].store(CHAIN[:1])
    world.order(Fenced(worker="fenced", rank=0, epoch="e1", evidence="operator"))
    async with browser(service(world=world)) as http:
        page = (await http.get("/metrics")).text
        listed = (await http.get("/v1/workers")).json()
    found = {row["worker"]: row["troubles"] for row in listed["workers"] if row["worker"] != "fenced"}
    assert found == {
        "well": [],
        "hole": ["gap"],
        "broken": ["quarantined"],
        "unread": ["unopened"],
        "untold": ["unknown_events"],
        "orphaned": ["partial", "orphans"],
        "fork": ["forked"],
    }
    troubled = figures_in(page, "kvledger_troubled_streams")
    assert set(troubled) == set(Trouble)
    told = [trouble for troubles in found.values() for trouble in troubles]
    assert {trouble: count for trouble, count in troubled.items() if count} == dict.fromkeys(told, 1.0)
    assert figures_in(page, "kvledger_eligible_streams") == {"": 7.0}
    assert figures_in(page, "kvledger_unknown_events") == {"": 3.0}
    assert row_of(listed, "untold")["unknown_events"] == 3
    for name, count in (("partial_holders", 1.0), ("orphans", 5.0), ("unassigned", 2.0)):
        by_tier = figures_in(page, f"kvledger_{name}")
        assert by_tier == {**dict.fromkeys(("cpu", "disk", "remote"), 0.0), "gpu": count}
    assert not any(name in page for name in (*names[:3], "hushed-tenant", "acme"))
