"""What engine events mean: ids, domains, duplicates, orphans, losses, clears, tiers, snapshots."""

from __future__ import annotations

import pytest

from events.hooks.engine_config import EngineConfig
from events.hooks.engine_event import (
    NO_EXTRA_KEYS,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineBatch,
    EngineHash,
    EngineTier,
    ExtraKeys,
    MalformedEvent,
    UnknownEvent,
)
from events.identity import Extra, bound_salt_hmac, make_salt, pack_tokens, profile_digest, root_parent
from events.ids import CopyState, Inventory, Lineage, StreamStatus, Tier
from events.model.part import EngineLoss, Orphans, SnapshotBegin, UnknownEvents
from tests.support.folded_stream import CONTENT, RING, FoldedStream

SIZE = 4


def h(number: int) -> EngineHash:
    return EngineHash(number.to_bytes(8, "big"))


def stored(
    *numbers: int,
    parent: int | None = None,
    salt: str | None = None,
    lora: str | None = None,
    tier: EngineTier = EngineTier.GPU,
    extra: ExtraKeys | None = None,
    group: int = 0,
    **more: object,
) -> BlockStored:
    """Blocks whose tokens follow from their numbers."""
    first = extra or ExtraKeys(lora=lora, salt=salt)
    fields: dict[str, object] = {
        "hashes": tuple(h(number) for number in numbers),
        "parent": None if parent is None else h(parent),
        "tokens": b"".join(pack_tokens([number] * SIZE) for number in numbers),
        "block_size": SIZE,
        "tier": tier,
        "medium": tier.value,
        "lora_name": lora,
        "extra_keys": (first, *[NO_EXTRA_KEYS] * (len(numbers) - 1)),
        "group": group,
    }
    return BlockStored(**(fields | more))  # type: ignore[arg-type]


def removed(*numbers: int, tier: EngineTier = EngineTier.GPU, group: int = 0) -> BlockRemoved:
    return BlockRemoved(tuple(h(number) for number in numbers), tier, tier.value, group)


def ids(*numbers: int, domain: str = "default", adapter: str | None = None) -> list[bytes]:
    """Ids of the chain of these blocks."""
    content = CONTENT.model_copy(update={"block_tokens": SIZE, "adapter": adapter})
    tokens = pack_tokens([number for number in numbers for _ in range(SIZE)])
    return RING[domain].hasher().chain(root_parent(profile_digest(content)), tokens, SIZE)


@pytest.fixture
def folded() -> FoldedStream:
    return FoldedStream()


