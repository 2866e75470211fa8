"""Rows of the fold's table that concern doubt, transfers, declarations and odd but legal records."""

from __future__ import annotations

from typing import Literal

import pytest

from events.chain import Checksum, transfer_digest
from events.codec import decode_batch
from events.fold.apply import apply, lose_log
from events.fold.change import Outcome
from events.fold.digest import index_digest
from events.fold.registry import Registry
from events.fold.state import StreamState
from events.ids import (
    CopyState,
    EvictReason,
    GroupKind,
    InvalidateReason,
    Inventory,
    StreamKey,
    StreamStatus,
    Tier,
)
from events.model.part import (
    BlockEvicted,
    BlockInvalidated,
    Cleared,
    Closed,
    CopyRun,
    DomainEvent,
    Drained,
    EngineLoss,
    Group,
    HolderInventory,
    ProfileDeclared,
    ProfileRetired,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotPart,
    SnapshotRange,
    Statement,
    TransferCommitted,
    TransferRejected,
    TransferStarted,
)
from events.signing import verify
from tests.support.log import ALIAS, HIGH, LOW, PROFILE, StreamBuilder, block, declared, opened, stored

A, B, C, D = (block(name) for name in "abcd")
START = TransferStarted(transfer="t1", source="w9", holder="gpu", group=0, profile=0, ids=(A, B))


class Stream:
    """A builder and the fold of what it says."""

    def __init__(self, *tiers: Tier, rank: int = 0, epoch: str = "e1") -> None:
        self.tiers = tiers or (Tier.GPU,)
        self.builder = StreamBuilder(rank=rank, epoch=epoch)
        self.state = StreamState(StreamKey("w0", rank, epoch), 5)
        self.say(opened(*self.tiers), events=[declared()])

    def say(self, *stream_events: object, events: list[DomainEvent] | None = None) -> Outcome:
        value = self.builder.seal(*stream_events, events=events or []).value  # type: ignore[arg-type]
        return apply(self.state, decode_batch(value)).outcome

    def copy_state(self, block_id: bytes, holder: str = "gpu") -> CopyState | None:
        copy = self.state.copies.get((holder, 0), {}).get(block_id)
        return copy[1].state if copy else None

    def snapshot(
        self,
        *runs: CopyRun,
        source: Literal["pool"] | None = None,
        inventory: Inventory = Inventory.KNOWN,
        end: str = "gpu",
    ) -> None:
        self.say(SnapshotBegin(snapshot="s", opened=opened(*self.tiers), source=source), events=[declared()])
        for tier in self.tiers:
            mark = SnapshotRange(snapshot="s", holder=tier.value, group=0, low=LOW, high=HIGH)
            mine = [SnapshotPart(runs=runs)] if runs and tier is Tier.GPU else []
            self.say(mark, events=list(mine))
        stated = HolderInventory(holder=end, inventory=inventory)
        self.say(SnapshotEnd(snapshot="s", inventories=(stated,)))


def run(*ids: bytes, state: CopyState = CopyState.COMMITTED, profile: int = 0) -> CopyRun:
    return CopyRun(profile=profile, state=state, ids=ids, parents=(bytes(16),) * len(ids))


def test_a_hooks_own_snapshot_never_makes_certain_what_an_engine_loss_left_in_doubt() -> None:
    stream = Stream()
    stream.say(events=[stored([A])])
    stream.say(EngineLoss(first_missing=3))
    stream.say(events=[stored([B], A)])
    stream.snapshot(run(A, B))
    assert stream.state.status is StreamStatus.LIVE
    assert (stream.copy_state(A), stream.copy_state(B)) == (CopyState.UNCERTAIN, CopyState.COMMITTED)
    assert stream.state.holders["gpu"].inventory is Inventory.PARTIAL


def test_an_inspected_pool_ends_the_doubt() -> None:
    stream = Stream()
    stream.say(events=[stored([A, B])])
    stream.say(EngineLoss(first_missing=3))
    stream.snapshot(run(A), source="pool")
    assert (stream.copy_state(A), stream.copy_state(B)) == (CopyState.COMMITTED, None)
    assert stream.state.holders["gpu"].inventory is Inventory.KNOWN


