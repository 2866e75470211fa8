"""What really happens to a log on a real broker: records deleted, compacted, and of transactions that were aborted."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.admin.records_to_delete import RecordsToDelete
from aiokafka.structs import TopicPartition

from auditor.finding import Verdict
from auditor.log import PartitionReader
from events.ids import Role
from events.kafka.connection import KafkaConnection
from events.topic import CONTROL, EVENTS, SIGNATURE_HEADER, TopicNames
from tests.integration.audit.test_checkpoint import started
from tests.integration.audit.test_command import Published, control_end, fleet, published
from tests.support.command import KVLEDGER, environment
from tests.support.live_log import until

__all__ = ["published"]


async def proven(published: Published) -> int:
    """A deletion that is proven on the log as it is."""
    log = published.log
    first, second, request = fleet(log)
    for hook in (first, second):
        hook.obey(request)
    nonce = log.nonce(request)
    for hook in (first, second):
        hook.ack(request, nonce=nonce)
    await published.publish()
    assert published.verdict(request)[0] == 0
    return request


def reasons(published: Published, request: int) -> tuple[int, set[str]]:
    code, verdict = published.verdict(request)
    return code, {reason.reason.value for reason in verdict.reasons}


async def test_deleted_records_are_retention_and_a_gone_worker_makes_it_final(published: Published) -> None:
    request = await proven(published)
    hook = published.log.hooks[0]
    topic = TopicNames(published.prefix).of(EVENTS)
    admin = AIOKafkaAdminClient(bootstrap_servers=published.kafka)
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(topic, hook.partition): RecordsToDelete(before_offset=3)})
    finally:
        await admin.close()
    assert reasons(published, request) == (3, {"retention_truncated"})
    published.log.fence(hook)
    await published.publish()
    assert reasons(published, request) == (2, {"retention_truncated"})


async def test_a_deleted_beginning_of_control_leaves_nothing_to_prove(published: Published) -> None:
    request = await proven(published)
    topic = TopicNames(published.prefix).of(CONTROL)
    admin = AIOKafkaAdminClient(bootstrap_servers=published.kafka)
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=1)})
    finally:
        await admin.close()
    code, out, err = published.run("run", "--request", str(request), "--wait", "0")
    assert code not in (0, 1)
    assert "PROVEN" not in out
    assert err.strip().splitlines()[-1].startswith("kvledger: ")


async def test_an_aborted_transaction_harms_no_stream(published: Published) -> None:
    """Its record is read like any other, its mark is none; on kv.control the mark's offset would be a hole."""
    request = await proven(published)
    producer = AIOKafkaProducer(bootstrap_servers=published.kafka, transactional_id=f"{published.prefix}t")
    await producer.start()
    try:
        await producer.begin_transaction()
        await producer.send_and_wait(TopicNames(published.prefix).of(EVENTS), b"{}", key=b"k", partition=0)
        await producer.abort_transaction()
        assert reasons(published, request) == (0, set())
    finally:
        await producer.stop()


async def test_an_auditor_whose_grant_is_in_a_hole_judges_and_writes_no_nonce(published: Published) -> None:
    """A transaction's mark stands where the grant was."""
    log, topic = published.log, TopicNames(published.prefix).of(CONTROL)
    first, second, request = fleet(log)
    for hook in (first, second):
        hook.obey(request)
    grant = 1 + [role for role in Role if role is not Role.OPERATOR].index(Role.AUDITOR)
    whole = log.control.records
    log.control.records = whole[: grant - 1]
    await published.publish()
    producer = AIOKafkaProducer(bootstrap_servers=published.kafka, transactional_id=f"{published.prefix}t")
    await producer.start()
    try:
        value, signature = whole[grant - 1]
        async with producer.transaction():
            await producer.send_and_wait(
                topic, value, key=b"k", partition=0, headers=[(SIGNATURE_HEADER, signature)]
            )
    finally:
        await producer.stop()
    log.control.records, published.sent[f"{topic}/0"] = whole, grant + 1
    await published.publish()
    code, out, err = published.run("run", "--request", str(request), "--wait", "0", "--json")
    verdict = Verdict.model_validate_json(out)
    found = {reason.reason.value for reason in verdict.reasons}
    assert (code, verdict.kind, "topic_compacted" in found) == (3, "PENDING", True)
    assert "no nonce is written" in err
    assert await control_end(published) == len(whole)