class TestIdentity:
    def test_a_chain_gets_the_ids_of_its_tokens_and_its_true_parents(self, folded: FoldedStream) -> None:
        folded.events(stored(1, 2), stored(3, parent=2))
        one, two, three = ids(1, 2, 3)
        assert {block: copy[0] for block, copy in folded.copies().items()} == {
            one: bytes(16),
            two: one,
            three: two,
        }

    def test_a_salt_names_the_domain_and_its_children_inherit_it(self, folded: FoldedStream) -> None:
        folded.events(stored(1, 2, salt=make_salt(RING["acme"].salt_key, "acme")))
        folded.events(stored(3, parent=2))
        assert set(folded.copies(domain="acme")) == set(ids(1, 2, 3, domain="acme"))
        assert not folded.copies(domain="default")

    def test_a_sub_domain_is_a_domain_of_its_own(self, folded: FoldedStream) -> None:
        folded.events(stored(1, salt=make_salt(RING["acme/anna"].salt_key, "acme/anna")))
        assert set(folded.copies(domain="acme/anna")) == set(ids(1, domain="acme/anna"))

    @pytest.mark.parametrize("salt", ["other", "kvl1.acme.00000000000000000000000000000000", "kvl1..", ""])
    def test_any_other_salt_is_unassigned_down_the_chain(self, folded: FoldedStream, salt: str) -> None:
        folded.events(stored(1, salt=salt), stored(2, parent=1))
        assert folded.stream.orphan_counts() == (0, 2)
        assert not folded.copies()
        folded.events(removed(1, 2))
        assert folded.stream.orphan_counts() == (0, 0)

    def test_a_salt_bound_later_counts_from_its_next_store_on(self) -> None:
        bound: dict[bytes, str] = {}
        folded = FoldedStream(bound=bound)
        folded.events(stored(1, salt="gateway"))
        assert folded.stream.orphan_counts() == (0, 1)
        bound[bound_salt_hmac(RING["acme"].salt_key, "gateway")] = "acme"
        folded.events(stored(1, 2, salt="gateway"))
        assert folded.stream.orphan_counts() == (0, 0)
        assert set(folded.copies(domain="acme")) == set(ids(1, 2, domain="acme"))

    def test_without_a_default_domain_no_salt_is_unassigned(self) -> None:
        folded = FoldedStream(EngineConfig(content=CONTENT, default_domain=None))
        folded.events(stored(1))
        assert folded.stream.orphan_counts() == (0, 1)

    def test_an_unknown_parent_makes_orphans_never_a_root(self, folded: FoldedStream) -> None:
        translation = folded.events(stored(2, 3, parent=1), stored(4, parent=3))
        assert not folded.copies()
        (told,) = [event for event in translation.stream_events if isinstance(event, Orphans)]
        assert (told.orphans, told.unassigned) == (3, 0)

    def test_an_orphan_that_is_stored_again_from_its_root_gets_its_id_and_keeps_its_age(
        self, folded: FoldedStream
    ) -> None:
        folded.events(stored(2, parent=1), admitted_after=3)
        folded.events(stored(1, 2), admitted_after=9)
        assert folded.stream.orphan_counts() == (0, 0)
        assert {block: copy[1].admitted_after for block, copy in folded.copies().items()} == dict(
            zip(ids(1, 2), (9, 3), strict=True)
        )

    def test_adapters_have_profiles_and_a_child_of_another_adapter_is_an_orphan(
        self, folded: FoldedStream
    ) -> None:
        folded.events(stored(1, lora="ad1"), stored(2, parent=1, lora="ad1"), stored(3, parent=1))
        assert set(folded.copies()) == set(ids(1, 2, adapter="ad1"))
        assert folded.stream.orphan_counts() == (1, 0)

    def test_an_adapter_that_is_loaded_again_voids_its_copies_and_only_those(
        self, folded: FoldedStream
    ) -> None:
        folded.events(stored(1, 2, lora="ad1"), stored(3))
        retired = folded.stream.retire_profiles("ad1")
        assert retired is not None
        folded.take(retired)
        assert folded.credited() == set(ids(3))
        assert folded.stream.orphan_counts() == (0, 2)
        assert folded.stream.retire_profiles("ad1") is None
        # A prompt that goes on from a void block is void; one computed anew is of a new profile.
        folded.events(stored(4, parent=2, lora="ad1"))
        assert folded.credited() == set(ids(3))
        folded.events(stored(1, lora="ad1"))
        assert folded.credited() == {*ids(3), *ids(1, adapter="ad1")}
        assert {number: profile.retired for (_, number), profile in folded.state.profiles.items()} == {
            0: True,
            1: False,
            2: False,
        }
        folded.snapshot()
        assert folded.credited() == {*ids(3), *ids(1, adapter="ad1")}

    def test_weights_changed_in_place_void_everything(self, folded: FoldedStream) -> None:
        folded.events(stored(1, 2), stored(3, salt=make_salt(RING["acme"].salt_key, "acme")))
        retired = folded.stream.retire_profiles()
        assert retired is not None
        folded.take(retired)
        assert not folded.copies()
        assert folded.stream.orphan_counts() == (0, 3)
        folded.events(removed(1, 2, 3), stored(1))
        assert folded.stream.orphan_counts() == (0, 0)
        assert folded.credited() == set(ids(1))

    def test_images_and_embeddings_are_part_of_the_id(self, folded: FoldedStream) -> None:
        keys = ExtraKeys(mm=(("image-1", -2),), prompt_embeds=b"digest")
        folded.events(stored(1, extra=keys))
        extra = Extra(modality=(("image-1", -2),), prompt_embeds=(b"digest".hex(),)).to_bytes()
        content = CONTENT.model_copy(update={"block_tokens": SIZE})
        expected = RING["default"].hasher()
        assert set(folded.copies()) == {
            expected.block_id(root_parent(profile_digest(content)), pack_tokens([1] * SIZE), extra)
        }

    @pytest.mark.parametrize("keys", [ExtraKeys(unrecognised=True), ExtraKeys(mm=(("i", 1 << 60),))])
    def test_what_can_t_be_represented_gets_no_id(self, folded: FoldedStream, keys: ExtraKeys) -> None:
        folded.events(stored(1, extra=keys), stored(2, parent=1))
        assert folded.stream.orphan_counts()[0] == 2
        assert not folded.copies()

    def test_extra_keys_left_out_after_they_were_given_may_hide_a_salt(self, folded: FoldedStream) -> None:
        folded.events(stored(1, extra_keys=None))
        assert set(folded.copies()) == set(ids(1))
        folded.events(stored(2))
        folded.events(stored(3, extra_keys=None))
        assert set(folded.copies()) == {*ids(1), *ids(2)}
        assert folded.stream.orphan_counts() == (1, 0)

    def test_a_hash_that_contradicts_itself_is_a_loss(self, folded: FoldedStream) -> None:
        folded.events(stored(1, 2))
        translation = folded.events(stored(2, parent=1, tokens=pack_tokens([7] * SIZE)))
        assert [type(event) for event in translation.stream_events] == [UnknownEvents, EngineLoss]
        assert not folded.credited()

    def test_two_hashes_of_one_block_are_one_copy(self, folded: FoldedStream) -> None:
        """Engines with identity-sensitive hashing may name equal content twice."""
        tokens = pack_tokens([1] * SIZE)
        folded.events(stored(1), stored(9, tokens=tokens))
        assert set(folded.copies()) == set(ids(1))
        folded.events(removed(9), stored(9, tokens=tokens), removed(1))
        assert not folded.credited()
        folded.events(removed(9))
        assert not folded.copies()

    def test_a_hash_without_a_copy_is_remembered_for_a_bounded_while(self) -> None:
        folded = FoldedStream(EngineConfig(content=CONTENT, hashes_remembered=2))
        folded.events(stored(*range(1, 9)))
        folded.events(*(removed(number) for number in range(8, 0, -1)))
        assert folded.stream.hash_count == 2
        folded.events(stored(20, parent=1), stored(21, parent=8))
        assert len(folded.copies()) == 1
        assert folded.stream.orphan_counts() == (1, 0)


