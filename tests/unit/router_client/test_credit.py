"""What a worker is credited with: the committed blocks from the prompt's first one on, by ids or by tokens."""

from __future__ import annotations

from dataclasses import asdict

from events.ids import Basis
from events.model.part import EngineLoss
from tests.support.reader_world import World, chain_of, lengths

TOKENS = list(range(640))
CHAIN = chain_of(TOKENS)


def test_a_fresh_whole_stream_is_credited_with_what_it_holds() -> None:
    world = World()
    hook = world.join()
    hook.store(CHAIN[:20])
    world.round(hook)
    world.wait(300)
    found = world.get(CHAIN)
    match = found.matches[0]
    assert (match.worker, match.matched_blocks, match.matched_tokens) == ("w0", 20, 320)
    assert asdict(match.tiers) == {"gpu": 320, "cpu": 320, "disk": 320, "remote": 320}
    assert (match.staleness_ms, match.basis, match.identity) == (300.0, Basis.PUBLISHED, "verified")
    assert (match.endpoint, match.within_bound) == ("http://w0", True)
    assert match.position.next_seq == 2
    assert found.complete
    assert asdict(found.coverage) == {"included": 1, "eligible": 1}
    assert found.as_of == "2023-11-14T22:13:19.700+00:00"


def test_tokens_and_ids_give_the_same_answer() -> None:
    world = World()
    hook = world.join()
    hook.store(CHAIN[:20])
    world.round(hook)
    assert world.get(token_ids=TOKENS).matches == world.get(CHAIN).matches
    assert lengths(world.get(token_ids=TOKENS[:330])) == {"w0": 20}
    assert lengths(world.get(token_ids=TOKENS[:170])) == {"w0": 10}
    assert world.get(token_ids=TOKENS[:15]).matches == []


def test_eight_workers_at_eight_depths_are_ordered_by_what_they_have() -> None:
    world = World()
    hooks = [world.join(f"w{n}") for n in range(8)]
    for n, hook in enumerate(hooks):
        hook.store(CHAIN[: 5 * (n + 1)])
    world.round(*hooks)
    found = world.get(CHAIN)
    assert [m.matched_blocks for m in found.matches] == [40, 35, 30, 25, 20, 15, 10, 5]
    assert [m.matched_blocks for m in world.get(CHAIN, limit=2).matches] == [40, 35]


def test_an_eviction_in_mid_chain_ends_the_match_there_until_it_is_stored_again() -> None:
    world = World()
    hook = world.join()
    hook.store(CHAIN)
    hook.evict([CHAIN[7]])
    world.round(hook)
    assert lengths(world.get(CHAIN)) == {"w0": 7}
    hook.store([CHAIN[7]], parent=CHAIN[6])
    hook.store(CHAIN[:9])
    world.round(hook)
    assert lengths(world.get(CHAIN)) == {"w0": 40}


def test_only_committed_copies_are_credited() -> None:
    world = World()
    hook = world.join()
    hook.store(CHAIN[:4])
    hook.evict([CHAIN[2]], certain=False)
    world.round(hook)
    assert lengths(world.get(CHAIN)) == {"w0": 2}
    hook.write(EngineLoss(first_missing=3))
    world.round(hook)
    found = world.get(CHAIN)
    assert (found.matches, found.complete) == ([], False)
    hook.store(CHAIN[:2])
    world.round(hook)
    found = world.get(CHAIN)
    assert lengths(found) == {"w0": 2}
    assert [(match.inventory, match.within_bound) for match in found.matches] == [("partial", True)]


def test_a_match_that_a_doubtful_copy_ends_is_a_floor_and_claims_nothing() -> None:
    """One of two announced copies was evicted: the engine may or may not still hold the block."""
    world = World()
    hook = world.join()
    hook.store(CHAIN[:4])
    hook.evict([CHAIN[2]], certain=False)
    world.round(hook)
    found = world.get(CHAIN)
    assert [(match.matched_blocks, match.inventory) for match in found.matches] == [(2, "partial")]
    assert not found.complete
    # It ends no shorter question.
    found = world.get(CHAIN[:2])
    assert [(match.matched_blocks, match.inventory) for match in found.matches] == [(2, "known")]
    assert found.complete
    hook.store([CHAIN[2]], parent=CHAIN[1])
    world.round(hook)
    found = world.get(CHAIN)
    assert [(match.matched_blocks, match.inventory) for match in found.matches] == [(4, "known")]
    assert found.complete


def test_absence_is_not_claimed_of_a_worker_whose_first_block_is_in_doubt() -> None:
    world = World()
    hook = world.join()
    hook.store(CHAIN[:4])
    hook.evict([CHAIN[0]], certain=False)
    world.round(hook)
    found = world.get(CHAIN)
    assert (found.matches, found.complete) == ([], False)
    hook.evict([CHAIN[0]])
    world.round(hook)
    found = world.get(CHAIN)
    assert (found.matches, found.complete) == ([], True)