def test_a_clear_ends_the_doubt_and_the_next_snapshot_counts_again() -> None:
    stream = Stream()
    stream.say(EngineLoss(first_missing=3))
    stream.say(Cleared(holders=("gpu",)))
    stream.say(events=[stored([A])])
    stream.snapshot(run(A))
    assert stream.copy_state(A) is CopyState.COMMITTED
    assert stream.state.holders["gpu"].inventory is Inventory.KNOWN


def test_a_store_seen_after_the_loss_is_certain() -> None:
    stream = Stream()
    stream.say(events=[stored([A])])
    stream.say(EngineLoss(first_missing=3))
    stream.say(events=[stored([A])])
    assert stream.copy_state(A) is CopyState.COMMITTED


def test_a_clear_of_unknown_scope_leaves_what_it_may_have_reached_in_doubt() -> None:
    stream = Stream(Tier.GPU, Tier.CPU)
    stream.say(events=[stored([A]), stored([A], holder="cpu")])
    stream.say(Cleared(holders=("gpu",), unknown_scope=True))
    assert stream.copy_state(A) is None
    assert stream.copy_state(A, "cpu") is CopyState.UNCERTAIN
    stream.snapshot(end="cpu")
    assert stream.state.holders["cpu"].inventory is Inventory.PARTIAL


def test_a_clear_of_known_scope_touches_nothing_else() -> None:
    stream = Stream(Tier.GPU, Tier.CPU)
    stream.say(events=[stored([A]), stored([A], holder="cpu")])
    stream.say(Cleared(holders=("gpu",)))
    assert stream.copy_state(A, "cpu") is CopyState.COMMITTED
    assert stream.state.holders["cpu"].inventory is Inventory.EMPTY


@pytest.mark.parametrize("how", ["evict", "invalidate", "clear", "snapshot"])
def test_an_uncertain_copy_ends_with_its_removal_or_a_snapshot(how: str) -> None:
    stream = Stream()
    stream.say(events=[stored([A])])
    stream.say(events=[BlockEvicted(holder="gpu", group=0, ids=(A,), certain=False)])
    assert stream.copy_state(A) is CopyState.UNCERTAIN
    if how == "evict":
        stream.say(events=[BlockEvicted(holder="gpu", group=0, ids=(A,))])
    elif how == "invalidate":
        stream.say(
            events=[BlockInvalidated(holder="gpu", group=0, ids=(A,), reason=InvalidateReason.INTEGRITY)]
        )
    elif how == "clear":
        stream.say(Cleared(holders=("gpu",)))
    else:
        stream.snapshot()
    assert stream.copy_state(A) is None


def test_a_snapshot_may_say_that_a_doubtful_duplicate_is_there() -> None:
    stream = Stream()
    stream.say(events=[stored([A])])
    stream.say(events=[BlockEvicted(holder="gpu", group=0, ids=(A,), certain=False)])
    stream.snapshot(run(A))
    assert stream.copy_state(A) is CopyState.COMMITTED


def test_a_partial_write_is_never_committed() -> None:
    stream = Stream()
    stream.say(events=[START])
    stream.say(events=[TransferCommitted(transfer="t1", digest=transfer_digest([A]))])
    assert (stream.copy_state(A), stream.copy_state(B)) == (CopyState.UNCERTAIN, CopyState.UNCERTAIN)
    stream.say(events=[TransferCommitted(transfer="t1", digest=transfer_digest([A, B]))])
    assert stream.copy_state(A) is CopyState.UNCERTAIN
    stream.say(events=[stored([A])])
    assert stream.copy_state(A) is CopyState.COMMITTED


def test_a_transfer_commits_what_was_not_resident_before() -> None:
    stream = Stream()
    stream.say(events=[stored([A])])
    stream.say(events=[START])
    assert stream.copy_state(A) is CopyState.COMMITTED
    stream.say(events=[TransferCommitted(transfer="t1", digest=transfer_digest([B]))])
    assert stream.copy_state(B) is CopyState.COMMITTED