class TestDuplicates:
    def test_the_last_removal_is_certain_one_before_it_is_not(self, folded: FoldedStream) -> None:
        folded.events(stored(1, 2), stored(2, parent=1))
        folded.events(removed(2))
        assert folded.credited() == set(ids(1))
        assert folded.copies()[ids(1, 2)[1]][1].state is CopyState.UNCERTAIN
        folded.events(removed(2))
        assert set(folded.copies()) == set(ids(1))

    def test_a_store_proves_an_uncertain_copy_again(self, folded: FoldedStream) -> None:
        folded.events(stored(1), stored(1))
        folded.events(removed(1))
        assert not folded.credited()
        folded.events(stored(1))
        assert folded.credited() == set(ids(1))

    def test_a_count_is_no_higher_than_the_pool_allows(self) -> None:
        folded = FoldedStream(EngineConfig(content=CONTENT, capacity_blocks={Tier.GPU: 3}))
        folded.events(stored(1, 2, 3), *[stored(1) for _ in range(258)])
        folded.events(removed(1))
        assert set(folded.copies()) == set(ids(1, 2, 3)[1:])

    def test_a_pool_that_holds_more_than_was_said_has_no_bound(self) -> None:
        folded = FoldedStream(EngineConfig(content=CONTENT, capacity_blocks={Tier.GPU: 2}))
        folded.events(stored(1, 2, 3), stored(1))
        folded.events(removed(1))
        assert len(folded.copies()) == 3

    def test_a_snapshot_ends_what_the_pool_has_no_room_for(self) -> None:
        folded = FoldedStream(EngineConfig(content=CONTENT, capacity_blocks={Tier.GPU: 2}))
        folded.events(stored(1), stored(1))
        folded.events(removed(1))
        folded.events(stored(2, 3))
        assert len(folded.copies()) == 3
        folded.snapshot()
        assert set(folded.copies()) == set(ids(2, 3))

    def test_doubts_are_bounded_and_what_is_forgotten_makes_the_holder_partial(self) -> None:
        folded = FoldedStream(EngineConfig(content=CONTENT, doubtful_kept=4))
        for number in range(1, 6):
            folded.events(stored(number), stored(number))
            folded.events(removed(number))
        assert folded.translations[-1].snapshot_due
        assert set(folded.copies()) == {ids(4)[0], ids(5)[0]}
        folded.snapshot()
        assert folded.state.holders["gpu"].inventory is Inventory.PARTIAL
        assert not folded.stream.inventory_known()

    def test_a_duplicate_never_makes_a_copy_younger(self, folded: FoldedStream) -> None:
        folded.events(stored(1), admitted_after=5)
        folded.events(stored(1), admitted_after=9)
        assert folded.copies()[ids(1)[0]][1].admitted_after == 5
        folded.events(stored(1), admitted_after=None)
        assert folded.copies()[ids(1)[0]][1].admitted_after is None
        folded.events(removed(1), removed(1), removed(1))
        folded.events(stored(1), admitted_after=9)
        assert folded.copies()[ids(1)[0]][1].admitted_after == 9

    def test_a_repeat_that_changes_nothing_writes_nothing(self, folded: FoldedStream) -> None:
        folded.events(stored(1, 2), admitted_after=5)
        assert not folded.events(stored(2, parent=1), admitted_after=7)

    def test_a_removal_of_something_unknown_is_counted_and_nothing_else(self, folded: FoldedStream) -> None:
        assert not folded.events(removed(1), removed(2, group=5), removed(3, tier=EngineTier.CPU))
        assert folded.stream.removed_unknown == 3


