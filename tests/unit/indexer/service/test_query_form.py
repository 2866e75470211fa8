"""`/query` in the form that other indexes answer, with kvledger's bound and flags."""

from __future__ import annotations

from typing import Any

from events.identity import make_salt
from events.ids import Tier
from tests.support.lookup_http import CREDENTIALS, TOKENS, browser, kind, service
from tests.support.reader_world import RING, World, chain_of

FORM: dict[str, Any] = {"token_ids": TOKENS, "model_name": "tiny"}


def world() -> World:
    found = World(domains=[("acme", "acme")])
    one, two, other = (
        found.join("w0", 0, "a", Tier.GPU, Tier.CPU),
        found.join("w0", 1, "b", Tier.GPU, Tier.CPU),
        found.join("w1", 0, "c"),
    )
    one.store(chain_of(TOKENS)[:4])
    one.store(chain_of(TOKENS)[4:6], chain_of(TOKENS)[3], holder="cpu")
    two.store(chain_of(TOKENS)[:5])
    found.round(one, two)
    other.store(chain_of(TOKENS)[:9])
    return found


async def test_scores_and_tiers_are_in_tokens_and_who_is_left_out_is_named() -> None:
    async with browser(service(world=world())) as http:
        response = await http.post("/query", json={**FORM, "domain": "default", "block_size": 16})
    found = response.json()
    assert found["scores"] == {"w0": {"0": 96, "1": 80}}
    assert found["instances"] == {
        "w0": {"longest_matched": 96, "gpu": 80, "dp": {"0": 64, "1": 80}, "cpu": 96, "disk": 96}
    }
    assert [(e["worker"], e["reason"]) for e in found["excluded"]] == [("w1", "stale")]
    assert (found["complete"], found["coverage"]) == (False, {"included": 2, "eligible": 3})
    assert response.headers["KV-Bound-Ms"] == "1000"


async def test_a_salt_names_the_domain_and_what_cannot_be_honoured_is_refused() -> None:
    salts = {domain: make_salt(RING[domain].salt_key, domain) for domain in ("default", "acme")}
    headers = {"Authorization": "Bearer router"}
    async with browser(service(world=world(), credentials=CREDENTIALS)) as http:

        async def ask(**more: Any) -> tuple[int, str]:
            response = await http.post("/query", json={**FORM, **more}, headers=headers)
            return response.status_code, "" if response.status_code == 200 else kind(response)

        assert await ask(cache_salt=salts["default"]) == (200, "")
        assert await ask(cache_salt=salts["acme"]) == (403, "forbidden")
        assert await ask(cache_salt=salts["default"][:-1] + "0x") == (403, "forbidden")
        assert await ask(cache_salt="a-gateways-own") == (403, "forbidden")
        assert await ask(domain="acme", cache_salt=salts["default"]) == (403, "forbidden")
        assert await ask(routing_group="blue") == (400, "malformed")
        assert await ask(token_ids=[-1]) == (400, "malformed")
        assert await ask(model_name="unheard") == (404, "profile-unknown")
        assert await ask(max_staleness_ms=1.0) == (422, "bound-below-floor")
        assert await ask(min_token="nonsense") == (400, "malformed")
        by_hash = await http.post("/query_by_hash", json={"block_hashes": [1]}, headers=headers)
    assert (by_hash.status_code, kind(by_hash)) == (501, "not-implemented")
    assert "token_ids" in by_hash.json()["detail"]
