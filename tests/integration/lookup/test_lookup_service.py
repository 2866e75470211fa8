"""The lookup service on a real broker: what a hook writes is what HTTP answers, within the bound."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import httpx
import pytest
from aiokafka.admin import AIOKafkaAdminClient

from events.identity import profile_digest
from events.kafka.connection import LogTail
from events.kafka.topic_admin import TopicAdmin
from events.model.control import ExitAttested, Fenced
from events.model.part import Ack, BlockStored, RequestStanding
from events.token import Token
from events.topic import CONTROL, EVENTS, PULSE, QUOTA, SIGNALS
from indexer.postgres_store import PostgresStore
from indexer.service.config import ServiceConfig
from indexer.service.server import FeedFailedError, bound_socket, run, start
from indexer.store import Snapshot
from router_client.client import RouterClient
from tests.support.live_log import PARTITIONS, RING, begin_log, live_log, tiny_hook, until
from tests.support.log import PROFILE
from tests.support.lookup_service import CHAIN, TOKENS, answered, serving, url
from tests.support.reader_world import lengths, reasons

PROFILE_ID = profile_digest(PROFILE)
WIDE_S = 20
"""The bound of a question that is put once: it isn't what the test is about."""


async def test_what_a_hook_writes_is_answered_within_the_bound(kafka: str, topic_prefix: str) -> None:
    async with (
        live_log(kafka, topic_prefix) as log,
        serving(kafka, topic_prefix) as server,
        tiny_hook(log, "w0") as hook,
        RouterClient(url(server), timeout_s=20) as client,
    ):
        await hook.store(CHAIN[:20])
        found = await answered(client, lambda a: a.matches and a.complete)
        assert lengths(found) == {"w0": 20}
        assert found.staleness_ms is not None
        assert found.staleness_ms < 2_000
        await hook.evict([CHAIN[5]])
        found = await answered(client, lambda a: lengths(a) == {"w0": 5})
        by_ids = await client.lookup(
            profile=PROFILE_ID, block_ids=CHAIN, domain="default", max_staleness=WIDE_S
        )
        assert lengths(by_ids) == {"w0": 5}


async def test_all_body_forms_and_headers(kafka: str, topic_prefix: str) -> None:
    async with (
        live_log(kafka, topic_prefix) as log,
        serving(kafka, topic_prefix) as server,
        tiny_hook(log, "w0") as hook,
        RouterClient(url(server), timeout_s=20) as client,
        httpx.AsyncClient(base_url=url(server), timeout=20) as http,
    ):
        await hook.store(CHAIN[:20])
        await answered(client, lambda a: a.matches)
        asked: dict[str, Any] = {"profile": "tiny", "domain": "default", "max_staleness_ms": 1_000 * WIDE_S}
        by_tokens = await http.post("/v1/lookup", json={**asked, "token_ids": TOKENS})
        by_ids = await http.post(
            "/v1/lookup", json={**asked, "profile": PROFILE_ID, "block_ids": [b.hex() for b in CHAIN]}
        )
        binary = await http.post(
            "/v1/lookup",
            params=asked,
            content=struct.pack(f"<{len(TOKENS)}I", *TOKENS),
            headers={"Content-Type": "application/octet-stream"},
        )
        batch = await http.post(
            "/v1/lookup/batch",
            json={"lookups": [{**asked, "token_ids": TOKENS}, {**asked, "profile": "x", "token_ids": []}]},
        )
        for response in (by_tokens, by_ids, binary):
            assert response.status_code == 200, response.text
            assert response.json()["matches"][0]["matched_blocks"] == 20
            headers = response.headers
            assert headers["KV-Coverage"] == "1/1"
            assert headers["KV-Bound-Ms"] == "20000"
            assert headers["KV-Consistency-Effective"] == "bounded"
            assert float(headers["KV-Staleness-Ms"]) < 1_000 * WIDE_S
            assert headers["KV-As-Of"].endswith("+00:00")
            assert headers["Cache-Control"] == "no-store"
            assert headers["KV-Token"] == response.json()["token"]
        first, second = batch.json()["answers"]
        assert first["matches"][0]["matched_blocks"] == 20
        assert second["status"] == 404