class TestClearsAndLosses:
    def test_a_clear_empties_the_gpu_and_ends_its_partial_inventory(self, folded: FoldedStream) -> None:
        folded.events(stored(1), stored(5, parent=4))
        folded.lose(7, 9)
        assert folded.state.holders["gpu"].inventory is Inventory.PARTIAL
        assert not folded.credited()
        assert len(folded.copies()) == 1
        folded.events(AllBlocksCleared())
        assert folded.state.holders["gpu"].inventory is Inventory.EMPTY
        assert folded.stream.inventory_known()
        assert not folded.copies()
        assert folded.stream.orphan_counts() == (0, 0)

    def test_only_what_comes_after_a_clear_in_its_batch_is_left(self, folded: FoldedStream) -> None:
        folded.events(stored(1, 2), AllBlocksCleared(), stored(1), stored(3, parent=1))
        assert folded.credited() == set(ids(1, 3))

    def test_a_clear_leaves_other_tiers_partial(self, folded: FoldedStream) -> None:
        folded.events(stored(1), stored(1, tier=EngineTier.CPU))
        folded.events(AllBlocksCleared())
        assert not folded.copies("gpu")
        assert set(folded.copies("cpu")) == set(ids(1))
        assert folded.credited() == set()
        assert folded.state.holders["cpu"].inventory is Inventory.PARTIAL
        assert not folded.stream.inventory_known()

    def test_a_clear_casts_doubt_on_what_its_own_batch_stored_elsewhere(self, folded: FoldedStream) -> None:
        folded.events(stored(1), stored(1, tier=EngineTier.CPU), AllBlocksCleared())
        assert set(folded.copies("cpu")) == set(ids(1))
        assert folded.credited() == set()

    def test_after_a_loss_only_a_store_makes_certain(self, folded: FoldedStream) -> None:
        folded.events(stored(1, 2, 3))
        folded.lose(4)
        folded.events(stored(2, parent=1))
        assert folded.credited() == {ids(1, 2)[1]}

    @pytest.mark.parametrize("kind", ["BlockStored", "BlockRemoved", "?"])
    def test_a_malformed_event_is_a_loss_also_of_what_its_batch_stored_before(
        self, folded: FoldedStream, kind: str
    ) -> None:
        folded.events(stored(1))
        translation = folded.events(
            stored(2, parent=1), MalformedEvent(kind, "block_hashes"), stored(3, parent=2)
        )
        assert any(isinstance(event, EngineLoss) for event in translation.stream_events)
        assert folded.credited() == {ids(1, 2, 3)[2]}
        assert folded.state.unknown_events == 1

    def test_an_unknown_kind_flags_the_stream_and_changes_nothing(self, folded: FoldedStream) -> None:
        folded.events(stored(1))
        translation = folded.events(UnknownEvent("BlockPinned", 77))
        assert translation.stream_events == [UnknownEvents(kind="BlockPinned", length=77)]
        assert folded.credited() == set(ids(1))

    def test_another_engine_life_holds_nothing_of_the_last(self, folded: FoldedStream) -> None:
        folded.events(stored(1, 2))
        folded.open("life-2")
        assert folded.state.holders["gpu"].inventory is Inventory.EMPTY
        assert folded.stream.hash_count == 0
        folded.events(stored(3, parent=2))
        assert folded.stream.orphan_counts() == (1, 0)

    def test_an_engine_met_in_mid_life_is_partial_until_its_clear(self) -> None:
        folded = FoldedStream(from_birth=False)
        assert folded.state.holders["gpu"].inventory is Inventory.PARTIAL
        folded.events(AllBlocksCleared())
        assert folded.stream.inventory_known()


