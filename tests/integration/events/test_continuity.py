"""A real broker is killed, the newest of its log cut off and written over: whoever read it finds out."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from events.chain import sha256
from events.fold.registry import Registry
from events.kafka.connection import KafkaConnection, LogTruncatedError, LogUnavailableError, make_producer
from events.kafka.continuity import Continuity, Look
from events.kafka.control import ControlTail
from events.kafka.partition_log import KafkaPartitionLog
from events.signing import verify
from events.topic import CONTROL, EVENTS
from kvledger.settings import Settings
from kvledger.simulate.nemesis.truncation import cut_log
from kvledger.stack.own import in_force
from kvledger.stack.plan import Extent
from kvledger.stack.session import running_stack
from tests.support.live_log import until
from tests.support.stack import stack_settings

CUT = {"kv.events-0": 2, "kv.control-0": 1}


async def send(at: KafkaConnection, topic: str, values: list[bytes]) -> None:
    """Each a batch of its own, in partition 0."""
    producer = make_producer(at)
    await producer.start()
    try:
        for value in values:
            await producer.send_and_wait(topic, value, key=b"k", partition=0)
    finally:
        await producer.stop()


async def cut(settings: Settings) -> None:
    made = await cut_log(settings, CUT, [])
    assert {one.partition: one.records for one in made} == CUT


@pytest.mark.timeout(180)
async def test_records_that_were_read_and_are_others_now_are_found(tmp_path: Path) -> None:
    wanted = stack_settings(tmp_path / "home", partitions=1)
    with running_stack(wanted, extent=Extent.PREPARED) as given:
        settings = in_force(wanted, given)
        at = KafkaConnection(given.kafka)
        events, log = at.topic(EVENTS), KafkaPartitionLog(at)
        reader = Continuity(log, events)
        control = ControlTail(at, Registry(verify), monotonic_ns=time.monotonic_ns)
        try:
            await reader.begin([0])
            await send(at, events, [b"a", b"b", b"c", b"d"])
            for offset, value in enumerate([b"a", b"b", b"c", b"d"]):
                reader.note(0, offset, sha256(value))
                if value == b"b":
                    assert await reader.look() == Look({}, frozenset())
            await send(at, at.topic(CONTROL), [b"garbage"])
            await control.catch_up()
            await cut(settings)
            await until(lambda: _serves(log, events))
            await send(at, events, [b"x", b"y", b"z"])
            await send(at, at.topic(CONTROL), [b"other garbage", b"more"])
            reader.note(0, 4, sha256(b"z"))
            assert (await reader.look()).lost == {0: 2}
            with pytest.raises(LogTruncatedError, match="other records"):
                await until(lambda: _caught_up(control))
        finally:
            await control.stop()
            await log.close()


async def _serves(log: KafkaPartitionLog, topic: str) -> bool:
    try:
        return (await log.bounds(topic, 0))[1] > 0
    except LogUnavailableError:
        return False


async def _caught_up(control: ControlTail) -> bool:
    """Goes on while the clients find the broker again, and until the next look."""
    try:
        await control.catch_up()
    except LogUnavailableError:
        await control.stop()
    return False