@pytest.mark.parametrize("end", ["rejected", "expired"])
def test_a_rejected_or_expired_transfer_leaves_nothing(end: str) -> None:
    stream = Stream()
    stream.say(events=[START])
    gone = BlockEvicted(holder="gpu", group=0, ids=(A, B), reason=EvictReason.EXPIRED)
    stream.say(events=[TransferRejected(transfer="t1", request=3) if end == "rejected" else gone])
    assert stream.copy_state(A) is None
    assert not stream.state.transfers
    stream.say(events=[TransferCommitted(transfer="t1", digest=transfer_digest([A, B]))])
    assert stream.copy_state(A) is None


def test_what_expired_of_a_transfer_is_no_longer_part_of_its_digest() -> None:
    stream = Stream()
    stream.say(events=[START])
    stream.say(events=[BlockEvicted(holder="gpu", group=0, ids=(A,), reason=EvictReason.EXPIRED)])
    stream.say(events=[TransferCommitted(transfer="t1", digest=transfer_digest([B]))])
    assert (stream.copy_state(A), stream.copy_state(B)) == (None, CopyState.COMMITTED)


def test_expires_at_is_information_and_pinned_stays_with_the_copy() -> None:
    stream = Stream()
    stream.say(events=[stored([A], expires_at=1, pinned=True)])
    stream.say(events=[stored([A], expires_at=2)])
    assert stream.copy_state(A) is CopyState.COMMITTED
    assert stream.state.copies["gpu", 0][A][1].pinned


def test_an_empty_hash_list_stores_nothing() -> None:
    stream = Stream()
    empty = START.model_copy(update={"ids": ()})
    assert stream.say(events=[stored([]), stored([], A), empty]) is Outcome.APPLIED
    assert not stream.state.copies.get(("gpu", 0))


def test_sparse_lists_are_runs_with_parents_of_their_own() -> None:
    stream = Stream()
    stream.say(events=[stored([A]), stored([C, D], B)])
    table = stream.state.copies["gpu", 0]
    assert {one: copy[0] for one, copy in table.items()} == {A: bytes(16), C: B, D: C}


def test_groups_have_block_sizes_of_their_own() -> None:
    groups = (
        Group(index=0, kind=GroupKind.FULL, block_tokens=16),
        Group(index=1, kind=GroupKind.SLIDING_WINDOW, block_tokens=32, window=64),
        Group(index=2, kind=GroupKind.RECURRENT, block_tokens=128),
    )
    builder, state = StreamBuilder(), StreamState(StreamKey("w0", 0, "e1"), 5)
    apply(
        state, builder.batch(opened(groups=groups), events=[declared(block_bytes=(100, 7, 1)), stored([A])])
    )
    apply(state, builder.batch(events=[stored([A], group=1), stored([A], group=2)]))
    assert [g.block_tokens for g in state.holders["gpu"].groups.values()] == [16, 32, 128]
    assert state.usage[ALIAS, Tier.GPU].bytes == 108
    apply(state, builder.batch(events=[BlockEvicted(holder="gpu", group=1, ids=(A,))]))
    assert {where for where, table in state.copies.items() if table} == {("gpu", 0), ("gpu", 2)}


def test_a_holder_never_becomes_another_one_under_its_name() -> None:
    stream = Stream()
    stream.say(events=[stored([A])])
    stream.builder.burn()
    other = opened(groups=(Group(index=0, kind=GroupKind.FULL, block_tokens=32),))
    assert stream.say(SnapshotBegin(snapshot="x", opened=other)) is Outcome.ILLEGAL
    more = opened(
        groups=(
            Group(index=0, kind=GroupKind.FULL, block_tokens=16),
            Group(index=1, kind=GroupKind.RECURRENT, block_tokens=64),
        )
    )
    assert stream.say(SnapshotBegin(snapshot="y", opened=more)) is Outcome.APPLIED