class TestTiers:
    def test_a_copy_in_another_tier_carries_the_age_of_its_source(self, folded: FoldedStream) -> None:
        folded.events(stored(1), admitted_after=4)
        folded.events(stored(1, tier=EngineTier.CPU), admitted_after=9)
        attributes = folded.copies("cpu")[ids(1)[0]][1]
        assert (attributes.admitted_after, attributes.lineage) == (4, Lineage.UNKNOWN)
        assert folded.state.holders["cpu"].tier is Tier.CPU

    def test_with_a_connector_what_appears_on_the_gpu_may_have_been_loaded(self) -> None:
        folded = FoldedStream(EngineConfig(content=CONTENT, connectors=("OffloadingConnector",)))
        folded.events(stored(1, 2), admitted_after=4)
        copies = folded.copies()
        assert {copy[1].admitted_after for copy in copies.values()} == {None}
        folded.events(stored(1, tier=EngineTier.CPU), removed(1))
        folded.events(stored(1), admitted_after=9)
        attributes = folded.copies()[ids(1)[0]][1]
        assert (attributes.lineage, attributes.admitted_after) == (Lineage.ONLOAD, None)

    def test_a_placeholder_without_tokens_is_known_by_its_hash_or_an_orphan(
        self, folded: FoldedStream
    ) -> None:
        folded.events(stored(1))
        folded.events(stored(1, 8, tier=EngineTier.CPU, tokens=b"", block_size=0, extra_keys=None))
        assert set(folded.copies("cpu")) == set(ids(1))
        assert folded.state.holders["cpu"].orphans == 1

    def test_an_unknown_medium_is_flagged_and_never_credited(self, folded: FoldedStream) -> None:
        translation = folded.events(
            stored(1, tier=EngineTier.UNKNOWN, medium="tape"),
            BlockRemoved((h(1),), EngineTier.UNKNOWN, "tape"),
        )
        assert [type(event) for event in translation.stream_events] == [UnknownEvents, UnknownEvents]
        assert not folded.copies()

    def test_a_new_holder_after_opening_restates_the_stream(self, folded: FoldedStream) -> None:
        folded.events(stored(1))
        translation = folded.events(stored(1, tier=EngineTier.CPU))
        assert translation.snapshot_due
        assert isinstance(translation.stream_events[0], SnapshotBegin)
        folded.snapshot()
        assert folded.state.status is StreamStatus.LIVE
        assert not folded.events(stored(1, tier=EngineTier.CPU)).snapshot_due


