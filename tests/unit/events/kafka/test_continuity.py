"""A log that lost what was read is found out, whatever was written since; one that didn't never is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from events.chain import sha256
from events.kafka import continuity
from events.kafka.connection import RawRecord
from events.kafka.continuity import Continuity
from tests.support.applier_world import MemoryPartitionLog
from tests.support.store_contract import TOPIC


def read(into: Continuity, records: Sequence[RawRecord]) -> None:
    for record in records:
        into.note(0, record.offset, sha256(record.value))


async def test_what_was_cut_and_written_over_is_found_at_its_first_offset() -> None:
    log = MemoryPartitionLog()
    reader = Continuity(log, TOPIC)
    read(reader, log.send([b"a", b"b", b"c", b"d"]))
    assert await reader.lost() == {}
    read(reader, log.send([b"e", b"f"]))
    log.cut(1)
    log.send([b"another f"])
    read(reader, log.send([b"g"]))
    assert await reader.lost() == {0: 5}
    assert await reader.lost() == {0: 5}, "it stays until it is forgotten"
    reader.forget(0)
    assert await reader.lost() == {}


async def test_one_remembered_record_vouches_for_all_before_it() -> None:
    log = MemoryPartitionLog()
    reader = Continuity(log, TOPIC)
    read(reader, log.send([b"a", b"b", b"c"]))
    assert await reader.lost() == {}
    log.cut(2)
    log.send([b"x", b"y", b"z"])
    assert await reader.lost() == {0: None}


async def test_a_log_that_is_shorter_has_lost_what_lay_beyond() -> None:
    log = MemoryPartitionLog()
    reader = Continuity(log, TOPIC)
    read(reader, log.send([b"a", b"b", b"c"]))
    log.cut(1)
    assert await reader.lost() == {0: 2}


async def test_a_new_leader_that_lost_nothing_and_a_head_that_was_let_go_are_no_loss() -> None:
    log = MemoryPartitionLog()
    reader = Continuity(log, TOPIC)
    read(reader, log.send([b"a", b"b", b"c"]))
    log.cut(0)
    del log.records[:2]
    assert await reader.lost() == {}
    log.cut(0)
    read(reader, log.send([b"d"]))
    del log.records[:1]
    assert await reader.lost() == {}
    log.cut(0)
    log.records[:] = [record for record in log.send([b"e", b"f"]) if record.value == b"f"]
    assert await reader.lost() == {}


async def test_a_broker_that_knows_no_epochs_is_compared_with_every_time() -> None:
    log = MemoryPartitionLog(epoch=-1)
    reader = Continuity(log, TOPIC)
    read(reader, log.send([b"a", b"b"]))
    assert await reader.lost() == {}
    log.cut(1)
    log.epoch = -1
    log.send([b"c"])
    assert await reader.lost() == {0: None}


async def test_memory_is_bounded_between_two_looks() -> None:
    log = MemoryPartitionLog()
    reader = Continuity(log, TOPIC)
    for offset in range(continuity.MOST_RECORDS + 10):
        reader.note(0, offset, bytes(32))
    assert len(reader._trails[0].read) == continuity.MOST_RECORDS
    assert reader.last(0) == (continuity.MOST_RECORDS + 9, bytes(32))


Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(("write", "read", "cut", "elect", "look")), st.integers(1, 4)), max_size=30
)


@given(STEPS)
@settings(deadline=None)
def test_a_loss_is_told_if_and_only_if_something_that_was_read_is_gone(steps: list[Step]) -> None:
    asyncio.run(_play(steps))


async def _play(steps: list[Step]) -> None:
    log = MemoryPartitionLog()
    reader = Continuity(log, TOPIC)
    was_read: dict[int, bytes] = {}
    position = 0
    for number, (what, count) in enumerate(steps):
        if what == "write":
            log.send([b"%d/%d" % (number, at) for at in range(count)])
        elif what == "read":
            fresh = [record for record in log.records if record.offset >= position][:count]
            read(reader, fresh)
            was_read.update({record.offset: record.value for record in fresh})
            position += len(fresh)
        elif what == "cut":
            log.cut(min(count, len(log.records)))
        elif what == "elect":
            log.cut(0)
        holds = {record.offset: record.value for record in log.records}
        gone = [offset for offset, value in was_read.items() if holds.get(offset) != value]
        if what != "look":
            continue
        lost = await reader.lost()
        assert bool(lost) == bool(gone)
        if gone:
            assert lost[0] in (None, gone[0])
            reader.forget(0)
            was_read = {}
            position = min(gone)