def test_a_snapshot_of_an_undeclared_profile_makes_nothing_whole() -> None:
    stream = Stream()
    stream.builder.burn()
    stream.snapshot(run(A, profile=7))
    assert stream.state.status is StreamStatus.GAP
    assert stream.copy_state(A) is None
    later = ProfileDeclared(profile=7, content=PROFILE, block_bytes=(9,))
    stream.say(events=[later])
    stream.snapshot(run(A))
    assert (stream.state.status, stream.state.usage[ALIAS, Tier.GPU].bytes) == (StreamStatus.LIVE, 100)


def test_a_snapshot_that_ends_with_an_unknown_holder_raises_nothing() -> None:
    stream = Stream()
    stream.builder.burn()
    stream.snapshot(run(A), end="nowhere")
    assert stream.state.status is StreamStatus.LIVE


def test_ranges_of_another_snapshot_complete_nothing() -> None:
    stream = Stream()
    stream.builder.burn()
    stream.say(SnapshotBegin(snapshot="s2", opened=opened()), events=[declared()])
    stream.say(SnapshotRange(snapshot="s1", holder="gpu", group=0, low=LOW, high=HIGH))
    stream.say(SnapshotEnd(snapshot="s2", inventories=()))
    assert stream.state.status is StreamStatus.GAP


def test_invalid_copies_are_held_and_not_in_the_checksum() -> None:
    stream = Stream()
    stream.snapshot(run(A, state=CopyState.INVALID))
    nothing = Statement(holder="gpu", group=0, count=0, checksum=bytes(16), source="derived")
    stream.say(events=[nothing])
    assert stream.state.status is StreamStatus.LIVE
    assert stream.state.usage[ALIAS, Tier.GPU].blocks == 1
    total = Checksum()
    total.add([A])
    stream.say(events=[stored([A]), nothing.model_copy(update={"count": 1, "checksum": total.value})])
    assert (stream.state.status, stream.copy_state(A)) == (StreamStatus.LIVE, CopyState.COMMITTED)


def test_each_profile_of_a_stream_retires_alone() -> None:
    stream = Stream()
    other = ProfileDeclared(
        profile=1,
        content=PROFILE.model_copy(update={"adapter": "x", "adapter_revision": "1"}),
        block_bytes=(100,),
    )
    stream.say(events=[other, stored([A]), stored([B], profile=1)])
    stream.say(events=[ProfileRetired(profile=1)])
    assert (stream.copy_state(A), stream.copy_state(B)) == (CopyState.COMMITTED, None)
    assert stream.say(events=[stored([C], profile=1)]) is Outcome.ILLEGAL


def test_a_drained_stream_that_was_repaired_is_still_draining() -> None:
    stream = Stream()
    stream.say(Drained())
    stream.builder.burn()
    stream.snapshot(run(A))
    assert stream.state.status is StreamStatus.DRAINING


def test_a_closed_stream_stays_closed_whatever_follows() -> None:
    stream = Stream()
    stream.say(Closed())
    stream.builder.burn()
    stream.snapshot(run(A))
    assert stream.state.status is StreamStatus.CLOSED
    assert lose_log(stream.state, "gone").outcome is Outcome.GAP
    assert stream.state.status is StreamStatus.CLOSED


def test_ranks_and_epochs_are_in_every_key_of_the_digest() -> None:
    registry = Registry(verify)
    digests = set()
    for rank, epoch in ((0, "e1"), (1, "e1"), (0, "e2")):
        stream = Stream(rank=rank, epoch=epoch)
        stream.say(events=[stored([A])])
        digests.add(index_digest([stream.state], registry))
    assert len(digests) == 3


def test_never_heard_is_not_empty() -> None:
    never = StreamState(StreamKey("w0", 0, "e1"), 5)
    stream = Stream()
    assert (never.whole, stream.state.whole) == (False, True)
    registry = Registry(verify)
    assert index_digest([never], registry) != index_digest([stream.state], registry)