class TestSparseGroups:
    def test_hashes_are_never_zipped_with_tokens_they_don_t_cover(self, folded: FoldedStream) -> None:
        sparse = stored(2, 4, tokens=b"\1" * 4 * SIZE * 4, group=1, spec_kind="sliding_window", window=8)
        folded.events(sparse, stored(1, 2, 3, 4))
        chain = ids(1, 2, 3, 4)
        assert set(folded.copies(group=1)) == {chain[1], chain[3]}
        assert {copy[0] for copy in folded.copies(group=1).values()} == {chain[0], chain[2]}

    def test_a_sparse_hash_that_nothing_explains_is_an_orphan(self, folded: FoldedStream) -> None:
        folded.events(stored(2, tokens=b"\1" * 4 * SIZE * 4, spec_kind="sliding_window", window=8))
        assert folded.stream.orphan_counts() == (1, 0)
        assert not folded.copies()

    def test_an_empty_store_teaches_its_group_and_nothing_else(self, folded: FoldedStream) -> None:
        folded.events(stored(1))
        translation = folded.events(
            stored(parent=1, tokens=b"\1" * 4 * SIZE, group=1, spec_kind="sliding_window", window=8)
        )
        assert translation.snapshot_due
        assert set(folded.state.holders["gpu"].groups) == {0, 1}

    def test_the_same_hash_under_another_block_size_is_another_block(self, folded: FoldedStream) -> None:
        double = stored(2, tokens=pack_tokens([1] * SIZE + [2] * SIZE), block_size=2 * SIZE, group=1)
        folded.events(stored(1, 2), double)
        assert len(folded.copies(group=1)) == 1
        assert set(folded.copies(group=1)).isdisjoint(folded.copies(group=0))
        assert folded.state.holders["gpu"].groups[1].block_tokens == 2 * SIZE

    def test_a_group_s_block_size_doesn_t_change_under_its_copies(self, folded: FoldedStream) -> None:
        double = stored(2, tokens=pack_tokens([1] * SIZE + [2] * SIZE), block_size=2 * SIZE)
        folded.events(double, AllBlocksCleared(), stored(1))
        folded.events(double)
        assert folded.credited() == set(ids(1))
        assert folded.state.unknown_events == 1

    def test_a_removal_ends_the_copy_of_its_own_group_only(self, folded: FoldedStream) -> None:
        folded.events(stored(1), stored(1, group=1))
        folded.events(removed(1, group=1))
        assert folded.credited(group=0) == set(ids(1))
        assert not folded.copies(group=1)


class TestSnapshot:
    def test_a_reader_that_lost_everything_has_it_all_again(self, folded: FoldedStream) -> None:
        folded.events(stored(1, 2, salt=make_salt(RING["acme"].salt_key, "acme")), stored(1 << 20))
        folded.events(stored(1 << 20), removed(1 << 20), stored(6, parent=5), admitted_after=3)
        folded.lose(1)
        folded.events(stored(3, parent=2), admitted_after=8)
        before = dict(folded.copies())
        copy = FoldedStream(life="life-1")
        copy.stream = folded.stream
        copy.open("life-1")
        assert copy.state.holders["gpu"].inventory is Inventory.PARTIAL
        copy.snapshot()
        assert len(before) == 4
        assert {block: (parent, a._replace(alias=b"")) for block, (parent, a) in before.items()} == {
            block: (parent, a._replace(alias=b"")) for block, (parent, a) in copy.copies().items()
        }
        assert copy.state.holders["gpu"].orphans == 1

    def test_live_events_between_ranges_are_in_it(self) -> None:
        folded = FoldedStream()
        folded.events(stored(*range(1, 9_001)))
        stream = folded.stream.snapshot("s")
        records = 0
        for record in stream:
            folded.write(record.stream_events, record.parts)
            records += 1
            folded.events(stored(10_000 + records, parent=9_000), removed(9_000 - records))
        folded.compare()
        assert records == 5
        assert folded.state.status is StreamStatus.LIVE
        assert folded.state.holders["gpu"].inventory is Inventory.KNOWN
        assert max(folded.sizes) < 500_000

    def test_an_abandoned_one_leaves_nothing_behind(self, folded: FoldedStream) -> None:
        folded.events(stored(1))
        for _ in range(3):
            stream = folded.stream.snapshot("s")
            next(stream)
            next(stream)
            del stream
        assert all(not table.added for table in folded.stream._holders.tables())

    def test_a_new_epoch_of_the_same_life_declares_its_profiles_again(self, folded: FoldedStream) -> None:
        folded.events(stored(1))
        folded.open("life-1")
        translation = folded.stream.translate(
            EngineBatch(0, 0, None, (stored(2, parent=1),), bytes(32)), None
        )
        folded.write(translation.stream_events, translation.parts)
        assert set(folded.copies()) == {ids(1, 2)[1]}
        folded.snapshot()
        assert set(folded.copies()) == set(ids(1, 2))