async def test_a_lost_record_and_a_silent_worker_are_left_out_with_a_reason(
    kafka: str, topic_prefix: str
) -> None:
    async with (
        live_log(kafka, topic_prefix) as log,
        serving(kafka, topic_prefix) as server,
        tiny_hook(log, "gap") as gap,
        tiny_hook(log, "mute") as mute,
        tiny_hook(log, "good") as good,
        RouterClient(url(server), timeout_s=20) as client,
    ):
        for hook in (gap, mute, good):
            await hook.store(CHAIN[:4])
        await answered(client, lambda a: len(a.matches) == 3)
        await gap.lose([BlockStored(holder="gpu", group=0, profile=0, ids=(CHAIN[4],), parent=CHAIN[3])])
        await gap.store(CHAIN[5:6], parent=CHAIN[4])
        mute.silent = True
        found = await answered(
            client, lambda a: reasons(a) == {"gap": "gap", "mute": "silent"}, max_staleness=1.0
        )
        assert lengths(found) == {"good": 4}
        assert not found.complete


async def test_a_lost_last_record_shows_as_stale(kafka: str, topic_prefix: str) -> None:
    async with (
        live_log(kafka, topic_prefix) as log,
        serving(kafka, topic_prefix) as server,
        tiny_hook(log, "w0") as hook,
        tiny_hook(log, "w1"),
        RouterClient(url(server), timeout_s=20) as client,
    ):
        await hook.store(CHAIN[:4])
        await answered(client, lambda a: lengths(a) == {"w0": 4} and a.complete)
        await hook.lose([BlockStored(holder="gpu", group=0, profile=0, ids=(CHAIN[4],), parent=CHAIN[3])])
        await answered(client, lambda a: reasons(a) == {"w0": "stale"}, max_staleness=1.0)


async def test_a_restarted_worker_is_void_at_once(kafka: str, topic_prefix: str) -> None:
    async with (
        live_log(kafka, topic_prefix) as log,
        serving(kafka, topic_prefix) as server,
        RouterClient(url(server), timeout_s=20) as client,
    ):
        async with tiny_hook(log, "w0", "e1") as hook:
            await hook.store(CHAIN)
            await answered(client, lambda a: lengths(a) == {"w0": 40})
        async with tiny_hook(log, "w0", "e2") as hook:
            registered = Token(log.log, (), hook.builder.epoch_no + 1).encode()
            found = await answered(client, lambda a: a.complete, min_token=registered, wait=5.0)
            assert found.matches == []
            await hook.store(CHAIN[:3])
            await answered(client, lambda a: lengths(a) == {"w0": 3})


async def test_a_restarted_service_gives_the_same_answer(kafka: str, topic_prefix: str) -> None:
    async with live_log(kafka, topic_prefix) as log, tiny_hook(log, "w0") as hook:
        await hook.store(CHAIN[:20])
        await hook.evict([CHAIN[11]])
        for _ in range(2):
            async with (
                serving(kafka, topic_prefix) as server,
                RouterClient(url(server), timeout_s=20) as client,
            ):
                found = await answered(client, lambda a: a.complete)
                assert lengths(found) == {"w0": 11}
                assert server.service.view.copies == 19


async def test_a_service_starts_before_the_log_exists(kafka: str, topic_prefix: str) -> None:
    async with (
        live_log(kafka, topic_prefix, begin=False) as log,
        serving(kafka, topic_prefix, ready=False) as server,
        RouterClient(url(server), timeout_s=20) as client,
        httpx.AsyncClient(base_url=url(server), timeout=20) as http,
    ):
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/readyz")).status_code == 503
        asked: dict[str, Any] = {"profile": "tiny", "token_ids": TOKENS, "max_staleness_ms": 2_000}
        refusal = await http.post("/v1/lookup", json=asked)
        assert (refusal.status_code, refusal.json()["type"]) == (503, "/problems/index-unavailable")
        await begin_log(log)
        await until(lambda: server.service.view.registry.domains)
        async with tiny_hook(log, "w0") as hook:
            await hook.store(CHAIN[:4])
            await answered(client, lambda a: lengths(a) == {"w0": 4})


