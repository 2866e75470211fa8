"""Every refusal of the HTTP surface, over ASGI: a problem document, never a traceback, nothing repeated."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from events.kafka.connection import KafkaConnection
from indexer.service import order
from indexer.service.config import ServiceConfig, ServiceConfigError
from tests.support.lookup_http import ASKED, BOUND, CREDENTIALS, TOKENS, browser, kind, service
from tests.support.reader_world import RING, World, chain_of


async def test_a_good_lookup_is_answered() -> None:
    async with browser(service()) as http:
        response = await http.post("/v1/lookup", json=ASKED)
    assert response.status_code == 200
    assert response.json()["matches"][0]["matched_blocks"] == 10


async def test_whoever_asks_is_noted_whatever_the_answer() -> None:
    asked = service()
    async with browser(asked) as http:
        await http.post("/v1/lookup", json=ASKED)
        await http.post("/v1/lookup", json={**ASKED, "profile": "unheard"})
        await http.post("/v1/lookup/batch", json={"lookups": [ASKED]})
        await http.post("/v1/explain", json=ASKED)
        await http.post("/v1/lookup", json={**ASKED, "domain": "nobody"})
    [told], lost = asked.access.take()
    assert (told.principal, told.lookups, told.matched_blocks, lost) == ("local-operator", 4, 20, 0)


@pytest.mark.parametrize(
    ("change", "status", "problem"),
    [
        ({"max_staleness_ms": None}, 400, "bound-missing"),
        ({"max_staleness_ms": -1}, 400, "malformed"),
        ({"max_staleness_ms": "500"}, 400, "malformed"),
        ({"max_staleness_ms": True}, 400, "malformed"),
        ({"consistency": "any"}, 400, "malformed"),
        ({"consistency": "eventual", "max_staleness_ms": None}, 400, "malformed"),
        ({"max_stalenes_ms": 5}, 400, "malformed"),
        ({"token_ids": None}, 400, "malformed"),
        ({"block_ids": []}, 400, "malformed"),
        ({"token_ids": [-1]}, 400, "malformed"),
        ({"token_ids": [1 << 32]}, 400, "malformed"),
        ({"token_ids": [1.5]}, 400, "malformed"),
        ({"token_ids": "secret-prompt"}, 400, "malformed"),
        ({"token_ids": None, "block_ids": ["00" * 15]}, 400, "malformed"),
        ({"token_ids": None, "block_ids": ["00" * 17]}, 400, "malformed"),
        ({"token_ids": None, "block_ids": ["zz" * 16]}, 400, "malformed"),
        ({"token_ids": None, "block_ids": [" " + "0" * 31]}, 400, "malformed"),
        ({"token_ids": None, "block_ids": [7]}, 400, "malformed"),
        ({"min_coverage": -1}, 400, "malformed"),
        ({"min_coverage": 1.5}, 400, "malformed"),
        ({"wait_ms": -1}, 400, "malformed"),
        ({"limit": 0}, 400, "malformed"),
        ({"on_stale": "ignore"}, 400, "malformed"),
        ({"profile": ""}, 400, "malformed"),
        ({"profile": None}, 400, "malformed"),
        ({"min_token": "nonsense"}, 400, "malformed"),
        ({"profile": "unheard"}, 404, "profile-unknown"),
        ({"profile": "0" * 64}, 404, "profile-unknown"),
        ({"domain": "nobody"}, 403, "forbidden"),
        ({"max_staleness_ms": 1}, 422, "bound-below-floor"),
        ({"token_ids": None, "block_ids": ["00" * 16] * 32_769}, 413, "too-large"),
        ({"candidates": ["nobody"]}, 503, "staleness-bound-unmet"),
    ],
)
async def test_a_bad_lookup_is_refused_by_name(change: dict[str, Any], status: int, problem: str) -> None:
    asked = {name: value for name, value in {**ASKED, **change}.items() if value is not None}
    async with browser(service()) as http:
        response = await http.post("/v1/lookup", json=asked)
    assert (response.status_code, kind(response)) == (status, problem)
    assert "secret-prompt" not in response.text


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b'{"profile": "tiny", "token_ids": [1], "max_staleness_ms": NaN}',
        b'{"profile": "tiny", "token_ids": [1], "max_staleness_ms": Infinity}',
        b'{"profile": "tiny", "token_ids": [1], "max_staleness_ms": 1e400}',
        b"[" * 50_000,
        b'{"a":' * 10_000,
        b'{"profile": "\\ud800", "token_ids": [1], "max_staleness_ms": 500}',
    ],
)
async def test_bytes_that_are_no_request_are_400(body: bytes) -> None:
    async with browser(service()) as http:
        response = await http.post("/v1/lookup", content=body, headers={"Content-Type": "application/json"})
    assert (response.status_code, kind(response)) == (400, "malformed")


async def test_too_many_blocks_are_413_with_the_limit() -> None:
    made = service(max_body_bytes=10_000_000)
    async with browser(made) as http:
        many = {**ASKED, "block_ids": ["00" * 16] * 32_769}
        many.pop("token_ids")
        by_ids = await http.post("/v1/lookup", json=many)
        by_tokens = await http.post(
            "/v1/lookup",
            params={"profile": "tiny", "max_staleness_ms": 1000, "domain": "default"},
            content=bytes(4 * 16 * 32_769),
            headers={"Content-Type": "application/octet-stream"},
        )
    for response in (by_ids, by_tokens):
        assert (response.status_code, kind(response)) == (413, "too-many-blocks")
        assert response.json()["limit"] == 32_768


async def test_a_huge_body_is_refused_before_it_is_read() -> None:
    async def endless() -> Any:
        while True:
            yield b"x" * 10_000

    async with browser(service()) as http:
        declared = await http.post(
            "/v1/lookup", content=bytes(100_001), headers={"Content-Type": "application/json"}
        )
        chunked = await http.post(
            "/v1/lookup", content=endless(), headers={"Content-Type": "application/json"}
        )
        order = await http.post(
            "/v1/deletions", content=bytes(10_001), headers={"Content-Type": "application/json"}
        )
    for response, limit in ((declared, 100_000), (chunked, 100_000), (order, 10_000)):
        assert (response.status_code, kind(response), response.json()["limit"]) == (413, "too-large", limit)


@pytest.mark.parametrize("media", ["text/plain", "application/x-www-form-urlencoded", "application/xml", ""])
async def test_another_content_type_is_415(media: str) -> None:
    headers = {"Content-Type": media} if media else {}
    async with browser(service()) as http:
        lookup = await http.post("/v1/lookup", content=json.dumps(ASKED), headers=headers)
        order = await http.post("/v1/deletions", content=b"{}", headers=headers)
    assert (lookup.status_code, kind(lookup)) == (415, "media-type")
    assert (order.status_code, kind(order)) == (415, "media-type")


@pytest.mark.parametrize(
    ("query", "content", "status"),
    [
        ({**BOUND, "profile": "tiny"}, b"\x00" * 7, 400),
        ({"profile": "tiny"}, b"", 400),
        ({**BOUND}, b"", 400),
        ({**BOUND, "profile": "tiny", "max_staleness_ms": "NaN"}, b"", 400),
        ({**BOUND, "profile": "tiny", "surprise": "1"}, b"", 400),
        ({**BOUND, "profile": "tiny", "min_coverage": "x"}, b"", 400),
        ({**BOUND, "profile": "tiny", "min_coverage": "2"}, b"", 503),
        ({**BOUND, "profile": "tiny", "min_coverage": "1.0"}, b"", 200),
        ({**BOUND, "profile": "tiny", "candidates": "w0", "on_stale": "include"}, b"", 200),
    ],
)
async def test_binary_bodies_have_the_same_rules(query: dict[str, Any], content: bytes, status: int) -> None:
    async with browser(service()) as http:
        response = await http.post(
            "/v1/lookup",
            params={"domain": "default", **query},
            content=content,
            headers={"Content-Type": "application/octet-stream"},
        )
    assert response.status_code == status, response.text
    if status != 200:
        kind(response)


async def test_binary_tokens_are_u32_little_endian() -> None:
    async with browser(service()) as http:
        response = await http.post(
            "/v1/lookup",
            params={"domain": "default", "profile": "tiny", **BOUND},
            content=struct.pack("<320I", *TOKENS),
            headers={"Content-Type": "application/octet-stream"},
        )
    assert response.json()["matches"][0]["matched_tokens"] == 160


async def test_other_paths_and_methods_are_problems() -> None:
    async with browser(service()) as http:
        for method, path, status in (
            ("GET", "/v1/lookup", 405),
            ("GET", "/v1/lookup/batch", 405),
            ("DELETE", "/v1/deletions", 405),
            ("GET", "/nothing", 404),
            ("GET", "/v1/deletions/99", 404),
            ("GET", "/v1/deletions/x", 400),
        ):
            response = await http.request(method, path)
            assert response.status_code == status, path
            kind(response)


async def test_a_refusal_out_of_bound_names_what_would_be_met_and_when_to_ask_again() -> None:
    made = service()
    async with browser(made) as http:
        asked = {**ASKED, "min_coverage": 2}
        response = await http.post("/v1/lookup", json=asked)
    document = response.json()
    assert (response.status_code, kind(response)) == (503, "staleness-bound-unmet")
    assert response.headers["retry-after"] == "1"
    assert document["retry_after_ms"] >= 300
    assert document["coverage"] == {"included": 1, "eligible": 1}
    assert document["floor_ms"] == 300.0


async def test_on_loopback_without_credentials_the_caller_is_an_operator() -> None:
    async with browser(service()) as http:
        assert (await http.get("/v1/workers")).status_code == 200
        unknown = await http.post("/v1/lookup", json=ASKED, headers={"Authorization": "Bearer guess"})
        basic = await http.post("/v1/lookup", json=ASKED, headers={"Authorization": "Basic eDp5"})
    for response in (unknown, basic):
        assert (response.status_code, kind(response)) == (401, "unauthenticated")
        assert response.headers["www-authenticate"].startswith("Bearer")


def test_without_credentials_only_loopback_is_bound() -> None:
    for host in ("0.0.0.0", "192.168.1.1", "::", "example.org"):
        with pytest.raises(ServiceConfigError):
            ServiceConfig(connection=KafkaConnection("127.0.0.1:9"), keyring=RING, reader="r", host=host)
    ServiceConfig(
        connection=KafkaConnection("127.0.0.1:9"),
        keyring=RING,
        reader="r",
        host="0.0.0.0",
        credentials=CREDENTIALS,
    )


@pytest.mark.parametrize(
    ("token", "method", "path", "status"),
    [
        (None, "GET", "/v1/workers", 401),
        ("guess", "GET", "/v1/workers", 401),
        ("router", "GET", "/v1/workers", 200),
        ("acme", "GET", "/v1/workers", 403),
        ("auditor", "GET", "/v1/workers", 200),
        ("acme", "GET", "/v1/watermarks", 403),
        ("router", "GET", "/v1/deletions", 403),
        ("acme", "GET", "/v1/deletions", 200),
        ("auditor", "GET", "/v1/deletions", 200),
        ("acme", "GET", "/v1/tenants/acme/usage", 200),
        ("acme", "GET", "/v1/tenants/default/usage", 403),
        ("acme", "GET", "/v1/tenants/nobody/usage", 403),
        ("router", "GET", "/v1/tenants/acme/usage", 403),
        ("auditor", "GET", "/v1/tenants/acme/usage", 200),
        ("operator", "GET", "/v1/tenants/acme/usage", 200),
        (None, "GET", "/v1/tenants/acme/usage", 401),
        (None, "GET", "/v1/domains", 401),
        (None, "GET", "/healthz", 200),
        (None, "GET", "/readyz", 503),
    ],
)
async def test_roles_decide(token: str | None, method: str, path: str, status: int) -> None:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with browser(service(credentials=CREDENTIALS)) as http:
        response = await http.request(method, path, headers=headers)
    assert response.status_code == status, response.text


@pytest.mark.parametrize(
    ("token", "domain", "status"),
    [
        (None, "default", 401),
        ("router", "default", 200),
        ("router", None, 200),
        ("router", "acme", 403),
        ("router", "nobody", 403),
        ("everywhere", None, 200),
        ("everywhere", "acme", 404),
        ("acme", "default", 403),
        ("acme", "nobody", 403),
        ("acme", None, 404),
        ("auditor", "default", 403),
        ("operator", "default", 200),
    ],
)
async def test_a_domain_that_is_not_the_callers_looks_like_none(
    token: str | None, domain: str | None, status: int
) -> None:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    asked = {name: value for name, value in {**ASKED, "domain": domain}.items() if value is not None}
    async with browser(service(credentials=CREDENTIALS)) as http:
        response = await http.post("/v1/lookup", json=asked, headers=headers)
        assert response.status_code == status, response.text
        if status == 403:
            missing = await http.post("/v1/lookup", json={**asked, "domain": "missing"}, headers=headers)
            assert missing.text == response.text


async def test_an_admitted_tenant_reads_and_its_owner_alone_orders() -> None:
    made = service(credentials=CREDENTIALS)
    made.view.registry.domains["default"].admitted.add("acme")
    headers = {"Authorization": "Bearer acme"}
    async with browser(made) as http:
        assert (await http.post("/v1/lookup", json=ASKED, headers=headers)).status_code == 200
        body = {"scope": {"type": "domain", "domain": "default"}}
        refused = await http.post("/v1/deletions", json=body, headers=headers)
        names = (await http.get("/v1/domains", headers=headers)).json()
    assert (refused.status_code, kind(refused)) == (403, "forbidden")
    assert {d["domain"] for d in names["domains"]} == {"default", "acme"}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"scope": {"type": "everything"}}, 400),
        ({}, 400),
        ({"scope": {"type": "domain", "domain": "nobody"}}, 403),
        ({"scope": {"type": "tenant", "tenant": "nobody"}}, 403),
        ({"scope": {"type": "subject", "domain": "nobody", "subject": "x"}}, 403),
        ({"scope": {"type": "subject", "domain": "default", "subject": "x"}}, 503),
        ({"scope": {"type": "ids", "domain": "default", "ids": "AAAA"}}, 400),
        ({"scope": {"type": "prefix_tokens", "domain": "default", "profile": "tiny", "token_ids": [1]}}, 400),
        ({"scope": {"type": "prefix_tokens", "domain": "default", "profile": "x", "token_ids": TOKENS}}, 404),
        ({"scope": {"type": "domain", "domain": "default"}, "deadline_s": -1}, 400),
        ({"scope": {"type": "domain", "domain": "default"}}, 403),
    ],
)
async def test_a_bad_order_is_refused_and_a_replica_without_key_takes_none(
    body: dict[str, Any], status: int
) -> None:
    async with browser(service()) as http:
        response = await http.post("/v1/deletions", json=body)
    assert response.status_code == status, response.text
    kind(response)


async def test_a_prefix_by_tokens_waits_for_what_is_announced_and_is_refused_while_a_profile_may_be_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scope = {"type": "prefix_tokens", "domain": "default", "profile": "tiny", "token_ids": TOKENS}
    world = World()
    hook, other = world.join(), world.join("w1")
    world.round(hook, other)
    made = service(world=world)
    waited = 0

    async def read_on(timeout_s: float) -> None:
        nonlocal waited
        waited += 1
        assert timeout_s <= order.READ_UP_S
        world.wait(1_000)
        if waited == 1:
            hook.release()
        world.round(hook, other)

    monkeypatch.setattr(made.desk, "_wait_moved", read_on)

    async def ask() -> tuple[int, str]:
        async with browser(made) as http:
            answer = await http.post("/v1/deletions", json={"scope": scope})
        return answer.status_code, kind(answer)

    # Without a control key 403 is as far as an order gets that would be written.
    assert (await ask(), waited) == ((403, "forbidden"), 0)
    hook.hold = True
    hook.store(chain_of(TOKENS)[:1])
    hook.pulse()
    assert (await ask(), waited) == ((403, "forbidden"), 1)
    hook.store(chain_of(TOKENS)[1:2])
    hook.pulse()
    assert (await ask(), waited) == ((503, "index-unavailable"), 3)
    hook.release()
    other.builder.burn()
    other.store(chain_of(TOKENS)[:1])
    world.round(hook, other)
    assert await ask() == (503, "index-unavailable")
    made.view.caught_up = False
    assert await ask() == (503, "index-unavailable")


async def test_a_bad_idempotency_key_is_refused() -> None:
    body = {"scope": {"type": "domain", "domain": "default"}}
    async with browser(service()) as http:
        response = await http.post("/v1/deletions", json=body, headers={"Idempotency-Key": "a b"})
    assert (response.status_code, response.json()["field"]) == (400, "Idempotency-Key")


async def test_batches_answer_each_lookup_by_itself_and_are_limited() -> None:
    made = service()
    async with browser(made) as http:
        response = await http.post(
            "/v1/lookup/batch", json={"lookups": [ASKED, {**ASKED, "domain": "nobody"}]}
        )
        many = await http.post("/v1/lookup/batch", json={"lookups": [{**ASKED, "token_ids": []}] * 65})
        empty = await http.post("/v1/lookup/batch", json={"lookups": []})
    first, second = response.json()["answers"]
    assert first["matches"][0]["matched_blocks"] == 10
    assert second["status"] == 403
    assert (many.status_code, many.json()["limit"]) == (413, 64)
    assert empty.status_code == 400


async def test_a_fault_of_ours_shows_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    made = service()

    def broken() -> None:
        raise RuntimeError("secret-prompt")

    made.view.control_current_ns = broken
    async with browser(made) as http:
        response = await http.post("/v1/lookup", json=ASKED)
    assert (response.status_code, kind(response)) == (500, "internal")
    assert "secret-prompt" not in response.text


async def test_an_order_is_asked_for_again_while_control_is_still_being_read() -> None:
    made = service()
    made.view.control_current_ns = lambda: None
    async with browser(made) as http:
        response = await http.post(
            "/v1/deletions", json={"scope": {"type": "domain", "domain": "default"}, "reason": "x"}
        )
    assert (response.status_code, kind(response)) == (503, "index-unavailable")
    assert "Retry-After" in response.headers


@pytest.mark.parametrize("key", ["é", "ª", "²", "", "a" * 201, "a b"])
async def test_an_idempotency_key_is_plain_text(key: str) -> None:
    async with browser(service()) as http:
        response = await http.post(
            "/v1/deletions",
            json={"scope": {"type": "domain", "domain": "default"}, "reason": "x"},
            headers={b"Idempotency-Key": key.encode()},
        )
    assert response.status_code == 400


async def test_the_openapi_document_holds_every_route() -> None:
    async with browser(service()) as http:
        document = (await http.get("/openapi.json")).json()
    assert {
        "/v1/lookup",
        "/v1/lookup/batch",
        "/v1/workers",
        "/v1/watermarks",
        "/v1/domains",
        "/v1/tenants/{tenant}/usage",
        "/v1/deletions",
        "/v1/deletions/{number}",
        "/v1/invalidations",
        "/v1/limits",
        "/v1/fences",
        "/v1/watch",
        "/v1/snapshot",
        "/healthz",
        "/readyz",
        "/metrics",
    } <= set(document["paths"])
    assert "LookupRequest" in document["components"]["schemas"]


async def test_metrics_name_no_domain_or_tenant() -> None:
    async with browser(service()) as http:
        await http.post("/v1/lookup", json=ASKED)
        await http.post("/v1/lookup", json={})
        page = (await http.get("/metrics")).text
    assert 'kvledger_lookups_total{outcome="complete"} 1.0' in page
    assert 'kvledger_lookups_total{outcome="malformed"} 1.0' in page
    assert "default" not in page


async def test_an_unknown_path_is_named_and_so_is_the_list_of_all() -> None:
    async with browser(service()) as http:
        missing, wrong = await http.get("/v1/worker"), await http.delete("/v1/workers")
    assert (missing.status_code, wrong.status_code) == (404, 405)
    assert all(part in missing.json()["detail"] for part in ("/v1/worker;", "/openapi.json"))
    assert "does not take DELETE" in wrong.json()["detail"]


async def test_an_unknown_profile_is_refused_with_where_to_look() -> None:
    async with browser(service()) as http:
        response = await http.post("/v1/lookup", json={**ASKED, "profile": "unheard"})
    assert "/v1/workers" in response.json()["detail"]
