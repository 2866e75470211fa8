"""Approximate id spaces (position-independent chunks, blended caches) never answer an exact lookup."""

from __future__ import annotations

from events.identity import profile_digest
from events.ids import Tier
from events.model.part import BlockEvicted, BlockStored, ProfileDeclared
from tests.support.log import PROFILE
from tests.support.reader_world import World, chain_of, lengths

APPROXIMATE = PROFILE.model_copy(update={"approximate": True})


def test_the_flag_makes_another_profile_and_leaves_exact_ones_as_they_were() -> None:
    assert profile_digest(APPROXIMATE) != profile_digest(PROFILE)
    assert profile_digest(PROFILE.model_copy(update={"approximate": None})) == profile_digest(PROFILE)


def test_approximate_copies_answer_no_exact_lookup() -> None:
    world = World()
    hook = world.join("w0", 0, "e1", Tier.GPU, Tier.CPU)
    ids = chain_of(range(64))
    chunks = chain_of(range(64), profile=APPROXIMATE)
    hook.write(
        events=[
            ProfileDeclared(profile=1, content=APPROXIMATE, block_bytes=(100,)),
            BlockStored(holder="gpu", group=0, profile=1, ids=tuple(chunks)),
            BlockStored(holder="gpu", group=0, profile=1, ids=tuple(ids)),
        ]
    )
    hook.copies["gpu", 0] = {*chunks, *ids}
    world.round(hook)
    assert lengths(world.get(chunks)) == {}
    assert lengths(world.get(ids)) == {}
    asked = world.ask(chunks, profile=profile_digest(APPROXIMATE), max_staleness_ms=1_000)
    assert not getattr(asked, "matches", [])


def test_an_approximate_copy_keeps_no_exact_one_alive() -> None:
    world = World()
    hook = world.join("w0", 0, "e1", Tier.GPU, Tier.CPU)
    ids = chain_of(range(32))
    hook.store(ids)
    hook.write(
        events=[
            ProfileDeclared(profile=1, content=APPROXIMATE, block_bytes=(100,)),
            BlockStored(holder="cpu", group=0, profile=1, ids=tuple(ids)),
            BlockEvicted(holder="gpu", group=0, ids=(ids[1],)),
        ]
    )
    hook.copies["gpu", 0].discard(ids[1])
    hook.copies["cpu", 0] = set(ids)
    world.round(hook)
    assert lengths(world.get(ids)) == {"w0": 1}
