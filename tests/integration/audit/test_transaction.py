"""Transactions on a real broker: on kv.control they leave a hole, which everybody sees alike; on kv.events they harm
nothing."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete
from aiokafka.structs import TopicPartition

from auditor.log import PartitionReader
from auditor.registry import ControlFold
from auditor.report.verify import verify_report
from auditor.verify import verify_bundle
from events.fold.registry import Registry
from events.ids import Role
from events.kafka.connection import KafkaConnection, LogTruncatedError
from events.kafka.control import ControlTail
from events.signing import verify
from events.topic import CONTROL, EVENTS, SIGNATURE_HEADER, Topic, TopicNames
from tests.integration.audit.test_command import Published, published
from tests.integration.audit.test_damaged_log import proven
from tests.support.bundle import second_says
from tests.support.live_log import until

__all__ = ["published"]


async def in_transaction(
    published: Published,
    topic: Topic,
    value: bytes,
    signature: bytes | None = None,
    *,
    commit: bool,
    partition: int = 0,
) -> int:
    """Writes one record in a transaction and waits for its mark; the offset of the mark."""
    name = TopicNames(published.prefix).of(topic)
    producer = AIOKafkaProducer(bootstrap_servers=published.kafka, transactional_id=f"{published.prefix}t")
    await producer.start()
    try:
        await producer.begin_transaction()
        headers = [] if signature is None else [(SIGNATURE_HEADER, signature)]
        sent = await producer.send_and_wait(name, value, key=b"k", partition=partition, headers=headers)
        await (producer.commit_transaction() if commit else producer.abort_transaction())
    finally:
        await producer.stop()
    reader = PartitionReader(KafkaConnection(published.kafka), name, 20.0)
    await reader.start(partition + 1)
    try:
        await until(lambda: _ends(reader, partition, sent.offset + 2))
    finally:
        await reader.stop()
    return int(sent.offset) + 1


async def _ends(reader: PartitionReader, partition: int, end: int) -> bool:
    return (await reader.ends())[partition] >= end


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])
async def test_a_transaction_on_control_is_a_hole_to_everybody_also_where_its_mark_is_the_last(
    published: Published, commit: bool, tmp_path: Path
) -> None:
    """What it wrote is read by all, committed or not; nobody can tell its mark from a record that is gone."""
    request = await proven(published)
    log = published.log
    later = log.delete()
    value, signature = log.control.records[later]
    mark = await in_transaction(published, CONTROL, value, signature, commit=commit)
    assert mark == later + 1
    await _everybody_sees_a_hole(published, request, later, tmp_path / "last")
    if commit:
        await _a_report_names_it(published, request, later, tmp_path / "report")
    name = TopicNames(published.prefix).of(CONTROL)
    await published.producer.send_and_wait(name, b"garbage", key=b"k", partition=0)  # type: ignore[attr-defined]
    await _everybody_sees_a_hole(published, request, later, tmp_path / "midst")


def content(path: Path) -> bytes:
    return path.read_bytes()


async def _everybody_sees_a_hole(published: Published, request: int, later: int, path: Path) -> None:
    operator = published.log.control.signers[Role.OPERATOR].public_key
    code, verdict = published.verdict(request, "--bundle", str(path))
    assert (code, verdict.kind) == (2, "UNPROVABLE")
    assert [(reason.condition, reason.reason, reason.detail) for reason in verdict.reasons] == [
        ("P1", "topic_compacted", f"records {later + 1} to {later + 1} are missing")
    ]
    raw = content(path)
    assert verify_bundle(raw, operator).verdict == verdict
    assert second_says(raw, operator) == "UNPROVABLE"

    at = KafkaConnection(published.kafka, TopicNames(published.prefix))
    hook = ControlTail(at, Registry(verify), monotonic_ns=time.monotonic_ns, hole_after_s=1.0)
    try:
        with pytest.raises(LogTruncatedError):
            await hook.catch_up()
    finally:
        await hook.stop()
    fold = ControlFold(verify)
    reader = PartitionReader(at, at.topic(CONTROL), 20.0)
    await reader.start(1)
    try:
        await reader.read_to({0: later + 2}, lambda one: _fold(fold, one.offset, one.value, one.signature))
    finally:
        await reader.stop()
    assert (hook.registry.next_offset, hook.registry.hash) == (later + 1, fold.hash)
    assert later in hook.registry.deletions
    assert later in fold.requests


async def _a_report_names_it(published: Published, request: int, later: int, path: Path) -> None:
    operator = published.log.control.signers[Role.OPERATOR].public_key
    code, _, err = published.run("report", str(path))
    assert code == 3, err
    raw = content(path)
    held = verify_report(raw, operator)
    assert held.predicate.gaps == ((later + 1, later + 1),)
    assert [entry.request for entry in held.predicate.entries] == [request, later]
    assert held.faults == (f"topic_compacted: records {later + 1} to {later + 1} of kv.control are missing",)
    assert second_says(raw, operator) == "PENDING"


def _fold(fold: ControlFold, offset: int, value: bytes, signature: bytes | None) -> None:
    fold.feed(offset, value, signature)


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])
async def test_a_transaction_on_events_harms_no_stream_and_no_bundle(
    published: Published, commit: bool, tmp_path: Path
) -> None:
    """In the partition of a stream, its mark in the midst and as the last; a record of the stream is read whatever
    became of the transaction, so the next one goes on from it."""
    request = await proven(published)
    log, hook = published.log, published.log.hooks[0]
    operator = log.control.signers[Role.OPERATOR].public_key
    where = f"{TopicNames(published.prefix).of(EVENTS)}/{hook.partition}"
    hook.store("acme", 4)
    written = log.events[hook.partition][-1]
    await in_transaction(
        published, EVENTS, written.value, written.signature, commit=commit, partition=hook.partition
    )
    published.sent[where] = len(log.events[hook.partition])
    path = tmp_path / "proof"
    for more in ("last", "midst"):
        code, verdict = published.verdict(request, "--bundle", str(path))
        assert (code, verdict.kind, verdict.reasons) == (0, "PROVEN", ()), more
        raw = content(path)
        assert verify_bundle(raw, operator).verdict == verdict
        assert second_says(raw, operator) == "PROVEN"
        hook.store("acme", 5)
        await published.publish()


async def test_control_whose_beginning_was_deleted_stops_its_readers_with_a_reason(
    published: Published,
) -> None:
    await proven(published)
    at = KafkaConnection(published.kafka, TopicNames(published.prefix))
    admin = AIOKafkaAdminClient(bootstrap_servers=published.kafka)
    await admin.start()
    try:
        cut = {TopicPartition(at.topic(CONTROL), 0): RecordsToDelete(before_offset=2)}
        await admin.delete_records(cut)
    finally:
        await admin.close()
    hook = ControlTail(at, Registry(verify), monotonic_ns=time.monotonic_ns)
    try:
        with pytest.raises(LogTruncatedError, match="begins at 2"):
            await hook.catch_up()
    finally:
        await hook.stop()
