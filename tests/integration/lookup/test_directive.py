"""Limits and fences over REST, and tokens that mean the same at every replica."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from events.token import Token
from router_client.client import RouterClient
from tests.support.live_log import live_log, tiny_hook, until
from tests.support.lookup_service import CHAIN, TOKENS, answered, serving, url
from tests.support.reader_world import lengths, reasons
from tests.support.withheld import Withheld

ASKED: dict[str, Any] = {
    "profile": "tiny",
    "domain": "default",
    "token_ids": TOKENS,
    "max_staleness_ms": 20_000,
}


async def post(http: httpx.AsyncClient, path: str, body: dict[str, Any], key: str) -> httpx.Response:
    return await http.post(path, json=body, headers={"Idempotency-Key": key})


async def test_limits_and_fences_are_given_once_and_their_tokens_are_reflected(
    kafka: str, topic_prefix: str
) -> None:
    async with (
        live_log(kafka, topic_prefix) as log,
        serving(kafka, topic_prefix) as server,
        tiny_hook(log, "w0") as hook,
        tiny_hook(log, "w1"),
        RouterClient(url(server), timeout_s=20) as client,
        httpx.AsyncClient(base_url=url(server), timeout=20) as http,
    ):
        await hook.store(CHAIN[:4])
        await answered(client, lambda a: a.complete and a.coverage.eligible == 2)
        body = {"tenant": "default", "tier": "gpu", "unit": "blocks", "soft": 3, "hard": 9}
        first = await post(http, "/v1/limits", body, "limit-1")
        again = await post(http, "/v1/limits", body, "limit-1")
        other = await post(http, "/v1/limits", {**body, "hard": 10}, "limit-1")
        as_fence = await post(http, "/v1/fences", {"worker": "w1"}, "limit-1")
        unknown = await post(http, "/v1/limits", {**body, "tenant": "nobody"}, "limit-2")
        upside_down = await post(http, "/v1/limits", {**body, "soft": 10}, "limit-3")
        statuses = [r.status_code for r in (first, again, other, as_fence, unknown, upside_down)]
        assert statuses == [201, 200, 409, 409, 404, 400]
        assert first.json()["request"] == again.json()["request"]
        assert first.json()["kind"] == "limit_set"
        usage = (await http.get("/v1/tenants/default/usage")).json()
        assert usage["limits"] == [{"tier": "gpu", "unit": "blocks", "soft": 3, "hard": 9}]
        fenced = await post(http, "/v1/fences", {"worker": "w1"}, "fence-1")
        repeated = await post(http, "/v1/fences", {"worker": "w1"}, "fence-1")
        nobody = await post(http, "/v1/fences", {"worker": "w7"}, "fence-2")
        assert [r.status_code for r in (fenced, repeated, nobody)] == [201, 200, 404]
        found = await client.lookup(
            profile="tiny", token_ids=TOKENS, domain="default", max_staleness=20,
            min_token=fenced.json()["token"], wait=5,
        )  # fmt: skip
        assert (reasons(found), found.coverage.eligible) == ({"w1": "fenced"}, 1)
        async with tiny_hook(log, "w1", "e2"):
            await answered(client, lambda a: a.complete and a.coverage.eligible == 2)
            repeated = await post(http, "/v1/fences", {"worker": "w1"}, "fence-1")
            assert repeated.json()["request"] == fenced.json()["request"]
            await answered(client, lambda a: a.complete and a.coverage.eligible == 2)


async def test_a_token_of_one_replica_is_waited_for_by_another(
    kafka: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        live_log(kafka, topic_prefix) as log,
        serving(kafka, topic_prefix) as one,
        serving(kafka, topic_prefix) as two,
        tiny_hook(log, "w0") as hook,
        httpx.AsyncClient(base_url=url(two), timeout=20) as http,
        RouterClient(url(one), timeout_s=20) as first,
        RouterClient(url(two), timeout_s=20) as second,
    ):
        await hook.store(CHAIN[:2])
        await answered(second, lambda a: lengths(a) == {"w0": 2})
        behind = two.service.view
        withheld = Withheld(monkeypatch, lambda view, _: view is behind)
        await hook.store(CHAIN[2:5], parent=CHAIN[1])
        ahead = await answered(first, lambda a: lengths(a) == {"w0": 5})
        assert not behind.reached(Token.decode(ahead.token))
        at_once = await http.post("/v1/lookup", json={**ASKED, "min_token": ahead.token})
        assert (at_once.status_code, at_once.json()["type"]) == (503, "/problems/token-ahead")
        waiting = asyncio.create_task(
            http.post("/v1/lookup", json={**ASKED, "min_token": ahead.token, "wait_ms": 5_000})
        )
        await until(lambda: withheld.held)
        withheld.hand_over(behind)
        two.service.feed._wake()
        response = await waiting
        assert response.json()["matches"][0]["matched_blocks"] == 5
        assert Token.decode(ahead.token).reached_by(Token.decode(response.headers["KV-Token"]))
        foreign = Token("log-of-others", (), 0).encode()
        refusal = await http.post("/v1/lookup", json={**ASKED, "min_token": foreign})
        assert (refusal.status_code, refusal.json()["type"]) == (409, "/problems/token-foreign")