async def test_garbage_on_every_topic_harms_nobody(kafka: str, topic_prefix: str) -> None:
    async with (
        live_log(kafka, topic_prefix) as log,
        serving(kafka, topic_prefix) as server,
        tiny_hook(log, "w0") as hook,
        RouterClient(url(server), timeout_s=20) as client,
    ):
        await hook.store(CHAIN[:4])
        for garbage in (b"", b"\xff\xfe", b"{}", b'{"v":99}\n{}', b"null"):
            for topic in (EVENTS, PULSE):
                await log.send(log.connection.topic(topic), hook.partition, garbage)
            for topic in (QUOTA, CONTROL):
                await log.send(log.connection.topic(topic), 0, garbage, b"k")
        await hook.store(CHAIN[4:6], parent=CHAIN[3])
        found = await answered(client, lambda a: lengths(a) == {"w0": 6})
        assert found.complete
        assert server.service.view.counters.undecodable == 5


async def test_a_deletion_hides_at_once_and_its_token_is_reflected(kafka: str, topic_prefix: str) -> None:
    async with (
        live_log(kafka, topic_prefix) as log,
        serving(kafka, topic_prefix) as server,
        tiny_hook(log, "w0") as hook,
        RouterClient(url(server), timeout_s=20) as client,
        httpx.AsyncClient(base_url=url(server), timeout=20) as http,
    ):
        await hook.store(CHAIN[:4])
        await answered(client, lambda a: lengths(a) == {"w0": 4})
        order = {"scope": {"type": "domain", "domain": "default"}, "reason": "asked"}
        first = await http.post("/v1/deletions", json=order, headers={"Idempotency-Key": "k1"})
        again = await http.post("/v1/deletions", json=order, headers={"Idempotency-Key": "k1"})
        other = await http.post(
            "/v1/deletions",
            json={"scope": {"type": "domain", "domain": "acme"}},
            headers={"Idempotency-Key": "k1"},
        )
        assert (first.status_code, again.status_code, other.status_code) == (201, 200, 409)
        receipt = first.json()
        assert receipt["request"] == again.json()["request"]
        found = await client.lookup(
            profile="tiny", token_ids=TOKENS, domain="default", max_staleness=WIDE_S,
            min_token=receipt["token"], wait=5,
        )  # fmt: skip
        assert found.matches == []
        number = receipt["request"]
        shown = (await http.get(f"/v1/deletions/{number}")).json()
        assert shown["discharged_everywhere"] is False
        assert [h["standing"] for h in shown["holders"]] == ["owes"]
        await hook.evict(CHAIN[:4])
        done = RequestStanding(request=number, removed=4, old_left=0)
        await hook.write(events=[Ack(requests=(done,))])
        await hook.store(CHAIN[:2])
        await answered(client, lambda a: lengths(a) == {"w0": 2})
        shown = (await http.get(f"/v1/deletions/{number}")).json()
        assert shown["discharged_everywhere"] is True
        listed = (await http.get("/v1/deletions")).json()["deletions"]
        assert [entry["request"] for entry in listed] == [number]


