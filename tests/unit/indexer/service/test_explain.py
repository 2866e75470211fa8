"""`POST /v1/explain` names the block that ends a worker's match and the reason, for the same question."""

from __future__ import annotations

from typing import Any

import pytest

from events.ids import Capability, GroupKind, Inventory, Role, Tier
from events.model.control import (
    DeletionRequested,
    ExitAttested,
    Fenced,
    HolderDestroyed,
    HolderEnrolled,
    PrefixScope,
)
from events.model.part import Group, HolderDeclared, Opened, ProfileDeclared
from events.model.profile import LayoutProfile
from tests.support.log import PROFILE
from tests.support.lookup_http import ASKED, CREDENTIALS, TOKENS, browser, kind, service
from tests.support.reader_world import Hook, World, chain_of

CHAIN = chain_of(TOKENS)


async def explained(world: World, *workers: str, **more: Any) -> dict[str, dict[str, Any]]:
    async with browser(service(world=world)) as http:
        asked = {**ASKED, "candidates": list(workers), **more}
        response = await http.post("/v1/explain", json=asked)
        assert response.status_code == 200, response.text
        looked_up = (await http.post("/v1/lookup", json={**asked, "min_coverage": 0})).json()
    found = {row["worker"]: row for row in response.json()["workers"]}
    for match in looked_up["matches"]:
        assert found[match["worker"]]["tiers"] == match["tiers"]
    for excluded in looked_up["excluded"]:
        assert found[excluded["worker"]]["reason"] == excluded["reason"]
    return found


def stop(row: dict[str, Any]) -> dict[str, Any] | None:
    found: dict[str, Any] | None = row["profiles"][0]["groups"][0]["stop"]
    return found


async def test_the_first_block_that_is_missing_is_named() -> None:
    world = World()
    a, b, c = world.join("a"), world.join("b"), world.join("c")
    a.store(CHAIN)
    b.store(CHAIN)
    b.evict([CHAIN[3]])
    world.round(a, b, c)
    found = await explained(world, "a", "b", "c")
    assert stop(found["a"]) is None
    assert stop(found["b"]) == {"depth": 3, "block_id": CHAIN[3].hex(), "reason": "absent", "orders": []}
    assert found["b"]["profiles"][0]["groups"][0]["held_blocks"] == len(CHAIN) - 1
    assert found["b"]["tiers"]["gpu"] == 48
    nothing = stop(found["c"])
    assert nothing is not None
    assert nothing["depth"] == 0


async def test_a_copy_that_is_not_committed_is_named() -> None:
    world = World()
    hook = world.join("a")
    hook.store(CHAIN[:4])
    hook.evict([CHAIN[2]], certain=False)
    world.round(hook)
    found = stop((await explained(world, "a"))["a"])
    assert found is not None
    assert (found["depth"], found["reason"]) == (2, "not_committed")


async def test_the_orders_that_hide_a_block_are_named() -> None:
    world = World()
    hook = world.join("a")
    hook.store(CHAIN)
    number = world.order(
        DeletionRequested(scope=PrefixScope(domain="default", ids=tuple(CHAIN[:6])), requester="t")
    )
    world.round(hook)
    found = stop((await explained(world, "a"))["a"])
    assert found is not None
    assert (found["depth"], found["reason"], found["orders"]) == (5, "hidden_by_order", [number])


async def test_a_rank_that_is_not_scored_says_why() -> None:
    world = World()
    lost, ended, late = world.join("lost"), world.join("ended"), world.join("late")
    for hook in (lost, ended, late):
        hook.store(CHAIN[:4])
    world.round(late)
    world.wait(5_000)
    world.round(lost, ended)
    world.view.streams[next(k for k in world.view.streams if k.worker == "lost")].state.next_seq -= 1
    lost.store(CHAIN[4:5], CHAIN[3])
    lost.builder.seq += 1
    lost.store(CHAIN[5:6], CHAIN[4])
    world.order(
        ExitAttested(worker="ended", engine_life="life-e1", attester="s", evidence="w"), Role.SUPERVISOR
    )
    found = await explained(world, "lost", "ended", "late", "nobody")
    assert {worker: row["reason"] for worker, row in found.items()} == {
        "lost": "gap",
        "ended": "fenced",
        "late": "silent",
        "nobody": "unregistered",
    }
    assert found["lost"]["fault"].startswith("seq ")
    assert found["late"]["staleness_ms"] >= 5_000


