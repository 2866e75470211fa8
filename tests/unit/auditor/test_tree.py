"""Trees, roots and proofs against public vectors, and against the definition in RFC 6962 written down plainly."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditor.tree import (
    EMPTY_ROOT,
    Tree,
    consistency_proof,
    consistency_ranges,
    inclusion_proof,
    inclusion_ranges,
    leaf_hash,
    verify_consistency,
    verify_inclusion,
)

VECTORS: dict[str, Any] = json.loads(Path("tests/golden/tlog/rfc6962.json").read_text())
EIGHT = VECTORS["certificate_transparency_eight_leaves"]
ARGON = VECTORS["argon2020"]
LEAVES = [leaf_hash(bytes.fromhex(data)) for data in EIGHT["leaves"]]
ROOTS = [bytes.fromhex(root) for root in EIGHT["roots"]]


def unhex(proof: Sequence[str]) -> list[bytes]:
    return [bytes.fromhex(one) for one in proof]


def defined(leaves: Sequence[bytes]) -> bytes:
    """MTH of RFC 6962 2.1, over leaf hashes."""
    if len(leaves) <= 1:
        return leaves[0] if leaves else hashlib.sha256(b"").digest()
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return hashlib.sha256(b"\x01" + defined(leaves[:k]) + defined(leaves[k:])).digest()


def test_roots_of_the_public_vectors() -> None:
    tree = Tree()
    assert tree.root() == EMPTY_ROOT
    for leaf, root in zip(LEAVES, ROOTS, strict=True):
        tree.append(leaf)
        assert tree.root() == root


@pytest.mark.parametrize(("index", "size", "proof"), EIGHT["inclusion"])
def test_inclusion_proofs_of_the_public_vectors(index: int, size: int, proof: list[str]) -> None:
    assert inclusion_proof(LEAVES[:size], index) == unhex(proof)
    assert verify_inclusion(LEAVES[index], index, size, unhex(proof), ROOTS[size - 1])


@pytest.mark.parametrize(("old", "new", "proof"), EIGHT["consistency"])
def test_consistency_proofs_of_the_public_vectors(old: int, new: int, proof: list[str]) -> None:
    assert consistency_proof(LEAVES[:new], old) == unhex(proof)
    assert verify_consistency(old, new, unhex(proof), ROOTS[old - 1], ROOTS[new - 1])


def test_proofs_of_a_real_certificate_log_hold() -> None:
    root, size = bytes.fromhex(ARGON["root"]), ARGON["size"]
    leaf = bytes.fromhex(ARGON["leaf_hash"])
    assert verify_inclusion(leaf, ARGON["index"], size, unhex(ARGON["inclusion"]), root)
    assert not verify_inclusion(leaf, ARGON["index"] + 1, size, unhex(ARGON["inclusion"]), root)
    old, proof = bytes.fromhex(ARGON["old_root"]), unhex(ARGON["consistency"])
    assert verify_consistency(ARGON["old_size"], size, proof, old, root)
    assert not verify_consistency(ARGON["old_size"] + 1, size, proof, old, root)


def numbered(size: int) -> list[bytes]:
    return [leaf_hash(b"%d" % number) for number in range(size)]


def test_every_small_tree_has_its_root_and_every_proof() -> None:
    leaves = numbered(33)
    for size in range(1, 34):
        root = defined(leaves[:size])
        assert Tree().extend(leaves[:size]).root() == root
        for index in range(size):
            proof = inclusion_proof(leaves[:size], index)
            assert verify_inclusion(leaves[index], index, size, proof, root)
        for old in range(1, size + 1):
            proof = consistency_proof(leaves[:size], old)
            assert verify_consistency(old, size, proof, defined(leaves[:old]), root)


sizes = st.integers(2, 40)


@given(st.data())
def test_an_inclusion_proof_holds_for_its_leaf_and_place_only(data: st.DataObject) -> None:
    size = data.draw(sizes)
    index = data.draw(st.integers(0, size - 1))
    leaves = numbered(size)
    root, proof = defined(leaves), inclusion_proof(leaves, index)
    other = data.draw(st.integers(0, size).filter(lambda number: number != index))
    assert not verify_inclusion(leaves[index], other, size, proof, root)
    assert not verify_inclusion(leaf_hash(b"other"), index, size, proof, root)
    for edited in edits(data, proof):
        assert not verify_inclusion(leaves[index], index, size, edited, root)


@given(st.data())
def test_a_consistency_proof_holds_for_its_two_trees_only(data: st.DataObject) -> None:
    size = data.draw(sizes)
    old = data.draw(st.integers(1, size - 1))
    leaves = numbered(size)
    old_root, root, proof = defined(leaves[:old]), defined(leaves), consistency_proof(leaves, old)
    forked = [*leaves[: old - 1], leaf_hash(b"fork"), *leaves[old:]]
    assert not verify_consistency(old, size, proof, old_root, defined(forked))
    assert not verify_consistency(old, size, consistency_proof(forked, old), old_root, defined(forked))
    for edited in edits(data, proof):
        assert not verify_consistency(old, size, edited, old_root, root)


def edits(data: st.DataObject, proof: list[bytes]) -> list[list[bytes]]:
    """A hash added before or behind, one taken away, a flipped bit, a cut hash."""
    made = [[*proof, EMPTY_ROOT], [EMPTY_ROOT, *proof]]
    if proof:
        at = data.draw(st.integers(0, len(proof) - 1))
        flipped = bytes([proof[at][0] ^ 1]) + proof[at][1:]
        made += [
            proof[:at] + proof[at + 1 :],
            [*proof[:at], flipped, *proof[at + 1 :]],
            [*proof[:at], proof[at][:-1], *proof[at + 1 :]],
        ]
    return made


def test_nothing_can_be_proven_of_an_empty_tree_but_that_others_extend_it() -> None:
    assert not verify_inclusion(EMPTY_ROOT, 0, 0, [], EMPTY_ROOT)
    assert verify_consistency(0, 3, [], EMPTY_ROOT, ROOTS[2])
    assert not verify_consistency(0, 3, [EMPTY_ROOT], EMPTY_ROOT, ROOTS[2])
    assert not verify_consistency(3, 2, [], ROOTS[2], ROOTS[1])
    assert not verify_consistency(2, 2, [], ROOTS[1], ROOTS[2])
    assert not verify_consistency(-1, 2, [], ROOTS[1], ROOTS[1])
    assert not verify_inclusion(b"short", 0, 1, [], b"short")


def test_what_a_tree_never_had_is_no_proof_but_an_error() -> None:
    for index, size in ((0, 0), (3, 3), (-1, 2)):
        with pytest.raises(ValueError, match="no leaf"):
            inclusion_ranges(index, size)
    with pytest.raises(ValueError, match="never had"):
        consistency_ranges(4, 3)
    with pytest.raises(ValueError, match="no root of their own"):
        Tree().extend(LEAVES).proof([(0, 4)])


def test_a_tree_keeps_no_more_than_its_edge() -> None:
    tree = Tree()
    for number in range(5_000):
        tree.append(leaf_hash(b"%d" % number))
        assert len(tree._edge) == tree.size.bit_count()
