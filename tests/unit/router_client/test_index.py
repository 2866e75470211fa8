"""The prefix index against a naive count: any order of stores and evictions, any budget of work."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.ids import ROOT_PARENT
from router_client import index as index_module
from router_client.index import PrefixIndex

BLOCKS = 14
HOLDERS = 4


def name(block: int) -> bytes:
    return block.to_bytes(16, "big") if block else b"\xee" * 16


def chain(tree: list[int | None], block: int | None) -> list[int]:
    path: list[int] = []
    while block is not None:
        path.append(block)
        block = tree[block]
    return path[::-1]


trees = st.lists(st.integers(-1, BLOCKS), min_size=BLOCKS, max_size=BLOCKS).map(
    lambda raw: [None if at == 0 or link < 0 else link % at for at, link in enumerate(raw)]
)
steps = st.lists(
    st.tuples(
        st.integers(0, HOLDERS - 1),
        st.booleans(),
        st.sets(st.integers(0, BLOCKS - 1), min_size=1, max_size=6),
    ),
    max_size=40,
)


@pytest.mark.parametrize("budget", [1, 3, 2_000])
@settings(max_examples=120, deadline=None)
@given(tree=trees, moves=steps, drained=st.booleans())
def test_match_equals_a_naive_count_on_settled_bits(
    budget: int, tree: list[int | None], moves: list[tuple[int, bool, set[int]]], drained: bool
) -> None:
    index = PrefixIndex()
    original, index_module.STEPS_PER_CHANGE = index_module.STEPS_PER_CHANGE, budget
    try:
        bits = [index.new_bit() for _ in range(HOLDERS)]
        held: list[set[int]] = [set() for _ in range(HOLDERS)]
        for holder, stores, blocks in moves:
            ids = [name(block) for block in blocks]
            if stores:
                links = [tree[block] for block in blocks]
                parents = [ROOT_PARENT if link is None else name(link) for link in links]
                index.store(bits[holder], ids, parents)
                held[holder] |= blocks
            else:
                index.evict(bits[holder], ids)
                held[holder] -= blocks
            if drained:
                while not index.work(budget):
                    pass
                assert index.unsettled == 0
            live = sum(bits) & ~index.unsettled
            for leaf in range(BLOCKS):
                path = chain(tree, leaf)
                found = index.match([name(block) for block in path], live)
                for h in range(HOLDERS):
                    if bits[h] & live:
                        depth = next((i for i, b in enumerate(path) if b not in held[h]), len(path))
                        assert found.get(bits[h], 0) == depth
        assert len(index) == len(set().union(*held))
    finally:
        index_module.STEPS_PER_CHANGE = original


def test_eight_holders_at_eight_depths() -> None:
    index, path = PrefixIndex(), [name(block + 1) for block in range(512)]
    bits = [index.new_bit() for _ in range(8)]
    for h, bit in enumerate(bits):
        depth = 64 * (h + 1)
        index.store(bit, path[:depth], [ROOT_PARENT, *path][:depth])
    assert index.match(path, sum(bits)) == {bit: 64 * (h + 1) for h, bit in enumerate(bits)}
    index.evict(bits[7], [path[100]])
    assert index.match(path, sum(bits))[bits[7]] == 100
    assert index.match(path, sum(bits))[bits[6]] == 448


def test_a_store_under_another_parent_is_refused_and_counted() -> None:
    index = PrefixIndex()
    honest, liar = index.new_bit(), index.new_bit()
    a, b, x = name(1), name(2), name(3)
    index.store(honest, [a, x], [ROOT_PARENT, a])
    index.store(liar, [b, x], [ROOT_PARENT, b])
    assert index.conflicts == 1
    assert index.match([a, x], honest | liar) == {honest: 2}
    index.evict(honest, [a])
    assert index.match([a, x], honest | liar) == {}


def test_released_bits_are_used_again_only_when_nothing_is_left_under_them() -> None:
    index = PrefixIndex()
    bit = index.new_bit()
    path = [name(block + 1) for block in range(100)]
    index.store(bit, path, [ROOT_PARENT, *path[:-1]])
    index.release(bit, path)
    assert not index.work(10)
    assert index.new_bit() != bit
    while not index.work(10):
        pass
    assert len(index) == 0
    assert index.new_bit() == bit


def test_nothing_of_a_dead_chain_stays_behind() -> None:
    index = PrefixIndex()
    bit = index.new_bit()
    path = [name(block + 1) for block in range(50)]
    index.store(bit, path, [ROOT_PARENT, *path[:-1]])
    index.evict(bit, path[::-1])
    assert (index._resident, index._rooted, index._parent, index._children) == ({}, {}, {}, {})


def test_a_popular_block_with_many_continuations_stalls_nobody() -> None:
    index = PrefixIndex()
    popular, other = index.new_bit(), index.new_bit()
    root, kids = name(1), [name(block + 10) for block in range(20_000)]
    for bit in (popular, other):
        index.store(bit, [root, *kids], [ROOT_PARENT, *[root] * len(kids)])
    while not index.work(1_000):
        pass
    index.evict(popular, [root])
    assert index.unsettled == popular
    assert index.match([root, kids[0]], other) == {other: 2}
    while not index.work(1_000):
        pass
    assert index.match([root, kids[0]], popular | other) == {other: 2}
    index.store(popular, [root], [ROOT_PARENT])
    while not index.work(1_000):
        pass
    assert index.match([root, kids[0]], popular | other) == {popular: 2, other: 2}


def test_a_popular_block_that_comes_and_goes_leaves_no_more_to_do_than_there_is() -> None:
    index = PrefixIndex()
    popular, other = index.new_bit(), index.new_bit()
    root, kids = name(1), [name(block + 10) for block in range(20_000)]
    index.store(popular, [root, *kids], [ROOT_PARENT, *[root] * len(kids)])
    for _ in range(20):
        index.evict(popular, [root])
        index.store(popular, [root], [ROOT_PARENT])
        assert sum(len(waiting) for waiting in index._backlog.values()) <= len(kids)
    far = [name(block + 50_000) for block in range(5_000)]
    index.store(other, [far[0], *far[1:]], [ROOT_PARENT, *[far[0]] * (len(far) - 1)])
    index.evict(other, far[:1])
    for _ in range(8):
        index.evict(popular, [root])
        index.work(2_000)
        index.store(popular, [root], [ROOT_PARENT])
    assert index.unsettled == popular, "one holder's changes without end hold up another's few"
    while not index.work(2_000):
        pass
    assert all(index.match([root, kid], popular) == {popular: 2} for kid in kids[::997])
    assert index.match(far[:2], other) == {}