@pytest.mark.parametrize(
    ("token", "change", "status", "problem"),
    [
        ("router", {}, 400, "malformed"),
        ("router", {"candidates": []}, 400, "malformed"),
        ("router", {"candidates": ["w0"], "max_staleness_ms": None}, 400, "bound-missing"),
        ("router", {"candidates": ["w0"], "domain": "acme"}, 403, "forbidden"),
        ("auditor", {"candidates": ["w0"]}, 403, "forbidden"),
        ("nobody", {"candidates": ["w0"]}, 401, "unauthenticated"),
    ],
)
async def test_it_refuses_what_a_lookup_refuses(
    token: str, change: dict[str, Any], status: int, problem: str
) -> None:
    async with browser(service(credentials=CREDENTIALS)) as http:
        response = await http.post(
            "/v1/explain", json={**ASKED, **change}, headers={"Authorization": f"Bearer {token}"}
        )
    assert (response.status_code, kind(response)) == (status, problem), response.text


def reaching(world: World, worker: str, *, layout: LayoutProfile | None = None) -> Hook:
    """A stream with a GPU and a shared store."""
    hook = world.join(worker, start=False)
    group = (Group(index=0, kind=GroupKind.FULL, block_tokens=16),)
    hook.write(
        Opened(
            engine_life="life-e1",
            engine="test",
            engine_version="1",
            removal=Capability.EVICT_BLOCKS,
            admission_known=True,
            holders=(
                HolderDeclared(name="gpu", tier=Tier.GPU, groups=group, inventory=Inventory.EMPTY),
                HolderDeclared(
                    name="shared", tier=Tier.REMOTE, durable_id="s", groups=group, inventory=Inventory.KNOWN
                ),
            ),
        ),
        events=[
            ProfileDeclared(profile=0, content=PROFILE, layout=layout or LayoutProfile(), block_bytes=(100,))
        ],
    )
    return hook


async def store_reason(world: World, worker: str, **more: Any) -> tuple[Any, Any]:
    """(what an explanation says, what the list of workers says) of why the store counts for nothing."""
    row = (await explained(world, worker, **more))[worker]
    async with browser(service(world=world)) as http:
        listed = (await http.get("/v1/workers")).json()["workers"]
    (held,) = [h for r in listed if r["worker"] == worker for h in r["holders"] if h["name"] == "shared"]
    return row["stores"][0]["uncredited"], held["uncredited"]


async def test_a_store_that_is_left_out_has_a_reason_of_its_own() -> None:
    world = World()
    reacher, owner, other = (
        reaching(world, "r"),
        reaching(world, "o"),
        reaching(world, "x", layout=LayoutProfile(tp_size=2)),
    )
    world.round(reacher, owner, other)
    assert await store_reason(world, "r") == ("no_owner", "no_owner")
    world.order(HolderEnrolled(durable_id="s", tier=Tier.REMOTE, owner="nobody"), Role.ENROLMENT)
    assert await store_reason(world, "r") == ("owner_unknown", "owner_unknown")
    world.join("plain")
    world.order(HolderEnrolled(durable_id="s", tier=Tier.REMOTE, owner="plain"), Role.ENROLMENT)
    assert await store_reason(world, "r") == ("owner_undeclared", "owner_undeclared")
    world.order(Fenced(worker="plain", rank=0, epoch="e1", evidence="operator"))
    assert await store_reason(world, "r") == ("owner_gone", "owner_gone")
    world.order(HolderEnrolled(durable_id="s", tier=Tier.REMOTE, owner="o"), Role.ENROLMENT)
    assert await store_reason(world, "r") == (None, None)
    assert await store_reason(world, "o") == (None, None)
    assert await store_reason(world, "x") == ("other_layout", None)
    world.wait(600)
    world.round(reacher)
    assert await store_reason(world, "r", max_staleness_ms=500) == ("owner_out_of_bound", None)
    (store,) = (await explained(world, "r", max_staleness_ms=500))["r"]["stores"]
    assert (store["owner"], store["owner_reason"], store["tier"]) == ("o", "stale", "remote")
    world.order(HolderDestroyed(durable_id="s", evidence="shredded"), Role.SUPERVISOR)
    assert await store_reason(world, "r") == ("destroyed", "destroyed")
