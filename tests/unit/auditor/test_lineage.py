"""Whether a block is below another: the same whatever was asked before, and a chain is walked once."""

from __future__ import annotations

import pickle
import random
import time

import pytest

from auditor.lineage import Ancestry, Covered
from events.ids import ROOT_PARENT


def _id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def plainly(parents: dict[bytes, bytes], torn: set[bytes], block: bytes, tops: frozenset[bytes]) -> Covered:
    """Walks to the root each time."""
    passed: set[bytes] = set()
    while block not in tops:
        if block == ROOT_PARENT:
            return Covered.NO
        parent = parents.get(block)
        if parent is None or block in torn or block in passed:
            return Covered.UNDECIDED
        passed.add(block)
        block = parent
    return Covered.YES


@pytest.mark.parametrize("seed", range(20))
def test_answers_are_those_of_a_walk_whatever_was_learnt_meanwhile(seed: int) -> None:
    rng = random.Random(seed)
    known, asked = Ancestry(), [frozenset({_id(3), _id(11)}), frozenset({_id(5)}), frozenset[bytes]()]
    for step in range(400):
        # Loops, contradictions and blocks whose parent comes later are all in it.
        known.learn(_id(rng.randrange(1, 40)), _id(rng.randrange(0, 40) if rng.random() < 0.5 else 0))
        if step == 200:
            known = pickle.loads(pickle.dumps(known))
        for _ in range(5):
            block, tops = _id(rng.randrange(0, 45)), rng.choice(asked)
            assert known.below(block, tops) is plainly(known.parents, known.torn, block, tops)


@pytest.mark.parametrize("rooted", [True, False])
def test_a_prompt_of_a_million_tokens_is_walked_once(rooted: bool) -> None:
    known, blocks = Ancestry(), 65_000
    for number in range(1 if rooted else 2, blocks):
        known.learn(_id(number), _id(number - 1))
    began = time.monotonic()
    answers = {known.below(_id(number), frozenset({_id(100_000)})) for number in range(1, blocks)}
    assert answers == ({Covered.NO} if rooted else {Covered.UNDECIDED})
    assert time.monotonic() - began < 20, "the square of it takes half an hour"