async def test_tokens_wait_and_the_future_is_refused(kafka: str, topic_prefix: str) -> None:
    async with (
        live_log(kafka, topic_prefix) as log,
        serving(kafka, topic_prefix) as server,
        tiny_hook(log, "w0") as hook,
        httpx.AsyncClient(base_url=url(server), timeout=20) as http,
        RouterClient(url(server), timeout_s=20) as client,
    ):
        await answered(client, lambda a: a.complete)
        asked: dict[str, Any] = {
            "profile": "tiny",
            "domain": "default",
            "token_ids": TOKENS,
            "max_staleness_ms": 1_000 * WIDE_S,
        }
        future = Token(log.log, (10**6,), 0).encode()
        refusal = await http.post("/v1/lookup", json={**asked, "min_token": future})
        assert (refusal.status_code, refusal.json()["type"]) == (409, "/problems/token-future")
        offset = server.service.view.position(hook.partition)
        events = [0] * 4
        events[hook.partition] = offset + 1
        next_record = Token(log.log, tuple(events), 0).encode()
        waiting = asyncio.create_task(
            http.post("/v1/lookup", json={**asked, "min_token": next_record, "wait_ms": 5_000})
        )
        await hook.store(CHAIN[:3])
        response = await waiting
        assert response.status_code == 200, response.text
        assert response.json()["matches"][0]["matched_blocks"] == 3


async def test_control_plane_shows_the_fleet(kafka: str, topic_prefix: str) -> None:
    async with (
        live_log(kafka, topic_prefix) as log,
        serving(kafka, topic_prefix) as server,
        tiny_hook(log, "w0") as hook,
        tiny_hook(log, "w1"),
        httpx.AsyncClient(base_url=url(server), timeout=20) as http,
        RouterClient(url(server), timeout_s=20) as client,
    ):
        await hook.store(CHAIN[:4])
        await answered(client, lambda a: lengths(a) == {"w0": 4} and a.complete)
        await log.order(Fenced(worker="w1", rank=0, epoch="e1", evidence="operator"))
        await answered(client, lambda a: reasons(a) == {"w1": "fenced"} and a.complete)
        workers = {w["worker"]: w for w in (await http.get("/v1/workers")).json()["workers"]}
        assert workers["w0"]["status"] == "live"
        assert workers["w1"]["fenced"] == "operator"
        marks = (await http.get("/v1/watermarks")).json()
        assert marks["log"] == log.log
        assert marks["copies"] == 4
        assert marks["caught_up"] is True
        usage = (await http.get("/v1/tenants/default/usage")).json()
        assert usage["tiers"] == {"gpu": {"blocks": 4, "bytes": 400}}
        assert (await http.get("/v1/tenants/nobody/usage")).status_code == 403
        assert {d["domain"] for d in (await http.get("/v1/domains")).json()["domains"]} == {"default", "acme"}
        page = (await http.get("/metrics")).text
        assert "kvledger_view_copies 4.0" in page
        assert 'kvledger_lookups_total{outcome="complete"}' in page
        assert "/v1/lookup" in (await http.get("/openapi.json")).json()["paths"]


def test_the_event_loop_can_switch_nagles_rule_off() -> None:
    with bound_socket("127.0.0.1", 0) as listener:
        listener.listen(1)
        with socket.create_connection(listener.getsockname(), timeout=5):
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.proto == socket.IPPROTO_TCP


async def test_the_service_asks_for_a_snapshot_of_a_stream_that_is_not_whole(
    kafka: str, topic_prefix: str
) -> None:
    async with (
        live_log(kafka, topic_prefix) as log,
        serving(kafka, topic_prefix) as server,
        tiny_hook(log, "w0") as hook,
    ):
        await hook.lose([])
        await hook.store(CHAIN[:2])
        await until(lambda: server.service.beacons.resyncs >= 1)
        assert log.connection.topic(SIGNALS).endswith("kv.signals")


@pytest.mark.parametrize("away", ["refuses", "hangs"])
async def test_without_a_snapshot_the_log_is_read_from_its_start(
    kafka: str, topic_prefix: str, away: str
) -> None:
    store = PostgresStore("postgresql://nobody@127.0.0.1:9/none", keyring=RING)

    async def snapshot(topic: str) -> Snapshot:
        if away == "hangs":
            await asyncio.Event().wait()
        return await store.snapshot(topic)

    async with live_log(kafka, topic_prefix) as log, tiny_hook(log, "w0") as hook:
        await hook.store(CHAIN[:20])
        config = ServiceConfig(
            connection=log.connection,
            keyring=RING,
            reader="r",
            port=0,
            load_snapshot=snapshot,
            snapshot_timeout_s=0.2,
        )
        server = await start(config)
        try:
            async with RouterClient(url(server), timeout_s=20) as client:
                await answered(client, lambda a: lengths(a) == {"w0": 20} and a.complete)
        finally:
            await server.stop()


