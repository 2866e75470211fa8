"""Tiers, attention groups, load and layout: what of a match an engine can use, and from where."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from events.ids import GroupKind, Tier
from events.model.part import Group, TierChanged
from events.model.profile import LayoutProfile
from events.model.signal import Load
from tests.support.reader_world import World, chain_of, lengths, reasons

TOKENS = list(range(640))
CHAIN = chain_of(TOKENS)


def test_tiers_are_cumulative() -> None:
    world = World()
    hook = world.join("w0", 0, "e1", Tier.GPU, Tier.CPU, Tier.REMOTE)
    hook.store(CHAIN[:2])
    hook.store(CHAIN[2:5], parent=CHAIN[1], holder="cpu")
    hook.store(CHAIN[5:6], parent=CHAIN[4])
    hook.store(CHAIN[6:9], parent=CHAIN[5], holder="remote")
    world.round(hook)
    match = world.get(CHAIN).matches[0]
    assert asdict(match.tiers) == {"gpu": 32, "cpu": 96, "disk": 96, "remote": 144}
    assert match.matched_tokens == 144


def test_a_move_between_tiers_and_a_second_copy_keep_the_union_right() -> None:
    world = World()
    hook = world.join("w0", 0, "e1", Tier.GPU, Tier.CPU)
    hook.store(CHAIN[:4])
    hook.store(CHAIN[:2], holder="cpu")
    hook.evict(CHAIN[:1])
    hook.write(events=[TierChanged(from_holder="gpu", to_holder="cpu", group=0, ids=(CHAIN[3],))])
    hook.copies["gpu", 0].discard(CHAIN[3])
    hook.copies["cpu", 0].add(CHAIN[3])
    world.round(hook)
    match = world.get(CHAIN).matches[0]
    assert (match.tiers.gpu, match.tiers.cpu) == (0, 64)
    hook.evict([CHAIN[1]])
    hook.evict([CHAIN[1]], holder="cpu")
    world.round(hook)
    assert world.get(CHAIN).matches[0].tiers.cpu == 16


def test_a_sliding_window_needs_only_its_last_blocks() -> None:
    groups = (
        Group(index=0, kind=GroupKind.FULL, block_tokens=16),
        Group(index=1, kind=GroupKind.SLIDING_WINDOW, block_tokens=16, window=32),
    )
    world = World()
    hook = world.join(groups=groups)
    hook.store(CHAIN[:10])
    hook.store(CHAIN[4:7], parent=CHAIN[3], group=1)
    hook.store(CHAIN[9:10], parent=CHAIN[8], group=1)
    world.round(hook)
    assert lengths(world.get(CHAIN)) == {"w0": 7}


def test_groups_of_other_block_sizes_are_asked_by_tokens_only() -> None:
    groups = (
        Group(index=0, kind=GroupKind.FULL, block_tokens=16),
        Group(index=1, kind=GroupKind.RECURRENT, block_tokens=32),
    )
    world = World()
    hook, plain = world.join(groups=groups), world.join("w1")
    hook.store(CHAIN[:10])
    hook.store([chain_of(TOKENS, size=32)[2]], parent=chain_of(TOKENS, size=32)[1], group=1)
    world.round(hook, plain)
    assert world.get(token_ids=TOKENS).matches[0].matched_tokens == 96
    assert reasons(world.get(CHAIN)) == {"w0": "profile_incomplete"}


def test_load_and_layout_travel_with_the_match() -> None:
    world = World()
    hook = world.join()
    hook.store(CHAIN[:4])
    world.beacon()
    hook.pulse(load=Load(running=3, waiting=1, kv_used=0.5))
    match = world.get(CHAIN, requester_layout={"tp_size": 2}).matches[0]
    assert match.load == Load(running=3, waiting=1, kv_used=0.5)
    assert match.transfer_compatible is False
    same = world.get(CHAIN, requester_layout=LayoutProfile().model_dump()).matches[0]
    assert same.transfer_compatible is True


@pytest.mark.parametrize("tier", [*Tier])
def test_one_tier_alone_counts_from_its_own_place_on(tier: Tier) -> None:
    world = World()
    hook = world.join("w0", 0, "e1", tier)
    hook.store(CHAIN[:4], holder=tier.value)
    world.round(hook)
    tokens = asdict(world.get(CHAIN).matches[0].tiers)
    assert list(tokens.values()) == [0] * [*Tier].index(tier) + [64] * (4 - [*Tier].index(tier))
    same = world.get(CHAIN, requester_layout={"tp_size": 2}).matches[0]
    assert asdict(same.tiers) == tokens
