"""The Merkle tree of RFC 6962 (the same as RFC 9162's), one leaf at a time: roots and both kinds of proof. Pure.

A tree keeps one hash for each full subtree on its right edge, log2 of its size, and besides only the nodes
that a wanted proof is made of. A proof therefore takes one pass over the leaves, however many there are.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

HASH_BYTES = 32
EMPTY_ROOT = hashlib.sha256(b"").digest()
MAX_LEAVES = (1 << 63) - 1
MAX_PROOF_HASHES = 63
"""No proof of a tree with fewer than 2^63 leaves is longer (RFC 6962 2.1.1; C2SP tlog-witness)."""

Range = tuple[int, int]
"""Leaves from the first number up to, without, the second."""


def leaf_hash(data: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def _split(size: int) -> int:
    """Largest power of two below `size`."""
    return 1 << (size - 1).bit_length() - 1


def inclusion_ranges(index: int, size: int) -> list[Range]:
    """Whose roots prove that leaf `index` is in a tree of `size` leaves, from the leaf upwards (2.1.1).

    Raises ValueError if there is no such leaf.
    """
    if not 0 <= index < size:
        raise ValueError(f"a tree of {size} leaves has no leaf {index}")
    found: list[Range] = []
    start, end = 0, size
    while end - start > 1:
        middle = start + _split(end - start)
        if index < middle:
            found.append((middle, end))
            end = middle
        else:
            found.append((start, middle))
            start = middle
    return found[::-1]


def consistency_ranges(old: int, new: int) -> list[Range]:
    """Whose roots prove that the first `old` of `new` leaves are the older tree (2.1.2); none if that is empty
    or the same. Raises ValueError if the older tree is the larger one."""
    if not 0 <= old <= new:
        raise ValueError(f"a tree of {new} leaves has never had {old}")
    if old in (0, new):
        return []
    found: list[Range] = []
    start, end = 0, new
    while old != end:
        middle = start + _split(end - start)
        if old <= middle:
            found.append((middle, end))
            end = middle
        else:
            found.append((start, middle))
            start = middle
    if start > 0:
        found.append((start, end))  # otherwise it is the whole old tree, whose root the verifier has
    return found[::-1]


class Tree:
    """A tree that grows. `keep` names the ranges whose roots will be asked for; see `inclusion_ranges` and
    `consistency_ranges` of the size that the tree will have."""

    __slots__ = ("_edge", "_keep", "_kept", "size")

    def __init__(self, keep: Iterable[Range] = ()) -> None:
        self.size = 0
        self._edge: list[tuple[int, bytes]] = []
        self._keep = frozenset(keep)
        self._kept: dict[Range, bytes] = {}

    def append(self, leaf: bytes) -> None:
        """Adds one leaf by its hash (`leaf_hash` of its data)."""
        start, end, root = self.size, self.size + 1, leaf
        self._note(start, end, root)
        level = end
        while level & 1 == 0:
            start, left = self._edge.pop()
            root = node_hash(left, root)
            self._note(start, end, root)
            level >>= 1
        self._edge.append((start, root))
        self.size = end

    def extend(self, leaves: Iterable[bytes]) -> Tree:
        """Adds leaves in order; returns the tree itself."""
        for leaf in leaves:
            self.append(leaf)
        return self

    def root(self) -> bytes:
        """Root over all leaves so far; `EMPTY_ROOT` if there are none."""
        return self._fold(0) if self._edge else EMPTY_ROOT

    def proof(self, ranges: Iterable[Range]) -> list[bytes]:
        """Roots of ranges that were given as `keep`. Raises ValueError for one that this tree doesn't have."""
        return [self._root_of(one) for one in ranges]

    def _note(self, start: int, end: int, root: bytes) -> None:
        if (start, end) in self._keep:
            self._kept[start, end] = root

    def _root_of(self, wanted: Range) -> bytes:
        known = self._kept.get(wanted)
        if known is not None:
            return known
        start, end = wanted
        if end != self.size or start not in (first for first, _ in self._edge):
            raise ValueError(f"leaves {start} to {end} have no root of their own in a tree of {self.size}")
        return self._fold(start)

    def _fold(self, start: int) -> bytes:
        roots = [root for first, root in self._edge if first >= start]
        folded = roots.pop()
        while roots:
            folded = node_hash(roots.pop(), folded)
        return folded


