"""A snapshot's ranges find what a large table holds of them, whatever is stored and ends between two of them."""

from __future__ import annotations

import random

import pytest

from events.codec import decode_batch
from events.fold import snapshot, spread
from events.fold.apply import apply
from events.fold.spread import Spread
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
from tests.support.log import LOW, StreamBuilder, block, declared, opened, stored

RANGES = 16


def bounds(index: int) -> tuple[bytes, bytes]:
    low, high = index * 65_536 // RANGES, (index + 1) * 65_536 // RANGES - 1
    return low.to_bytes(2, "big") + bytes(14), high.to_bytes(2, "big") + b"\xff" * 14


@pytest.mark.parametrize("seed", range(8))
def test_a_snapshot_amid_other_records_leaves_what_it_lists_and_what_came_since(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "SCANNED", 0)
    monkeypatch.setattr(spread, "IDS_PER_BUCKET", 8)
    rng, builder, state = random.Random(seed), StreamBuilder(), StreamState(StreamKey("w0", 0, "e1"), 5)

    def say(*stream_events: object, events: object = ()) -> None:
        apply(state, decode_batch(builder.seal(*stream_events, events=events).value))  # type: ignore[arg-type]

    say(opened(), events=[declared()])
    names = [block(n) for n in range(600)]
    held = set(names[:400])
    say(events=[stored(sorted(held))])
    real = set(rng.sample(names, 300))  # what the hook really holds, and lists
    say(SnapshotBegin(snapshot="s", opened=opened()))
    for index in rng.sample(range(RANGES), RANGES):
        for _ in range(rng.randrange(4)):
            come, go = rng.sample(names, 5), rng.sample(names, 5)
            held, real = (held | set(come)) - set(go), (real | set(come)) - set(go)
            gone = BlockEvicted(holder="gpu", group=0, ids=tuple(go), reason=EvictReason.CAPACITY)
            say(events=[*(stored([one]) for one in come), gone])
        low, high = bounds(index)
        listed = tuple(one for one in sorted(real) if low <= one <= high)
        run = CopyRun(profile=0, state=CopyState.COMMITTED, ids=listed, parents=(LOW,) * len(listed))
        mark = SnapshotRange(snapshot="s", holder="gpu", group=0, low=low, high=high)
        say(mark, events=[SnapshotPart(runs=(run,))] if listed else [])
        held = {one for one in held if not low <= one <= high} | set(listed)
        assert set(state.table("gpu", 0)) == held
    inventory = HolderInventory(holder="gpu", inventory=Inventory.KNOWN)
    say(SnapshotEnd(snapshot="s", inventories=(inventory,)))
    assert (set(state.table("gpu", 0)), state.status, state.snapshot) == (real, StreamStatus.LIVE, None)


def test_all_ranges_together_look_at_a_large_table_about_once() -> None:
    looked = 0

    class Seen(bytes):
        def __ge__(self, other: bytes) -> bool:
            nonlocal looked
            looked += 1
            return bytes.__ge__(self, other)

    ids = [Seen(block(n)) for n in range(20_000)]
    table = Spread(ids)
    found = [one for index in range(RANGES) for one in table.between(*bounds(index))]
    assert sorted(found) == sorted(ids)
    assert len(ids) <= looked <= 2 * len(ids)
