"""`POST /v1/explain` names the block that ends a worker's match and the reason, for the same question."""

from __future__ import annotations

from typing import Any

import pytest

from events.ids import Role
from events.model.control import DeletionRequested, ExitAttested, PrefixScope
from tests.support.lookup_http import ASKED, CREDENTIALS, TOKENS, browser, kind, service
from tests.support.reader_world import World, chain_of

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
