"""A stream whose holder stores for ever and evicts nothing is quarantined, and holds a bounded number of copies."""

from __future__ import annotations

from events.chain import Checksum
from events.codec import decode_batch
from events.fold import residency
from events.fold.apply import apply
from events.fold.state import StreamState
from events.ids import CopyState, EvictReason, Inventory, StreamKey, StreamStatus
from events.model.part import (
    BlockEvicted,
    CopyRun,
    HolderInventory,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotPart,
    SnapshotRange,
)
from tests.support.log import HIGH, LOW, StreamBuilder, block, declared, opened, stored

BOUND = residency.TABLE_FLOOR
EACH = 4_096


class Flooder:
    """A stream that declared a capacity, and its fold."""

    def __init__(self, capacity: int | None) -> None:
        self.builder = StreamBuilder()
        self.state = StreamState(StreamKey("w0", 0, "e1"), 5)
        start = opened()
        holder = start.holders[0].model_copy(update={"capacity_blocks": capacity})
        self.start = start.model_copy(update={"holders": (holder,)})
        self.say(self.start, events=[declared()])

    def say(self, *stream_events: object, events: object = ()) -> bool:
        """Whether a resync was asked for."""
        record = self.builder.seal(*stream_events, events=events)  # type: ignore[arg-type]
        return apply(self.state, decode_batch(record.value)).resync

    def fill(self, first: int, count: int) -> None:
        for begin in range(first, first + count, EACH):
            self.say(events=[stored([block(n) for n in range(begin, min(begin + EACH, first + count))])])

    def snapshot(self, ids: list[bytes]) -> None:
        """In as many ranges as its records need."""
        self.say(SnapshotBegin(snapshot="s", opened=self.start))
        left, low = sorted(ids), LOW
        while True:
            now, left = left[:EACH], left[EACH:]
            high = now[-1] if left else HIGH
            run = CopyRun(profile=0, state=CopyState.COMMITTED, ids=tuple(now), parents=(LOW,) * len(now))
            mark = SnapshotRange(snapshot="s", holder="gpu", group=0, low=low, high=high)
            self.say(mark, events=[SnapshotPart(runs=(run,))])
            if not left:
                break
            low = (int.from_bytes(high, "big") + 1).to_bytes(16, "big")
        inventory = HolderInventory(holder="gpu", inventory=Inventory.KNOWN)
        self.say(SnapshotEnd(snapshot="s", inventories=(inventory,)))

    def held(self) -> int:
        assert self.state.copy_count() == sum(usage.blocks for usage in self.state.usage.values())
        (table,) = self.state.copies.values()
        expected = Checksum()
        expected.add(list(table))
        assert {c.value for c in self.state.checksums.values()} == {expected.value}
        return self.state.copy_count()


def test_endless_unique_blocks_of_a_declared_pool_are_bounded_and_quarantined_once() -> None:
    one = Flooder(10)
    one.fill(0, BOUND)
    assert (one.state.status, one.held()) == (StreamStatus.LIVE, BOUND)
    assert one.say(events=[stored([block("over")])])
    assert one.state.status is StreamStatus.QUARANTINED
    assert one.state.fault.startswith("over_capacity")
    assert not one.say(events=[stored([block("more"), block(1)])])
    assert one.held() == BOUND
    one.say(events=[BlockEvicted(holder="gpu", group=0, ids=(block(1),), reason=EvictReason.CAPACITY)])
    one.say(events=[stored([block("fits"), block("doesn't")])])
    assert (one.state.status, one.held()) == (StreamStatus.QUARANTINED, BOUND)
    assert (block("fits") in one.state.table("gpu", 0), block("doesn't") in one.state.table("gpu", 0)) == (
        True, False,
    )  # fmt: skip


def test_what_is_held_may_be_told_again_at_the_bound() -> None:
    one = Flooder(10)
    one.fill(0, BOUND)
    one.say(events=[stored([block(3), block(4)])])
    assert (one.state.status, one.held()) == (StreamStatus.LIVE, BOUND)


def test_a_snapshot_that_fits_makes_the_stream_whole_again_and_one_that_does_not_fit_does_not() -> None:
    one = Flooder(10)
    one.fill(0, BOUND + 1)
    assert one.state.status is StreamStatus.QUARANTINED
    one.snapshot([block("s", n) for n in range(BOUND + 1)])
    assert one.state.status is StreamStatus.QUARANTINED
    assert BOUND - EACH < one.held() <= BOUND
    one.snapshot([block("s", n) for n in range(100)])
    assert one.state.status is StreamStatus.LIVE
    assert one.held() == 100


def test_undeclared_capacity_is_bounded_by_the_stream_alone() -> None:
    one = Flooder(None)
    one.fill(0, BOUND + EACH)
    assert (one.state.status, one.held()) == (StreamStatus.LIVE, BOUND + EACH)