async def test_tokens_of_the_future_cost_one_question_together(kafka: str, topic_prefix: str) -> None:
    async with (
        live_log(kafka, topic_prefix) as log,
        serving(kafka, topic_prefix) as server,
        tiny_hook(log, "w0"),
        httpx.AsyncClient(base_url=url(server), timeout=20) as http,
        RouterClient(url(server), timeout_s=20) as client,
    ):
        await answered(client, lambda a: a.complete)
        asked: dict[str, Any] = {
            "profile": "tiny",
            "domain": "default",
            "token_ids": TOKENS,
            "max_staleness_ms": 1_000 * WIDE_S,
        }
        tokens = [Token(log.log, (10**6,), 0).encode(), Token(log.log, (), 10**6).encode()]
        before = server.service.feed._log_end.questions
        refusals = await asyncio.gather(
            *[http.post("/v1/lookup", json={**asked, "min_token": tokens[at % 2]}) for at in range(60)]
        )
        assert {refusal.status_code for refusal in refusals} == {409}
        assert server.service.feed._log_end.questions - before < 10


async def test_a_truncated_control_log_ends_the_service(kafka: str, topic_prefix: str) -> None:
    async with live_log(kafka, topic_prefix) as log:
        running = asyncio.create_task(
            run(ServiceConfig(connection=log.connection, keyring=RING, reader="r", port=free_port()))
        )
        reader = LogTail(log.connection, {(log.connection.topic(SIGNALS), 0): 0})
        await reader.start()
        try:
            await until(lambda: reader.fetch(timeout_ms=50))
        finally:
            await reader.stop()
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
        await admin.start()
        try:
            await admin.delete_topics([log.connection.topic(CONTROL)])
            name = log.connection.topic(CONTROL)
            await until(lambda: _gone(admin, name))
        finally:
            await admin.close()
        await TopicAdmin(log.connection, partitions=PARTITIONS).ensure()
        with pytest.raises(FeedFailedError):
            await asyncio.wait_for(running, 60)


async def _gone(admin: Any, name: str) -> bool:
    return name not in await admin.list_topics()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


async def test_a_replica_whose_control_log_was_cut_answers_nothing_more(
    kafka: str, topic_prefix: str
) -> None:
    async with (
        live_log(kafka, topic_prefix) as log,
        serving(kafka, topic_prefix) as server,
        tiny_hook(log, "w0"),
        httpx.AsyncClient(base_url=url(server), timeout=20) as http,
        RouterClient(url(server), timeout_s=20) as client,
    ):
        await answered(client, lambda a: a.complete)
        server.service.view.registry.next_offset += 1_000
        await until(server.service.failed.is_set)
        for path in ("/readyz", "/v1/workers"):
            assert (await http.get(path)).status_code == 503
        refusal = await http.post(
            "/v1/lookup", json={"profile": "tiny", "token_ids": TOKENS, "consistency": "any"}
        )
        assert (refusal.status_code, refusal.json()["type"]) == (503, "/problems/index-unavailable")


async def test_a_worker_whose_exit_is_attested_is_not_waited_for(kafka: str, topic_prefix: str) -> None:
    async with (
        live_log(kafka, topic_prefix) as log,
        serving(kafka, topic_prefix) as server,
        tiny_hook(log, "w0") as hook,
        tiny_hook(log, "w1"),
        RouterClient(url(server), timeout_s=20) as client,
    ):
        await hook.store(CHAIN[:3])
        await answered(client, lambda a: a.complete and a.coverage.eligible == 2)
        await log.order(
            ExitAttested(worker="w1", engine_life="life-e1", attester="s", evidence="wait status")
        )
        found = await answered(client, lambda a: a.coverage.eligible == 1)
        assert (found.complete, reasons(found)) == (True, {"w1": "fenced"})
