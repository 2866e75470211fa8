"""A transaction's mark takes an offset that nobody is given a record for: no reader waits for one behind the last."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from aiokafka import AIOKafkaProducer

from events.kafka.connection import KafkaConnection, LogTail, RawRecord
from events.kafka.partition_log import KafkaPartitionLog
from events.kafka.subject import SubjectLog
from events.kafka.topic_admin import TopicAdmin
from events.topic import EVENTS, SUBJECTS, TopicNames
from indexer.replay import fold_log
from tests.support.live_log import until


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])
async def test_no_reader_waits_for_a_record_behind_the_last(
    kafka: str, topic_prefix: str, commit: bool
) -> None:
    at = KafkaConnection(kafka, TopicNames(topic_prefix))
    await TopicAdmin(at, partitions=1).ensure()
    producer = AIOKafkaProducer(bootstrap_servers=kafka, transactional_id=f"{topic_prefix}t")
    await producer.start()
    try:
        await producer.begin_transaction()
        for topic in (EVENTS, SUBJECTS):
            await producer.send_and_wait(at.topic(topic), b"garbage", key=b"k", partition=0)
        await (producer.commit_transaction() if commit else producer.abort_transaction())
    finally:
        await producer.stop()
    log, subjects = KafkaPartitionLog(at), SubjectLog(at)
    tail = LogTail(at, {(at.topic(EVENTS), 0): 0})
    await tail.start()
    try:
        for topic in (EVENTS, SUBJECTS):
            await until(partial(_ends, log, at.topic(topic)))
        async with asyncio.timeout(10):
            events = at.topic(EVENTS)
            last = await log.first_from(events, 0, 0)
            assert last is not None
            assert (last.offset, last.value) == (0, b"garbage")
            assert await log.first_from(events, 0, 1) is None
            assert list(await log.digests(events, 0, 0, 1)) == [0]
            assert await fold_log(at, {0: 2}) == ([], {0: 0})
            found: list[RawRecord] = []
            assert await subjects.read(found.append) == 2
            assert [record.offset for record in found] == [0]
            while await tail.position(events, 0) < 2:
                await tail.fetch()
    finally:
        await tail.stop()
        await log.close()
        await subjects.stop()


async def _ends(log: KafkaPartitionLog, topic: str) -> bool:
    return (await log.bounds(topic, 0))[1] == 2
