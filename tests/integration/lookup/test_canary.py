"""The canary on a real broker: it sings, measures, hands its slot on, and costs no answer when it is broken."""

from __future__ import annotations

from dataclasses import replace

import httpx

from events.ids import CANARY_WORKER, Role
from events.kafka.connection import KafkaConnection
from events.model.control import Fenced, SchemaEnabled
from events.topic import TopicNames
from indexer.service.config import ServiceConfig
from indexer.service.server import start
from router_client.client import RouterClient
from router_client.limit import ViewLimits
from tests.support.live_log import RING, SIGNERS, live_log, tiny_hook, until
from tests.support.lookup_service import CHAIN, answered, url
from tests.support.reader_world import lengths


def configured(kafka: str, prefix: str, reader: str) -> ServiceConfig:
    return ServiceConfig(
        connection=KafkaConnection(kafka, TopicNames(prefix)),
        keyring=RING,
        reader=reader,
        port=0,
        signers={role: SIGNERS[role] for role in (Role.CONTROL, Role.ENROLMENT)},
        limits=ViewLimits(silent_after_ns=500_000_000),
    )


async def test_canaries_sing_measure_and_are_in_nobodys_way(kafka: str, topic_prefix: str) -> None:
    async with live_log(kafka, topic_prefix) as log, tiny_hook(log, "w0") as hook:
        await hook.store(CHAIN[:4])
        one = await start(configured(kafka, topic_prefix, "one"))
        two = await start(replace(configured(kafka, topic_prefix, "two"), canary=False))
        try:
            canary = one.service.canary
            # Not before the log's readers understand what is written.
            await until(lambda: canary.state == "broken" and "SchemaNotEnabledError" in canary.why)
            async with RouterClient(url(one), timeout_s=20) as client:
                await answered(client, lambda a: a.complete and lengths(a) == {"w0": 4})
                await log.order(SchemaEnabled(record="event_batch", version=1))
                await until(lambda: canary.state == "running" and canary.gauge.changes > 4)
                gauge = canary.gauge
                await until(lambda: gauge.reported_ns is not None)
                measured = gauge.measured_ns()
                assert measured is not None
                assert 0 < measured < 5_000_000_000
                assert gauge.violations == 0
                found = await answered(client, lambda a: a.complete)
                assert (found.coverage.eligible, lengths(found)) == (1, {"w0": 4})
                assert two.service.canary.report()["why"] == "it is switched off"
                first = gauge.stream
                assert first is not None
                await log.order(
                    Fenced(worker=first.worker, rank=first.rank, epoch=first.epoch, evidence="operator")
                )
                await until(lambda: canary.state == "broken")
                found = await answered(client, lambda a: a.complete)
                assert lengths(found) == {"w0": 4}
            async with httpx.AsyncClient(base_url=url(two)) as http:
                shown = (await http.get("/v1/workers")).json()["workers"]
                assert [worker["worker"] for worker in shown] == ["w0"]
            assert (CANARY_WORKER, 0) in two.service.view.registry.current
        finally:
            await one.stop()
            await two.stop()
