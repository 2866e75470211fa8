"""Ancestry: what lies below what, learnt in any order, and never at the price of a chain's length squared."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from auditor.lineage import Ancestry, Covered
from events.ids import ROOT_PARENT

BLOCKS = [ROOT_PARENT, *(bytes([n]) * 16 for n in range(1, 7))]
BLOCK = st.sampled_from(BLOCKS)
LONG = 20_000


def walked(links: list[tuple[bytes, bytes]], block: bytes, tops: frozenset[bytes]) -> Covered:
    """Step by step, from what was told."""
    parents: dict[bytes, set[bytes]] = {}
    for child, parent in links:
        parents.setdefault(child, set()).add(parent)
    for _ in range(len(BLOCKS) + 1):
        if block in tops:
            return Covered.YES
        if block == ROOT_PARENT:
            return Covered.NO
        if len(parents.get(block, ())) != 1:
            return Covered.UNDECIDED
        (block,) = parents[block]
    return Covered.UNDECIDED


@given(
    st.lists(st.tuples(st.sampled_from(BLOCKS[1:]), BLOCK), max_size=12),
    st.lists(st.frozensets(BLOCK, max_size=2), min_size=1, max_size=2),
)
def test_what_was_asked_before_more_is_known_changes_no_later_answer(
    links: list[tuple[bytes, bytes]], sets: list[frozenset[bytes]]
) -> None:
    ancestry = Ancestry()
    for count, (block, parent) in enumerate(links, 1):
        ancestry.learn(block, parent)
        for tops in sets:
            for one in BLOCKS:
                assert ancestry.below(one, tops) is walked(links[:count], one, tops)


def test_a_chain_is_walked_once_however_many_of_its_blocks_are_asked_for() -> None:
    chain = [n.to_bytes(16, "big") for n in range(1, LONG)]
    looked = 0

    class Counted(dict[bytes, bytes]):
        def get(self, key: bytes, default: bytes | None = None) -> bytes | None:  # type: ignore[override]
            nonlocal looked
            looked += 1
            return super().get(key, default)

    ancestry = Ancestry(Counted(zip(chain, [ROOT_PARENT, *chain], strict=False)))
    for block in chain:
        assert ancestry.below(block, frozenset({chain[10]})) is (
            Covered.YES if block >= chain[10] else Covered.NO
        )
    assert looked <= 2 * LONG
