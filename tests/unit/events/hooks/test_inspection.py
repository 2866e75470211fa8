"""A look at the engine's pool puts right what its events have left in doubt."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from events.hooks.engine_event import BlockRemoved, BlockStored, EngineHash
from events.ids import Capability, Inventory
from tests.support.folded_stream import FoldedStream
from tests.unit.events.hooks.test_engine_stream import h, ids, removed, stored


def look(folded: FoldedStream, truth: dict[EngineHash, int], group: int = 0) -> bool:
    """As the hook does: what it means is written, and a snapshot if one is due; whether it meant anything."""
    translation = folded.stream.inspected({group: truth})
    if translation:
        folded.write(translation.stream_events, translation.parts)
    if translation.snapshot_due:
        folded.snapshot()
    folded.compare()
    return bool(translation) or translation.snapshot_due


def test_a_copy_in_doubt_is_there_or_gone() -> None:
    folded = FoldedStream()
    folded.events(stored(1, 2), stored(1, 2), removed(1), removed(2))
    assert folded.stream.doubtful()
    assert folded.credited() == set()
    assert look(folded, {h(1): 1})
    assert not folded.stream.doubtful()
    assert folded.credited() == {ids(1)[0]}
    # Its bound is the pool's own count from here on, so the next removal is the last.
    folded.events(removed(1))
    assert folded.copies() == {}


def test_a_look_that_agrees_says_nothing() -> None:
    folded = FoldedStream()
    folded.events(stored(1, 2))
    records = len(folded.sizes)
    assert not look(folded, {h(1): 1, h(2): 1})
    assert len(folded.sizes) == records + 1  # the statement of `compare`


def test_after_a_loss_the_inventory_is_known_again_and_strangers_are_orphans() -> None:
    folded = FoldedStream()
    folded.events(stored(1, 2, 3))
    folded.lose(7, 9)
    assert not folded.stream.inventory_known()
    assert look(folded, {h(1): 1, h(2): 1, h(8): 2})
    assert folded.stream.inventory_known()
    assert folded.credited() == set(ids(1, 2))
    assert folded.stream.orphan_counts() == (1, 0)
    assert folded.state.holders["gpu"].inventory is Inventory.KNOWN


def test_a_hash_that_is_remembered_has_its_id_again() -> None:
    folded = FoldedStream()
    folded.events(stored(1, 2))
    folded.events(removed(2))
    folded.lose(3, 3)
    assert look(folded, {h(1): 1, h(2): 1})
    assert folded.credited() == set(ids(1, 2))


def test_a_group_without_a_place_leaves_the_holder_partial() -> None:
    folded = FoldedStream()
    folded.events(stored(1))
    folded.lose(3, 3)
    assert look(folded, {h(5): 1}, group=3)
    assert folded.stream.doubtful()


@pytest.mark.parametrize("seed", range(30))
def test_whatever_was_lost_a_look_makes_the_stream_the_pool(seed: int) -> None:
    rng = random.Random(seed)
    folded = FoldedStream()
    pool: Counter[int] = Counter()
    for step in range(300):
        number = rng.randrange(1, 12)
        heard = rng.random() < 0.8
        if rng.random() < 0.55 or not pool[number]:
            pool[number] += 1
            event: BlockStored | BlockRemoved = stored(number)
        else:
            pool[number] -= 1
            event = removed(number)
        if heard:
            folded.events(event)
        else:
            folded.lose(step, step)
        if rng.random() < 0.05:
            truth = {h(one): count for one, count in pool.items() if count}
            look(folded, truth)
            assert not folded.stream.doubtful()
            assert folded.stream.checksums()[0].count + folded.stream.orphan_counts()[0] == len(truth)
            assert folded.credited() <= {ids(one)[0] for one, count in pool.items() if count}


def test_another_way_to_the_engine_is_told_once() -> None:
    folded = FoldedStream()
    assert folded.stream.reachable_by(Capability.EVICT_BLOCKS, admission_known=True)
    assert not folded.stream.reachable_by(Capability.EVICT_BLOCKS, admission_known=True)
    opened = folded.stream.open("life-1")
    assert (opened.removal, opened.admission_known) == (Capability.EVICT_BLOCKS, True)
