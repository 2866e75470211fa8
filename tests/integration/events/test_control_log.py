"""Writing and following kv.control on a real broker; making and checking topics."""

from __future__ import annotations

import asyncio
import time

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from events.chain import sha256
from events.errors import GrantError, SignatureError
from events.fold.registry import Registry
from events.ids import Role
from events.kafka.connection import (
    KafkaConnection,
    LogTail,
    LogTruncatedError,
    LogUnavailableError,
    RawRecord,
    make_producer,
)
from events.kafka.control import ControlTail, ControlWriter
from events.kafka.topic_admin import TopicAdmin, wanted_config
from events.model.control import DomainCreated, Genesis, Granted, LimitSet, Revoked
from events.signing import Signer, verify
from events.topic import ALL, CONTROL, EVENTS, SIGNATURE_HEADER, TopicNames
from tests.support.heedless import Heedless

SIGNERS = {role: Signer.from_seed(sha256(role.value.encode())) for role in Role}


@pytest.fixture
async def log(kafka: str, topic_prefix: str) -> KafkaConnection:
    connection = KafkaConnection(kafka, TopicNames(topic_prefix))
    await TopicAdmin(connection, partitions=2).ensure()
    return connection


def writer(connection: KafkaConnection, **more: object) -> ControlWriter:
    arguments = {"fold": Heedless("log-1"), "signers": SIGNERS, "wall_ms": lambda: 7} | more
    return ControlWriter(connection, **arguments)  # type: ignore[arg-type]


def tail(connection: KafkaConnection) -> ControlTail:
    return ControlTail(connection, Registry(verify), monotonic_ns=time.monotonic_ns)


async def begin(out: ControlWriter) -> None:
    await out.start()
    await out.append(Genesis(log="log-1", operator_key=SIGNERS[Role.OPERATOR].public_key, partitions=2))
    await out.append(Granted(public_key=SIGNERS[Role.CONTROL].public_key, roles=(Role.CONTROL,), label="c"))


async def test_every_append_is_answered_with_what_the_log_holds(log: KafkaConnection) -> None:
    out, reader = writer(log), tail(log)
    try:
        await begin(out)
        done = await asyncio.gather(
            *(out.append(DomainCreated(domain=f"d{n}", tenant="t")) for n in range(5))
        )
        assert [item.offset for item in done] == [2, 3, 4, 5, 6]
        await reader.catch_up()
        assert sorted(reader.registry.domains) == [f"d{n}" for n in range(5)]
        assert reader.registry.next_offset == 7
    finally:
        await out.stop()
        await reader.stop()


async def test_nothing_is_written_under_a_key_that_no_longer_counts(log: KafkaConnection) -> None:
    """Each record of a revoked key would make later deletions unprovable, and a process tries again and again."""
    out, reader = writer(log), tail(log)
    asking = writer(log, fold=reader.registry)
    control = SIGNERS[Role.CONTROL].public_key
    try:
        await begin(out)
        await asking.start()
        await reader.catch_up()
        assert (await asking.append(DomainCreated(domain="a", tenant="t"))).offset == 2
        await out.append(Revoked(public_key=control))
        await reader.catch_up()
        for _ in range(3):
            with pytest.raises(GrantError, match="revoked_signer"):
                await asking.append(DomainCreated(domain="b", tenant="t"))
        await out.append(Granted(public_key=control, roles=(Role.CONTROL,), label="again"))
        await reader.catch_up()
        assert (await asking.append(DomainCreated(domain="b", tenant="t"))).offset == 5
        await reader.catch_up()
        assert not reader.registry.ignored
    finally:
        await out.stop()
        await asking.stop()
        await reader.stop()


async def test_a_follower_sees_every_record_once_garbage_too_and_knows_when_it_was_current(
    log: KafkaConnection,
) -> None:
    out, reader = writer(log), tail(log)
    seen: list[tuple[int, str]] = []
    reader.listen(lambda raw, _, why: seen.append((raw.offset, why)))
    producer = make_producer(log)
    following = asyncio.create_task(reader.run())
    try:
        await begin(out)
        await producer.start()
        await producer.send_and_wait(log.topic(CONTROL), b"\x00\xff garbage", partition=0)
        before = time.monotonic_ns()
        last = await out.append(DomainCreated(domain="d", tenant="t"))
        assert await reader.wait_for(last.offset, 10)
        assert seen == [(0, ""), (1, ""), (2, "not_json"), (3, "")]
        assert (reader.current_ns or 0) > before - 10**10
        assert not await reader.wait_for(99, 0.01)
    finally:
        following.cancel()
        await out.stop()
        await producer.stop()
        await reader.stop()


async def test_without_the_roles_key_nothing_is_written(log: KafkaConnection) -> None:
    out = writer(log, signers={Role.AUDITOR: SIGNERS[Role.AUDITOR]})
    await out.start()
    try:
        with pytest.raises(SignatureError, match="no_key_for_role"):
            await out.append(DomainCreated(domain="d", tenant="t"))
    finally:
        await out.stop()


