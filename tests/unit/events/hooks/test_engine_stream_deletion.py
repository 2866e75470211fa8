"""Deletions: what a scope reaches in an engine, what is old, what a removal leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from events.hooks.deletion_scope import ScopedCopy, is_old
from events.hooks.engine_config import EngineConfig
from events.hooks.engine_event import (
    NO_EXTRA_KEYS,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineHash,
    EngineTier,
    ExtraKeys,
)
from events.identity import make_salt, pack_tokens, profile_digest, root_parent
from events.ids import InvalidateReason
from events.keyring import load_keyring
from events.model.control import DomainScope, IdsScope, PrefixScope, ProfileScope, SubjectScope, TenantScope
from events.model.part import BlockInvalidated
from tests.support.folded_stream import CONTENT, RING, FoldedStream

SIZE = 4
REQUEST = 50
PROFILE = profile_digest(CONTENT.model_copy(update={"block_tokens": SIZE}))


def h(number: int) -> EngineHash:
    return EngineHash(number.to_bytes(8, "big"))


def stored(
    *numbers: int,
    parent: int | None = None,
    salt: str | None = None,
    lora: str | None = None,
    tier: EngineTier = EngineTier.GPU,
) -> BlockStored:
    return BlockStored(
        tuple(h(number) for number in numbers),
        None if parent is None else h(parent),
        b"".join(pack_tokens([number] * SIZE) for number in numbers),
        SIZE,
        tier,
        tier.value,
        lora_name=lora,
        extra_keys=(ExtraKeys(lora=lora, salt=salt), *[NO_EXTRA_KEYS] * (len(numbers) - 1)),
        group=0,
    )


def removed(*numbers: int) -> BlockRemoved:
    return BlockRemoved(tuple(h(number) for number in numbers), EngineTier.GPU, "gpu", 0)


def salt(domain: str) -> str:
    return make_salt(RING[domain].salt_key, domain)


def ids(*numbers: int, domain: str = "default") -> list[bytes]:
    tokens = pack_tokens([number for number in numbers for _ in range(SIZE)])
    return RING[domain].hasher().chain(root_parent(PROFILE), tokens, SIZE)


@pytest.fixture
def folded() -> FoldedStream:
    """acme: 1-2-3 and 1-4; default: 11-12; one unassigned (21), one orphan (31)."""
    folded = FoldedStream()
    folded.events(
        stored(1, 2, 3, salt=salt("acme")), stored(4, parent=1), stored(11, 12), admitted_after=REQUEST - 10
    )
    folded.events(stored(21, salt="nobody"), stored(31, parent=30), admitted_after=REQUEST + 1)
    return folded


NAMELESS = {(h(21), None), (h(31), None)}


def names(found: tuple[ScopedCopy, ...]) -> set[tuple[bytes, str | None]]:
    return {(copy.hash, copy.domain) for copy in found}


@pytest.mark.parametrize("scope", [TenantScope(tenant="acme"), DomainScope(domain="acme")])
def test_a_whole_domain_and_all_without_id_are_in_scope(
    folded: FoldedStream, scope: TenantScope | DomainScope
) -> None:
    found = folded.stream.in_scope(scope, ["acme"])
    assert names(found) == NAMELESS | {(h(number), "acme") for number in (1, 2, 3, 4)}
    assert {copy.unassigned for copy in found if copy.hash == h(21)} == {True}


def test_a_subject_is_its_sub_domain(folded: FoldedStream) -> None:
    folded.events(stored(41, salt=salt("acme/anna")))
    found = folded.stream.in_scope(SubjectScope(domain="acme", subject="anna"), ["acme/anna"])
    assert names(found) == NAMELESS | {(h(41), "acme/anna")}


def test_a_subjects_leaves_are_taken_with_all_below_them_and_its_sub_domain_whole(
    folded: FoldedStream,
) -> None:
    folded.events(stored(41, salt=salt("acme/anna")))
    leaf = ids(1, 2, domain="acme")[1]
    scope = SubjectScope(domain="acme", subject="anna", pseudonym=bytes(32), leaves=(leaf,))
    found = folded.stream.in_scope(scope, ["acme", "acme/anna"])
    assert names(found) == NAMELESS | {(h(2), "acme"), (h(3), "acme"), (h(41), "acme/anna")}


def test_a_prefix_takes_all_descendants_with_it(folded: FoldedStream) -> None:
    scope = PrefixScope(domain="acme", ids=tuple(ids(1, 2, domain="acme")))
    assert names(folded.stream.in_scope(scope, ["acme"])) == NAMELESS | {(h(2), "acme"), (h(3), "acme")}


def test_descendants_are_found_when_the_named_block_itself_is_gone(folded: FoldedStream) -> None:
    folded.events(removed(2))
    scope = IdsScope(domain="acme", ids=(ids(1, 2, domain="acme")[1],))
    assert names(folded.stream.in_scope(scope, ["acme"])) == NAMELESS | {(h(3), "acme")}


def test_a_profile_reaches_every_domain_that_uses_it(folded: FoldedStream) -> None:
    folded.events(stored(51, lora="ad1"))
    found = folded.stream.in_scope(ProfileScope(profile=bytes.fromhex(PROFILE)), ["acme", "default"])
    assert names(found) - NAMELESS == {
        *((h(number), "acme") for number in (1, 2, 3, 4)),
        *((h(number), "default") for number in (11, 12)),
    }


def test_a_removal_on_order_names_its_request_and_the_engine_s_own_word_changes_nothing(
    folded: FoldedStream,
) -> None:
    folded.events(stored(3, parent=2), stored(3, parent=2))
    translation = folded.remove([h(1), h(2), h(3), h(4), h(99)], REQUEST)
    (event,) = translation.parts["acme"]
    assert isinstance(event, BlockInvalidated)
    assert (event.request, event.reason, len(event.ids)) == (REQUEST, InvalidateReason.DELETION, 4)
    assert not folded.copies(domain="acme")
    assert not folded.events(*[removed(number) for number in (1, 2, 3, 3, 3, 4)])
    assert set(folded.copies()) == set(ids(11, 12))


def test_orphans_can_be_removed_too(folded: FoldedStream) -> None:
    translation = folded.remove([h(21), h(31)], REQUEST)
    assert not translation.parts
    assert folded.stream.orphan_counts() == (0, 0)


def test_a_child_of_a_removed_block_still_belongs_to_its_domain(folded: FoldedStream) -> None:
    """A running request keeps a removed block in memory and goes on behind it."""
    folded.remove([h(1), h(2), h(3), h(4)], REQUEST)
    folded.events(stored(5, parent=3), admitted_after=REQUEST - 10)
    assert set(folded.copies(domain="acme")) == {ids(1, 2, 3, 5, domain="acme")[3]}
    scope = DomainScope(domain="acme")
    assert folded.stream.standing(REQUEST, scope, ["acme"], {"acme": 4})["acme"].old_left == 1


def test_a_block_with_two_hashes_is_gone_when_both_are(folded: FoldedStream) -> None:
    twin = BlockStored(
        (h(77),), None, pack_tokens([11] * SIZE), SIZE, EngineTier.GPU, "gpu", extra_keys=(NO_EXTRA_KEYS,)
    )
    folded.events(twin)
    scope = DomainScope(domain="default")
    assert {copy.hash for copy in folded.stream.in_scope(scope, ["default"])} >= {h(11), h(77)}
    assert folded.stream.standing(REQUEST, scope, ["default"], {})["default"].old_left == 2
    assert not folded.remove([h(11)], REQUEST).parts
    assert ids(11)[0] in folded.copies()
    folded.remove([h(77)], REQUEST)
    assert ids(11)[0] not in folded.copies()


def test_a_removal_from_the_gpu_leaves_the_other_tiers(folded: FoldedStream) -> None:
    folded.events(stored(11, tier=EngineTier.CPU))
    folded.remove([h(11), h(12)], REQUEST)
    assert set(folded.copies("cpu")) == set(ids(11))
    standing = folded.stream.standing(REQUEST, DomainScope(domain="default"), ["default"], {"default": 2})
    assert (standing["default"].old_left, standing["default"].removed) == (1, 2)


def test_standing_counts_what_is_old_and_nothing_newer(folded: FoldedStream) -> None:
    folded.events(stored(6, salt=salt("acme")), admitted_after=REQUEST)
    folded.events(stored(7, salt=salt("acme")), stored(32, parent=30), admitted_after=None)
    standing = folded.stream.standing(REQUEST, DomainScope(domain="acme"), ["acme"], {})["acme"]
    assert (standing.old_left, standing.orphans, standing.unassigned) == (5, 1, 0)


def test_unknown_provenance_is_older_than_any_request() -> None:
    assert is_old(None, 0)
    assert is_old(4, 5)
    assert not is_old(5, 5)


def test_behind_a_barrier_only_what_was_computed_there_is_new() -> None:
    assert not is_old(None, 5, computed=True, barrier=True)
    assert is_old(None, 5, computed=True)
    assert is_old(None, 5, barrier=True)
    assert is_old(4, 5, barrier=True)
    assert not is_old(5, 5, barrier=True)


def test_a_reset_leaves_what_other_tiers_hold_and_what_they_bring_back() -> None:
    folded = FoldedStream()
    folded.events(stored(1, 2, salt=salt("acme")))
    folded.events(stored(1, salt=salt("acme"), tier=EngineTier.CPU))
    folded.events(AllBlocksCleared())
    scope = DomainScope(domain="acme")
    assert not folded.stream.inventory_known()
    assert folded.stream.standing(REQUEST, scope, ["acme"], {})["acme"].old_left == 1


def test_what_a_connector_loads_is_old_behind_a_barrier_and_what_is_computed_is_not() -> None:
    scope = DomainScope(domain="acme")
    for connectors, left in (((), 0), (("store",), 2)):
        folded = FoldedStream(EngineConfig(content=CONTENT, connectors=connectors))
        folded.events(stored(1, 2, salt=salt("acme")))
        standing = folded.stream.standing(REQUEST, scope, ["acme"], {}, barrier=True)["acme"]
        assert standing.old_left == left
        assert folded.stream.foreign_landings() == ({"acme"} if connectors else set())
        assert folded.stream.foreign_landings() == set()


def test_an_offloaded_copy_is_as_new_as_the_one_that_it_was_made_from() -> None:
    folded = FoldedStream()
    folded.events(stored(1, salt=salt("acme")))
    folded.events(
        stored(1, salt=salt("acme"), tier=EngineTier.CPU), stored(5, salt=salt("acme"), tier=EngineTier.CPU)
    )
    old = list(folded.stream.old(REQUEST, DomainScope(domain="acme"), ["acme"], barrier=True))
    assert [(copy.hash, copy.holder) for copy in old] == [(h(5), "cpu")]


def test_copies_of_a_domain_whose_keys_are_gone_count_as_unassigned_and_the_stream_stays_whole(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ring.json"
    secrets = {name: name.encode().ljust(32, b".").hex() for name in ("default", "acme")}
    path.write_text(json.dumps({"domains": secrets}))
    folded = FoldedStream(ring=load_keyring(path))
    folded.ring = RING
    folded.events(stored(1, 2, 3, salt=salt("acme")), stored(11, 12))
    folded.events(stored(1, salt=salt("acme"), tier=EngineTier.CPU))
    assert folded.stream.retire() is None
    del secrets["acme"]
    path.write_text(json.dumps({"domains": secrets}))
    retired = folded.stream.retire()
    assert retired is not None
    folded.take(retired)
    assert folded.stream.orphan_counts() == (0, 4)
    assert set(folded.copies()) == set(ids(11, 12))
    # What the engine says of them from now on is of hashes without id, also behind them in the chain.
    translation = folded.events(stored(4, parent=3), stored(1, 2, salt=salt("acme")), removed(2))
    assert not translation.parts
    assert folded.stream.orphan_counts() == (0, 5)
    folded.events(removed(2))
    assert folded.stream.orphan_counts() == (0, 4)
    folded.snapshot()
    assert folded.stream.retire() is None
    folded.remove([h(1), h(3), h(4)], REQUEST)
    assert folded.stream.orphan_counts() == (0, 1)
