"""Random streams, losses, redeliveries and orders of delivery: what must hold whatever happens."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from events.chain import Checksum
from events.codec import decode_batch
from events.fold.apply import apply
from events.fold.digest import index_digest
from events.fold.registry import Registry
from events.fold.state import StreamState
from events.ids import CopyState, Inventory, StreamKey, StreamStatus, Tier
from events.model.part import (
    BlockEvicted,
    Cleared,
    CopyRun,
    EngineLoss,
    SnapshotPart,
    TierChanged,
)
from events.signing import verify
from tests.support.log import ALIAS, ControlLog, StreamBuilder, block, declared, opened, stored

IDS = [block("m", n) for n in range(12)]
AGES = st.one_of(st.none(), st.integers(0, 9))


@dataclass
class Story:
    """What the worker did, as sealed records, beside the plain truth of what it holds."""

    builder: StreamBuilder
    held: dict[str, set[bytes]] = field(default_factory=lambda: {"gpu": set(), "cpu": set()})
    age: dict[tuple[str, bytes], int | None] = field(default_factory=dict)
    values: list[bytes] = field(default_factory=list)

    def seal(self, *stream_events: object, **more: object) -> None:
        self.values.append(self.builder.seal(*stream_events, **more).value)  # type: ignore[arg-type]


def oldest(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None else min(left, right)


@st.composite
def stories(draw: st.DrawFn, epoch: str = "e1") -> Story:
    story = Story(StreamBuilder(epoch=epoch))
    story.seal(opened(Tier.GPU, Tier.CPU), parts=[(ALIAS, [declared()])])
    for _ in range(draw(st.integers(0, 14))):
        kind = draw(st.sampled_from(["store", "store", "evict", "move", "clear", "snapshot"]))
        holder = draw(st.sampled_from(["gpu", "cpu"]))
        ids = draw(st.lists(st.sampled_from(IDS), min_size=1, max_size=4, unique=True))
        if kind == "store":
            age = draw(AGES)
            story.seal(parts=[(ALIAS, [stored(ids, None, holder=holder, admitted_after=age)])])
            for block_id in ids:
                resident = block_id in story.held[holder]
                known = story.age.get((holder, block_id))
                story.age[holder, block_id] = oldest(known, age) if resident else age
                story.held[holder].add(block_id)
        elif kind == "evict":
            gone = BlockEvicted(holder=holder, group=0, ids=tuple(ids))
            story.seal(parts=[(ALIAS, [gone])])
            story.held[holder] -= set(ids)
        elif kind == "move":
            target = "cpu" if holder == "gpu" else "gpu"
            move = TierChanged(from_holder=holder, to_holder=target, group=0, ids=tuple(ids))
            story.seal(parts=[(ALIAS, [move])])
            for block_id in [x for x in ids if x in story.held[holder]]:
                age = story.age[holder, block_id]
                if block_id in story.held[target]:
                    age = oldest(age, story.age[target, block_id])
                story.age[target, block_id] = age
                story.held[holder].discard(block_id)
                story.held[target].add(block_id)
        elif kind == "clear":
            story.seal(Cleared(holders=(holder,)))
            story.held[holder] = set()
        else:
            snapshot(story)
    return story


def snapshot(story: Story) -> None:
    from events.ids import Lineage
    from events.model.part import HolderInventory, SnapshotBegin, SnapshotEnd, SnapshotRange

    name = f"s{story.builder.seq}"
    start = opened(Tier.GPU, Tier.CPU)
    story.seal(SnapshotBegin(snapshot=name, opened=start), parts=[(ALIAS, [declared()])])
    bounds = [(bytes(16), b"\x7f" + b"\xff" * 15), (b"\x80" + bytes(15), b"\xff" * 16)]
    for holder in ("gpu", "cpu"):
        for low, high in bounds:
            runs = tuple(
                CopyRun(
                    profile=0,
                    state=CopyState.COMMITTED,
                    lineage=Lineage.UNKNOWN,
                    admitted_after=story.age[holder, x],
                    ids=(x,),
                    parents=(bytes(16),),
                )
                for x in sorted(story.held[holder])
                if low <= x <= high
            )
            mark = SnapshotRange(snapshot=name, holder=holder, group=0, low=low, high=high)
            story.seal(mark, parts=[(ALIAS, [SnapshotPart(runs=runs)])] if runs else [])
    story.seal(
        SnapshotEnd(
            snapshot=name,
            inventories=tuple(HolderInventory(holder=h, inventory=Inventory.KNOWN) for h in ("gpu", "cpu")),
        )
    )


def fold(values: list[bytes], epoch: str = "e1") -> StreamState:
    state = StreamState(StreamKey("w0", 0, epoch), 5)
    for value in values:
        apply(state, decode_batch(value))
    return state


def resident(state: StreamState, holder: str) -> dict[bytes, int | None]:
    return {b: a.admitted_after for b, (_, a) in state.copies.get((holder, 0), {}).items()}


def check_books(state: StreamState) -> None:
    """Usage and checksums are what a recount gives."""
    for holder, tier in (("gpu", Tier.GPU), ("cpu", Tier.CPU)):
        table = state.copies.get((holder, 0), {})
        usage = state.usage.get((ALIAS, tier))
        assert (usage.blocks if usage else 0) == len(table)
        assert (usage.bytes if usage else 0) == 100 * len(table)
        recount = Checksum()
        recount.add(table)
        kept = state.checksums.get((ALIAS, holder, 0), Checksum())
        assert (kept.count, kept.value) == (recount.count, recount.value)


@given(stories())
@settings(max_examples=150, deadline=None)
def test_a_whole_stream_folds_to_what_the_worker_holds(story: Story) -> None:
    state = fold(story.values)
    assert state.status is StreamStatus.LIVE
    for holder in ("gpu", "cpu"):
        assert set(resident(state, holder)) == story.held[holder]
        assert all(resident(state, holder)[x] == story.age[holder, x] for x in story.held[holder])
    check_books(state)


@given(stories(), st.data())
@settings(max_examples=150, deadline=None)
def test_losing_any_records_is_a_gap_until_a_later_snapshot_and_never_a_silent_lie(
    story: Story, data: st.DataObject
) -> None:
    lost = data.draw(st.sets(st.integers(0, len(story.values) - 1)))
    state = fold([value for n, value in enumerate(story.values) if n not in lost])
    check_books(state)
    if state.status is StreamStatus.LIVE and not any(n >= state.next_seq for n in lost):
        for holder in ("gpu", "cpu"):
            assert set(resident(state, holder)) == story.held[holder]
    snapshot(story)
    for value in story.values[-6:]:
        apply(state, decode_batch(value))
    assert state.status is StreamStatus.LIVE
    for holder in ("gpu", "cpu"):
        assert set(resident(state, holder)) == story.held[holder]
    check_books(state)


@given(stories(), st.data())
@settings(max_examples=100, deadline=None)
def test_redelivery_of_any_stretch_changes_nothing(story: Story, data: st.DataObject) -> None:
    once = fold(story.values)
    delivered: list[bytes] = []
    for n, value in enumerate(story.values):
        delivered.append(value)
        if data.draw(st.booleans()):
            delivered.extend(story.values[data.draw(st.integers(0, n)) : n + 1])
    again = fold(delivered)
    registry = Registry(verify)
    assert index_digest([again], registry) == index_digest([once], registry)
    assert again.usage == once.usage


@given(stories("e1"), stories("e2"), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_no_interleaving_of_streams_and_control_matters(first: Story, second: Story, rng: object) -> None:
    log = ControlLog()
    log.register(epoch="e1")
    log.register(epoch="e2", life="life-2")
    sources: dict[str, list[object]] = {
        "e1": list(first.values),
        "e2": list(second.values),
        "control": list(log.records),
    }
    digests = set()
    for _ in range(3):
        order = [name for name, items in sources.items() for _ in items]
        rng.shuffle(order)  # type: ignore[attr-defined]
        at = dict.fromkeys(sources, 0)
        states = {name: StreamState(StreamKey("w0", 0, name), 5) for name in ("e1", "e2")}
        registry = Registry(verify)
        for name in order:
            item = sources[name][at[name]]
            if name == "control":
                registry.fold(at[name], *item)  # type: ignore[misc]
            else:
                apply(states[name], decode_batch(item))  # type: ignore[arg-type]
            at[name] += 1
        digests.add(index_digest(states.values(), registry))
    assert len(digests) == 1


@given(stories())
@settings(max_examples=60, deadline=None)
def test_after_an_engine_loss_nothing_is_committed_that_was_held_before(story: Story) -> None:
    story.seal(EngineLoss(first_missing=1))
    state = fold(story.values)
    states = {c.state for table in state.copies.values() for _, c in table.values()}
    assert states <= {CopyState.UNCERTAIN}
    check_books(state)