@pytest.mark.timeout(300)
async def test_a_compacted_control_log_says_so(published: Published) -> None:
    """Two harmless records of one key, of which a broker that compacts keeps the newer."""
    log, names = published.log, TopicNames(published.prefix)
    first, second, request = fleet(log)
    garbage = len(log.control.records)
    log.control.records += [(b"garbage", None), (b"garbage again", None)]
    for hook in (first, second):
        hook.obey(request)
    nonce = log.nonce(request)
    for hook in (first, second):
        hook.ack(request, nonce=nonce)
    topic = names.of(CONTROL)
    admin = AIOKafkaAdminClient(bootstrap_servers=published.kafka)
    await admin.start()
    try:
        quick = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.0001"}
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=quick)])
    finally:
        await admin.close()
    for at, (value, signature) in enumerate(log.control.records):
        headers = [] if signature is None else [(SIGNATURE_HEADER, signature)]
        key = b"same" if at in (garbage, garbage + 1) else str(at).encode()
        await published.producer.send_and_wait(topic, value, key=key, partition=0, headers=headers)  # type: ignore[attr-defined]
    published.sent[f"{topic}/0"] = len(log.control.records)
    await published.publish()
    assert published.verdict(request)[0] == 0

    async def compacted() -> bool:
        """The newest segment is never compacted, so one more record rolls it."""
        await published.producer.send_and_wait(topic, b"tick", key=b"tick", partition=0)  # type: ignore[attr-defined]
        reader = PartitionReader(KafkaConnection(published.kafka), topic, 20.0)
        await reader.start(1)
        offsets: list[int] = []
        try:
            await reader.read_to(await reader.ends(), lambda record: offsets.append(record.offset))
        finally:
            await reader.stop()
        await asyncio.sleep(0.5)
        return garbage not in offsets

    await until(compacted, timeout_s=200)
    code, found = reasons(published, request)
    assert (code, "topic_compacted" in found) == (2, True)


async def test_an_auditor_that_is_killed_leaves_nothing_proven_and_the_next_one_goes_on(
    published: Published,
) -> None:
    """Killed when its nonce is in the log: before the answers, and again before its verdict is written."""
    log = published.log
    first, second, request = fleet(log)
    await published.publish()
    assert reasons(published, request)[0] == 3
    for hook in (first, second):
        hook.obey(request)
        await published.publish()
    topic = TopicNames(published.prefix).of(CONTROL)
    env = environment(published.home, KVLEDGER_KAFKA=published.kafka, KVLEDGER_TOPIC_PREFIX=published.prefix)
    reader = PartitionReader(KafkaConnection(published.kafka), topic, 20.0)
    await reader.start(1)
    try:
        before = (await reader.ends())[0]
        auditor = started([*KVLEDGER, "audit", "run", "--request", str(request), "--wait", "100"], env)
        try:

            async def asked() -> bool:
                return (await reader.ends())[0] > before

            await until(asked, timeout_s=100)
        finally:
            os.kill(auditor.pid, signal.SIGKILL)
            auditor.communicate()
        await reader.read_to(
            await reader.ends(),
            lambda record: (
                log.control.records.append((record.value, record.signature))
                if record.offset >= len(log.control.records)
                else None
            ),
        )
    finally:
        await reader.stop()
    published.sent[f"{topic}/0"] = len(log.control.records)
    nonce = len(log.control.records) - 1
    assert published.run("show", str(request))[0] == 3
    code, verdict = published.verdict(request)
    assert (code, verdict.closing_nonce) == (3, nonce)
    for hook in (first, second):
        hook.ack(request, nonce=nonce)
        await published.publish()
        assert published.verdict(request)[0] == (0 if hook is second else 3)
    assert published.run("show", str(request))[0] == 0