async def test_no_broker_is_a_typed_error_in_bounded_time(topic_prefix: str) -> None:
    nowhere = KafkaConnection("127.0.0.1:1", TopicNames(topic_prefix))
    with pytest.raises(LogUnavailableError):
        await writer(nowhere, timeout_s=3.0).start()
    with pytest.raises(LogUnavailableError):
        await tail(nowhere).catch_up()


async def until_error(reader: LogTail) -> None:
    for _ in range(300):
        await reader.fetch(timeout_ms=100)


async def test_an_offset_outside_the_log_is_an_error_not_a_jump(log: KafkaConnection) -> None:
    reader = LogTail(log, {(log.topic(EVENTS), 0): 1_000})
    await reader.start()
    try:
        with pytest.raises(LogUnavailableError):
            await until_error(reader)
        assert await reader.end_offsets() == {(log.topic(EVENTS), 0): 0}
    finally:
        await reader.stop()


async def until_end(log: KafkaConnection, end: int) -> None:
    """A transaction's marker is written some time after its commit was answered."""
    probe = LogTail(log, {(log.topic(CONTROL), 0): 0})
    await probe.start()
    try:
        async with asyncio.timeout(60):
            while (await probe.end_offsets())[log.topic(CONTROL), 0] < end:
                await asyncio.sleep(0.02)
    finally:
        await probe.stop()


async def test_a_hole_in_the_log_stops_its_readers_with_a_reason(log: KafkaConnection) -> None:
    out = writer(log)
    reader = ControlTail(log, Registry(verify), monotonic_ns=time.monotonic_ns, hole_after_s=1.0)
    producer = AIOKafkaProducer(bootstrap_servers=log.bootstrap, transactional_id=log.names.prefix + "tx")
    try:
        await begin(out)
        await producer.start()
        async with producer.transaction():
            await producer.send_and_wait(log.topic(CONTROL), b"garbage", partition=0)
        await until_end(log, 4)
        with pytest.raises(LogTruncatedError, match="without transactions"):
            await asyncio.wait_for(reader.catch_up(), 60)
        assert reader.registry.next_offset == 3
        assert reader.current_ns is None
    finally:
        await producer.stop()
        await out.stop()
        await reader.stop()


async def test_no_header_and_no_codec_of_a_stranger_stops_a_reader(log: KafkaConnection) -> None:
    producer = make_producer(log)
    reader = LogTail(log, {(log.topic(EVENTS), 0): 0})
    try:
        await producer.start()
        await producer.send_and_wait(
            log.topic(EVENTS), b"{}", partition=0, headers=[(SIGNATURE_HEADER, None)]
        )
        await reader.start()
        records: list[RawRecord] = []
        while not records:
            records = await reader.fetch(timeout_ms=500)
        assert (records[0].value, records[0].signature) == (b"{}", None)
    finally:
        await producer.stop()
        await reader.stop()
    assert await TopicAdmin(log, partitions=2).check() == []
    assert wanted_config(EVENTS, min_insync=1)["compression.type"] == "uncompressed"


async def test_topics_are_made_once_and_a_bad_one_is_found(kafka: str, topic_prefix: str) -> None:
    connection = KafkaConnection(kafka, TopicNames(topic_prefix))
    client = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await client.start()
    await client.create_topics(
        [NewTopic(connection.topic(EVENTS), 3, 1, topic_configs={"cleanup.policy": "compact"})]
    )
    await client.close()
    admin = TopicAdmin(connection, partitions=2)
    made, findings = await admin.ensure()
    assert len(made) == len(ALL) - 1
    fatal = {(finding.setting, finding.found) for finding in findings if finding.fatal}
    assert fatal == {("partitions", "3"), ("cleanup.policy", "compact"), ("compression.type", "producer")}
    assert (await admin.ensure())[0] == []


async def test_limits_written_are_the_limits_read(log: KafkaConnection) -> None:
    from events.ids import Tier, Unit

    out, reader = writer(log), tail(log)
    try:
        await begin(out)
        limit = LimitSet(tenant="t", tier=Tier.GPU, unit=Unit.BLOCKS, soft=1, hard=2)
        await out.append(limit)
        await reader.catch_up()
        assert reader.registry.limits["t", Tier.GPU, Unit.BLOCKS] == limit
    finally:
        await out.stop()
        await reader.stop()


async def test_a_log_that_ends_before_what_was_read_is_never_called_current(log: KafkaConnection) -> None:
    out, reader = writer(log), tail(log)
    try:
        await begin(out)
        await reader.catch_up()
        reader.registry.next_offset = 40
        before = reader.current_ns
        with pytest.raises(LogTruncatedError):
            await reader.catch_up()
        with pytest.raises(LogTruncatedError):
            await asyncio.wait_for(reader.run(), 60)
        assert reader.current_ns == before
    finally:
        await out.stop()
        await reader.stop()