def inclusion_proof(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """Proof that leaf `index` is in the tree over all given leaf hashes. Raises ValueError."""
    ranges = inclusion_ranges(index, len(leaves))
    return Tree(ranges).extend(leaves).proof(ranges)


def consistency_proof(leaves: Sequence[bytes], old: int) -> list[bytes]:
    """Proof that the tree over all given leaf hashes extends the one over the first `old`. Raises ValueError."""
    ranges = consistency_ranges(old, len(leaves))
    return Tree(ranges).extend(leaves).proof(ranges)


def _hashes(*values: bytes) -> bool:
    return all(len(value) == HASH_BYTES for value in values)


def verify_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """Whether `proof` shows the leaf hash at `index` of the tree of `size` leaves under `root`. Never raises."""
    if not 0 <= index < size or not _hashes(leaf, root, *proof):
        return False
    ranges = inclusion_ranges(index, size)
    if len(ranges) != len(proof):
        return False
    running = leaf
    for (start, _), sibling in zip(ranges, proof, strict=True):
        running = node_hash(running, sibling) if start > index else node_hash(sibling, running)
    return running == root


def verify_consistency(old: int, new: int, proof: Sequence[bytes], old_root: bytes, new_root: bytes) -> bool:
    """Whether `proof` shows that the tree of `new` leaves extends the one of `old`. Never raises.

    From an empty tree everything extends: then the proof must be empty, and whatever root is given for the old
    one says nothing.
    """
    if not 0 <= old <= new or not _hashes(old_root, new_root, *proof):
        return False
    if old == 0:
        return not proof
    if old == new:
        return not proof and old_root == new_root
    ranges = consistency_ranges(old, new)
    if len(ranges) != len(proof):
        return False
    steps = list(zip(ranges, proof, strict=True))
    if ranges[0][1] == old:
        older = newer = steps.pop(0)[1]
    else:
        older = newer = old_root
    for (start, _), sibling in steps:
        if start < old:
            older, newer = node_hash(sibling, older), node_hash(sibling, newer)
        else:
            newer = node_hash(newer, sibling)
    return older == old_root and newer == new_root


def subset_ranges(shown: Sequence[int], size: int) -> list[Range]:
    """The largest subtrees of a tree of `size` leaves that hold none of the `shown` (ascending) ones, from left to
    right: their roots and the shown leaves give the tree's root. For one leaf that is its inclusion proof."""
    found: list[Range] = []
    todo = [(0, size)] if size else []
    while todo:
        start, end = todo.pop()
        if bisect_left(shown, start) == bisect_left(shown, end):
            found.append((start, end))
        elif end - start > 1:
            middle = start + _split(end - start)
            todo += [(middle, end), (start, middle)]
    return found


def subset_root(shown: Mapping[int, bytes], size: int, hashes: Sequence[bytes]) -> bytes | None:
    """Root of a tree of `size` leaves from some of its leaf hashes and the roots of `subset_ranges`; None if they
    don't fit together. Never raises."""
    indexes = sorted(shown)
    if not 0 < size <= MAX_LEAVES or not indexes or indexes[0] < 0 or indexes[-1] >= size:
        return None
    ranges = subset_ranges(indexes, size)
    if len(ranges) != len(hashes) or not _hashes(*hashes, *shown.values()):
        return None
    known: dict[Range, bytes] = dict(zip(ranges, hashes, strict=True))
    known.update({(index, index + 1): leaf for index, leaf in shown.items()})
    return _join(known, 0, size)


def _join(known: Mapping[Range, bytes], start: int, end: int) -> bytes:
    root = known.get((start, end))
    if root is not None:
        return root
    middle = start + _split(end - start)
    return node_hash(_join(known, start, middle), _join(known, middle, end))
