"""Replicas that start without PostgreSQL: from a peer, from the log when no peer is any good, and what they say
meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import pytest

from events.ids import Role
from events.kafka.connection import KafkaConnection
from events.topic import TopicNames
from indexer.service.config import ServiceConfig
from indexer.service.peer import Peer
from indexer.service.server import start
from router_client.client import RouterClient
from tests.support.live_log import RING, SIGNERS, live_log, tiny_hook, until
from tests.support.lookup_service import CHAIN, answered, serving, url
from tests.support.reader_world import lengths, reasons
from tests.support.withheld import Withheld


def configured(kafka: str, prefix: str, *peers: str) -> ServiceConfig:
    return ServiceConfig(
        connection=KafkaConnection(kafka, TopicNames(prefix)),
        keyring=RING,
        reader=f"reader-{len(peers)}-{prefix}",
        port=0,
        signers={Role.CONTROL: SIGNERS[Role.CONTROL]},
        peers=tuple(Peer(peer) for peer in peers),
        canary=False,
    )


async def test_a_replica_starts_from_a_peer_and_from_the_log_when_no_peer_is_any_good(
    kafka: str, topic_prefix: str
) -> None:
    async with live_log(kafka, topic_prefix) as log, tiny_hook(log, "w0") as hook:
        await hook.store(CHAIN[:20])
        async with (
            serving(kafka, topic_prefix) as first,
            RouterClient(url(first), timeout_s=20) as client,
        ):
            await answered(client, lambda a: a.complete and lengths(a) == {"w0": 20})
            await until(lambda: first.service.view.caught_up)
            second = await start(configured(kafka, topic_prefix, "http://127.0.0.1:9", url(first)))
            keyless = await start(replace(configured(kafka, topic_prefix), reader="keyless", signers={}))
            third = await start(
                configured(kafka, topic_prefix, "http://127.0.0.1:9", url(keyless), "nowhere")
            )
            try:
                for server, restored in ((second, 20), (third, None)):
                    async with RouterClient(url(server), timeout_s=20) as other:
                        await answered(other, lambda a: a.complete and lengths(a) == {"w0": 20})
                    assert server.service.feed.state.restored_copies == restored
                await hook.evict([CHAIN[7]])
                async with RouterClient(url(second), timeout_s=20) as other:
                    await answered(other, lambda a: a.complete and lengths(a) == {"w0": 7})
            finally:
                for server in (second, third, keyless):
                    await server.stop()


async def test_an_empty_replica_says_stream_by_stream_what_it_has_read(
    kafka: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        live_log(kafka, topic_prefix) as log,
        tiny_hook(log, "w0") as hook,
        tiny_hook(log, "w1") as other,
    ):
        assert hook.partition != other.partition
        await hook.store(CHAIN[:5])
        await other.store(CHAIN[:9])
        withheld = Withheld(monkeypatch, lambda _, partition: partition != hook.partition)
        server = await start(configured(kafka, topic_prefix))
        try:
            async with (
                RouterClient(url(server), timeout_s=20) as client,
                httpx.AsyncClient(base_url=url(server), timeout=20) as http,
            ):
                found = await answered(client, lambda a: lengths(a) == {"w0": 5})
                assert reasons(found) == {"w1": "unopened"}
                assert (found.complete, str(found.coverage)) == (False, "1/2")
                ready = await http.get("/readyz")
                assert (ready.status_code, ready.json()["caught_up"]) == (200, False)
                asked: dict[str, Any] = {
                    "profile": "tiny",
                    "domain": "default",
                    "block_ids": [CHAIN[0].hex()],
                }
                strict = await http.post(
                    "/v1/lookup", json={**asked, "max_staleness_ms": 2_000, "min_coverage": 1.0}
                )
                assert (strict.status_code, strict.headers["KV-Coverage"]) == (503, "1/2")
                withheld.hand_over(server.service.view)
                server.service.feed._check_caught_up()
                await answered(client, lambda a: a.complete and lengths(a) == {"w0": 5, "w1": 9})
        finally:
            await server.stop()
