"""A log that lost what was read is found out, whatever was written since; one that didn't never is."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.chain import sha256
from events.kafka import continuity
from events.kafka.connection import LogUnavailableError, RawRecord
from events.kafka.continuity import Continuity, Look
from tests.support.applier_world import MemoryPartitionLog
from tests.support.store_contract import TOPIC

NOTHING = Look({}, frozenset())
MOVED = Look({}, frozenset({0}))


def read(into: Continuity, records: Sequence[RawRecord]) -> None:
    for record in records:
        into.read(record)


async def begun(log: MemoryPartitionLog) -> Continuity:
    reader = Continuity(log, TOPIC)
    await reader.begin([0])
    return reader


async def test_what_was_cut_and_written_over_is_found_at_its_first_offset() -> None:
    log = MemoryPartitionLog()
    reader = await begun(log)
    read(reader, log.send([b"a", b"b", b"c", b"d"]))
    assert await reader.look() == NOTHING
    read(reader, log.send([b"e", b"f"]))
    log.cut(1)
    log.send([b"another f"])
    read(reader, log.send([b"g"]))
    assert (await reader.look()).lost == {0: 5}
    assert (await reader.look()).lost == {0: 5}, "it stays until it is forgotten"
    reader.forget(0)
    assert await reader.look() == NOTHING


async def test_one_remembered_record_vouches_for_all_before_it() -> None:
    log = MemoryPartitionLog()
    reader = await begun(log)
    read(reader, log.send([b"a", b"b", b"c"]))
    assert await reader.look() == NOTHING
    log.cut(2)
    log.send([b"x", b"y", b"z"])
    assert (await reader.look()).lost == {0: None}


async def test_a_log_that_is_shorter_has_lost_what_lay_beyond() -> None:
    log = MemoryPartitionLog()
    reader = await begun(log)
    read(reader, log.send([b"a", b"b", b"c"]))
    log.cut(1)
    assert (await reader.look()).lost == {0: 2}


async def test_a_new_leader_that_lost_nothing_and_a_head_that_was_let_go_are_no_loss() -> None:
    log = MemoryPartitionLog()
    reader = await begun(log)
    read(reader, log.send([b"a", b"b", b"c"]))
    log.cut(0)
    del log.records[:2]
    assert await reader.look() == MOVED
    assert reader.settle(0)
    assert await reader.look() == NOTHING
    log.cut(0)
    read(reader, log.send([b"d"]))
    del log.records[:1]
    assert await reader.look() == MOVED
    log.cut(0)
    log.records[:] = [record for record in log.send([b"e", b"f"]) if record.value == b"f"]
    assert await reader.look() == MOVED


async def test_what_was_fetched_before_the_leadership_changed_is_not_settled_unseen() -> None:
    """It is noted only after the look, and what stands in its place in the log is never read."""
    log = MemoryPartitionLog()
    reader = await begun(log)
    read(reader, log.send([b"a", b"b"]))
    fetched = log.send([b"c", b"d"])
    log.cut(2)
    log.send([b"x", b"y", b"z"])
    assert await reader.look() == MOVED
    read(reader, fetched)
    assert not reader.settle(0)
    assert (await reader.look()).lost == {0: 2}


async def test_a_move_is_told_until_it_is_settled() -> None:
    log = MemoryPartitionLog()
    reader = await begun(log)
    read(reader, log.send([b"a"]))
    log.cut(0)
    assert await reader.look() == MOVED
    assert await reader.look() == MOVED
    assert reader.settle(0)
    assert not reader.settle(1), "nobody has begun it"
    assert await reader.look() == NOTHING


async def test_a_broker_that_knows_no_epochs_is_compared_with_every_time() -> None:
    log = MemoryPartitionLog(epoch=-1)
    reader = await begun(log)
    read(reader, log.send([b"a", b"b"]))
    assert await reader.look() == NOTHING
    log.cut(1)
    log.epoch = -1
    log.send([b"c"])
    assert (await reader.look()).lost == {0: None}


async def test_a_topic_that_was_just_made_is_asked_again() -> None:
    class Young(MemoryPartitionLog):
        asked = 0

        async def leader_epochs(self, topic: str, partitions: Collection[int]) -> dict[int, int]:
            self.asked += 1
            if self.asked == 1:
                raise LogUnavailableError("no leader yet")
            return dict.fromkeys(sorted(partitions)[: self.asked - 1], 0)

    log = Young()
    reader = Continuity(log, TOPIC)
    await reader.begin([0, 1, 2])
    assert log.asked == 3
    assert await reader.look() == NOTHING


async def test_a_partition_that_cannot_be_asked_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    class Deaf(MemoryPartitionLog):
        async def leader_epochs(self, topic: str, partitions: Collection[int]) -> dict[int, int]:
            found = await super().leader_epochs(topic, partitions)
            return {partition: epoch for partition, epoch in found.items() if partition != 1}

        async def bounds(self, topic: str, partition: int) -> tuple[int, int]:
            if partition == 2:
                raise LogUnavailableError("nobody answers")
            return await super().bounds(topic, partition)

    log = Deaf()
    reader = Continuity(log, TOPIC)
    await reader.begin([0, 2])
    monkeypatch.setattr(continuity, "BEGIN_WITHIN_S", 0.2)
    with pytest.raises(LogUnavailableError, match=r"\[1\] have no leader"):
        await reader.begin([0, 1])
    (record,) = log.send([b"a"])
    for partition in (2, 1, 0):
        reader.note(partition, record.offset, sha256(record.value))
    log.cut(1)
    assert await reader.look() == Look({0: None}, frozenset())


async def test_who_read_more_than_is_remembered_takes_all_for_lost_when_the_leader_changes() -> None:
    most, quarter = continuity.MOST_RECORDS, continuity.MOST_BYTES // 4
    for count, size, kept in ((most + 10, 1, most), (10, quarter, 4)):
        log = MemoryPartitionLog()
        reader = await begun(log)
        for offset in range(count):
            reader.note(0, offset, bytes(32), size)
        assert len(reader._trails[0].read) == kept
        assert reader.last(0) == (count - 1, bytes(32))
        log.cut(0)
        assert (await reader.look()).lost == {0: None}
    log = MemoryPartitionLog()
    reader = await begun(log)
    reader.note(0, 0, bytes(32), 2 * continuity.MOST_BYTES)
    assert reader.last(0) == (0, bytes(32)), "the last one is always remembered"


async def test_reading_again_takes_the_place_of_what_was_noted() -> None:
    log = MemoryPartitionLog()
    reader = await begun(log)
    reader.note(0, 0, sha256(b"stale"))
    reader.note(0, 1, sha256(b"stale too"))
    read(reader, log.send([b"a"]))
    log.cut(0)
    assert await reader.look() == MOVED


Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(("write", "fetch", "note", "cut", "elect", "look")), st.integers(1, 4)),
    max_size=40,
)


@given(STEPS)
@settings(deadline=None)
def test_a_loss_is_told_if_and_only_if_something_that_was_read_is_gone(steps: list[Step]) -> None:
    asyncio.run(_play(steps))


async def _play(steps: list[Step]) -> None:
    """A reader with a buffer between fetching and noting, which obeys what the looks say."""
    log = MemoryPartitionLog()
    reader = await begun(log)
    was_read: dict[int, bytes] = {}
    buffer: list[RawRecord] = []
    position = 0
    for number, (what, count) in enumerate([*steps, ("look", 1), ("look", 1)]):
        if what == "write":
            log.send([b"%d/%d" % (number, at) for at in range(count)])
        elif what == "fetch":
            at = buffer[-1].offset + 1 if buffer else position
            buffer += [record for record in log.records if record.offset >= at][:count]
        elif what == "note":
            read(reader, buffer[:count])
            was_read.update({record.offset: record.value for record in buffer[:count]})
            position += len(buffer[:count])
            del buffer[:count]
        elif what == "cut":
            log.cut(min(count, len(log.records)))
        elif what == "elect":
            log.cut(0)
        holds = {record.offset: record.value for record in log.records}
        gone = [offset for offset, value in was_read.items() if holds.get(offset) != value]
        if what != "look":
            continue
        found = await reader.look()
        assert bool(found.lost) == bool(gone)
        if gone:
            assert found.lost[0] in (None, gone[0])
            reader.forget(0)
            await reader.begin([0])
            was_read, position, buffer = {}, min(gone), []
        elif found.moved:
            buffer = []
            assert reader.settle(0)
