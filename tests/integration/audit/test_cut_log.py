"""Whoever audits a real log that is cut and written over between two rounds finds out, and reads it again."""

from __future__ import annotations

from pathlib import Path

import pytest

from auditor.log import AuditedLog
from events.kafka.connection import KafkaConnection, LogUnavailableError, RawRecord, make_producer
from events.kafka.partition_log import KafkaPartitionLog
from events.topic import CONTROL, EVENTS
from kvledger.settings import Settings
from kvledger.simulate.nemesis.truncation import cut_log
from kvledger.stack.own import in_force
from kvledger.stack.plan import Extent
from kvledger.stack.session import running_stack
from tests.support.live_log import until
from tests.support.stack import stack_settings


async def send(at: KafkaConnection, topic: str, *values: bytes) -> None:
    """Each a batch of its own."""
    producer = make_producer(at)
    await producer.start()
    try:
        for value in values:
            await producer.send_and_wait(topic, value, key=b"k", partition=0)
    finally:
        await producer.stop()


async def read(log: AuditedLog) -> tuple[list[bytes], list[bytes]]:
    """(control, events): what one round gives."""
    taken: dict[str, list[bytes]] = {"control": [], "events": []}

    def take(record: RawRecord) -> None:
        taken["control" if record.topic.endswith("control") else "events"].append(record.value)

    await log.read_control(take)
    await log.open_events(1)
    await log.events.read_to(await log.events.ends(), take)
    return taken["control"], taken["events"]


async def cut(settings: Settings, cuts: dict[str, int]) -> None:
    made = await cut_log(settings, cuts, [])
    assert {one.partition: one.records for one in made} == cuts


@pytest.mark.timeout(180)
@pytest.mark.parametrize("topic", [CONTROL, EVENTS], ids=lambda topic: topic.name)
async def test_a_log_that_was_cut_and_written_over_does_not_stand(tmp_path: Path, topic: object) -> None:
    wanted = stack_settings(tmp_path / "home", partitions=1)
    with running_stack(wanted, extent=Extent.PREPARED) as given:
        settings = in_force(wanted, given)
        at = KafkaConnection(given.kafka)
        events, control = at.topic(EVENTS), at.topic(CONTROL)
        log = AuditedLog(at, timeout_s=30.0)
        try:
            await send(at, events, b"a", b"b")
            await send(at, control, b"garbage")
            await log.start()
            before, held = await read(log)
            assert held == [b"a", b"b"]
            assert before[-1] == b"garbage"
            assert await log.stands()
            await send(at, events, b"c")
            assert await read(log) == ([], [b"c"])
            assert await log.stands()
            name = control if topic is CONTROL else events
            await cut(settings, {f"{name}-0": 1})

            looking = KafkaPartitionLog(at)
            await until(lambda: _serves(looking, name))
            await looking.close()
            await send(at, name, b"x")
            assert await until(lambda: _told(log)) == "gone"
            await log.stop()
            await log.start()
            after, kept = await read(log)
            assert await log.stands()
            if topic is CONTROL:
                assert (after[: len(before)], kept) == ([*before[:-1], b"x"], [b"a", b"b", b"c"])
            else:
                assert (after, kept[:3]) == (before, [b"a", b"b", b"x"])
        finally:
            await log.stop()


async def _serves(log: KafkaPartitionLog, topic: str) -> bool:
    try:
        return (await log.bounds(topic, 0))[1] > 0
    except LogUnavailableError:
        return False


async def _told(log: AuditedLog) -> str:
    try:
        return "stands" if await log.stands() else "gone"
    except LogUnavailableError:
        return ""
