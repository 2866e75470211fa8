"""What a removal, a clear, a snapshot or a missing beginning means for an answer: never more than its own scope."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from events.ids import GroupKind, Inventory, Tier
from events.model.part import (
    BlockStored,
    Cleared,
    CopyRun,
    Group,
    HolderInventory,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotPart,
    SnapshotRange,
)
from tests.support.log import HIGH, LOW, declared, opened
from tests.support.reader_world import Hook, World, chain_of, lengths, reasons

TOKENS = list(range(640))
CHAIN = chain_of(TOKENS)
GROUPS = (
    Group(index=0, kind=GroupKind.FULL, block_tokens=16),
    Group(index=1, kind=GroupKind.SLIDING_WINDOW, block_tokens=16, window=32),
)


def restate(hook: Hook, ids: Sequence[bytes]) -> None:
    """The hook's whole inventory of its GPU is this run of the chain."""
    parents = tuple(bytes(16) if block == CHAIN[0] else CHAIN[CHAIN.index(block) - 1] for block in ids)
    hook.write(SnapshotBegin(snapshot="s", opened=opened()), events=[declared()])
    hook.write(
        SnapshotRange(snapshot="s", holder="gpu", group=0, low=LOW, high=HIGH),
        events=[SnapshotPart(runs=(CopyRun(profile=0, ids=tuple(ids), parents=parents),))],
    )
    known = HolderInventory(holder="gpu", inventory=Inventory.KNOWN)
    hook.write(SnapshotEnd(snapshot="s", inventories=(known,)))
    hook.copies["gpu", 0] = set(ids)


@pytest.mark.parametrize("how", ["evicted", "cleared"])
def test_what_one_rank_removes_everybody_else_keeps(how: str) -> None:
    world = World()
    hooks = [world.join("w0", 0), world.join("w0", 1), world.join("w1")]
    for hook in hooks:
        hook.store(CHAIN[:5])
    if how == "evicted":
        hooks[1].evict(CHAIN[:5])
    else:
        hooks[1].write(Cleared(holders=("gpu",)))
        hooks[1].copies.clear()
    world.round(*hooks)
    found = world.get(CHAIN)
    assert [(m.worker, m.dp_rank, m.matched_blocks) for m in found.matches] == [("w0", 0, 5), ("w1", 0, 5)]
    assert found.complete


def test_a_clear_empties_its_holder_and_no_other_tier() -> None:
    world = World()
    hook = world.join("w0", 0, "e1", Tier.GPU, Tier.CPU)
    hook.store(CHAIN[:5])
    hook.store(CHAIN[:3], holder="cpu")
    hook.write(Cleared(holders=("gpu",)))
    hook.copies["gpu", 0] = set()
    world.round(hook)
    match = world.get(CHAIN).matches[0]
    assert (match.tiers.gpu, match.tiers.cpu) == (0, 48)


def test_after_a_clear_of_unknown_scope_the_other_tiers_make_no_claim() -> None:
    world = World()
    hook = world.join("w0", 0, "e1", Tier.GPU, Tier.CPU)
    hook.store(CHAIN[:5])
    hook.write(Cleared(holders=("gpu",), unknown_scope=True))
    hook.copies["gpu", 0] = set()
    world.round(hook)
    found = world.get(CHAIN)
    assert (found.matches, found.complete) == ([], False)


@pytest.mark.parametrize("gone", ["gpu", "cpu"])
def test_a_removal_leaves_the_copy_in_the_other_tier(gone: str) -> None:
    world = World()
    hook = world.join("w0", 0, "e1", Tier.GPU, Tier.CPU)
    for holder in ("gpu", "cpu"):
        hook.store(CHAIN[:4], holder=holder)
    hook.evict(CHAIN[:4], holder=gone)
    world.round(hook)
    match = world.get(CHAIN).matches[0]
    assert (match.tiers.gpu, match.tiers.cpu) == (0 if gone == "gpu" else 64, 64)


def test_a_removal_in_one_attention_group_leaves_the_other_groups_copy() -> None:
    world = World()
    hook = world.join(groups=GROUPS)
    hook.store(CHAIN[:4])
    hook.store(CHAIN[:4], group=1)
    hook.evict(CHAIN[:2], group=1)
    world.round(hook)
    assert lengths(world.get(CHAIN)) == {"w0": 4}
    hook.evict(CHAIN[3:4], group=1)
    world.round(hook)
    assert world.get(CHAIN, candidates=["w0"]).matches[0].matched_blocks == 0


def test_a_prefix_that_the_window_lacks_is_no_hit_however_long_it_is() -> None:
    world = World()
    hook = world.join(groups=GROUPS)
    hook.store(CHAIN[:12])
    world.round(hook)
    assert world.get(CHAIN, candidates=["w0"]).matches[0].matched_blocks == 0


def test_a_snapshot_ends_what_was_removed_without_a_word() -> None:
    """An engine that says nothing of some removals is mended by the next inventory, on a stream without a hole."""
    world = World()
    hook = world.join()
    hook.store(CHAIN[:8])
    world.round(hook)
    assert lengths(world.get(CHAIN)) == {"w0": 8}
    restate(hook, CHAIN[:3])
    world.round(hook)
    assert lengths(world.get(CHAIN)) == {"w0": 3}
    assert world.view.copies == 3


def test_a_chain_whose_beginning_is_unknown_is_held_and_never_scored() -> None:
    """An index that starts behind the store of a parent doesn't drop what follows and doesn't count it."""
    world = World()
    hook = world.join()
    stored = BlockStored(holder="gpu", group=0, profile=0, ids=tuple(CHAIN[3:9]), parent=CHAIN[2])
    hook.write(events=[stored])
    hook.copies["gpu", 0] = set(CHAIN[3:9])
    world.round(hook)
    assert world.view.copies == 6
    assert world.get(CHAIN).matches == []
    assert world.get(CHAIN[3:9]).matches == []
    hook.store(CHAIN[:3])
    world.round(hook)
    assert lengths(world.get(CHAIN)) == {"w0": 9}


def test_a_reader_that_begins_in_mid_stream_scores_nothing_until_the_next_snapshot() -> None:
    """An index restarted on a log whose head is gone: a gap, not a set of dropped chains."""
    world = World()
    hook, other = world.join(start=False), world.join("w1")
    hook.hold = True
    hook.open()
    hook.store(CHAIN[:3])
    hook.held.clear()
    hook.hold = False
    hook.store(CHAIN[3:9], CHAIN[2])
    world.round(hook, other)
    found = world.get(CHAIN)
    assert (found.matches, reasons(found), found.complete) == ([], {"w0": "gap"}, False)
    restate(hook, CHAIN[:9])
    world.round(hook, other)
    found = world.get(CHAIN)
    assert (lengths(found), reasons(found), found.complete) == ({"w0": 9}, {}, True)
