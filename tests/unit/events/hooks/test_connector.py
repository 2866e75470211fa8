"""What vLLM's connectors put on its event socket, in bytes, and what the index then claims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from events.hooks.connector import Departures, departures
from events.hooks.engine_config import EngineConfig
from events.hooks.vllm import decode_batch
from events.identity import make_salt
from events.ids import CopyState, Inventory, Lineage, Tier
from tests.support.folded_stream import CONTENT, RING, FoldedStream
from tests.support.vllm_message import CLEARED, SIZE, ids, message, removed
from tests.support.vllm_message import stored as plain_stored

CHUNK = 256


class Engine:
    """A vLLM with connectors: its bytes, read and folded."""

    def __init__(self, *connectors: str, capacity: dict[Tier, int] | None = None) -> None:
        self.folded = FoldedStream(
            EngineConfig(content=CONTENT, connectors=connectors, capacity_blocks=capacity or {})
        )
        self._seq = 0

    def says(self, *events: dict[str, Any]) -> None:
        self.folded.feed(decode_batch(self._seq, message(*events)))
        self._seq += 1

    def states(self, holder: str) -> dict[bytes, CopyState]:
        return {block: copy[1].state for block, copy in self.folded.copies(holder).items()}


def stored(hashes: Sequence[object], tokens: Sequence[int], **changes: Any) -> dict[str, Any]:
    """As vLLM 0.32 says it: also that there is nothing extra."""
    return plain_stored(hashes, tokens, **{"extra_keys": [None] * len(hashes), **changes})


PLACEHOLDER: dict[str, Any] = {"block_size": 0, "medium": "CPU", "extra_keys": None}


def prompt(blocks: int, size: int = SIZE) -> list[int]:
    return list(range(100, 100 + blocks * size))


class TestOffloadingConnector:
    def test_a_placeholder_is_known_by_its_hash_and_ends_with_its_removal(self) -> None:
        engine = Engine("OffloadingConnector")
        engine.says(stored([1, 2], prompt(2)))
        engine.says(stored([1], [], **PLACEHOLDER), stored([2], [], **PLACEHOLDER))
        assert engine.folded.credited("cpu") == set(ids(prompt(2)))
        engine.says(removed(1, 2))
        engine.says(removed(2, medium="CPU"))
        assert not engine.folded.copies("gpu")
        assert engine.folded.credited("cpu") == {ids(prompt(2))[0]}

    def test_a_placeholder_that_nothing_explains_is_an_orphan_of_its_tier(self) -> None:
        engine = Engine("OffloadingConnector")
        engine.says(stored([1], prompt(1)))
        engine.says(stored([77], [], **PLACEHOLDER))
        assert not engine.folded.copies("cpu")
        assert engine.folded.state.holders["cpu"].orphans == 1

    def test_a_self_describing_store_is_known_by_its_hash_too(self) -> None:
        """It has tokens and never extra keys, so a salt may hide: only the hash may name it."""
        engine = Engine("OffloadingConnector")
        salt = make_salt(RING["acme"].salt_key, "acme")
        engine.says(stored([1, 2], prompt(2), extra_keys=[[salt], None]))
        full = {"medium": "CPU", "extra_keys": None}
        engine.says(stored([1, 2], prompt(2), **full), stored([9], prompt(1), **full))
        assert engine.folded.credited("cpu") == set(ids(prompt(2), domain="acme"))
        assert not engine.folded.copies("cpu", domain="default")
        assert engine.folded.state.holders["cpu"].orphans == 1

    def test_a_clear_of_the_engine_leaves_its_copies_in_doubt(self) -> None:
        """Its `reset_cache` tells no removals, and a local reset's clear names no tier."""
        engine = Engine("OffloadingConnector")
        engine.says(stored([1], prompt(1)), stored([1], [], **PLACEHOLDER))
        engine.says(CLEARED)
        assert not engine.folded.copies("gpu")
        assert set(engine.states("cpu").values()) == {CopyState.UNCERTAIN}
        assert engine.folded.state.holders["cpu"].inventory is Inventory.PARTIAL
        assert not engine.folded.stream.inventory_known()

    def test_storage_is_a_tier_of_its_own(self) -> None:
        engine = Engine("OffloadingConnector")
        engine.says(stored([1], prompt(1)), stored([1], [], **PLACEHOLDER | {"medium": "STORAGE"}))
        assert engine.folded.credited("disk") == set(ids(prompt(1)))

    def test_what_it_brings_back_to_the_gpu_is_as_old_as_the_copy_it_came_from(self) -> None:
        engine = Engine("OffloadingConnector")
        engine.says(stored([1], prompt(1)), stored([1], [], **PLACEHOLDER), removed(1))
        engine.says(stored([1], prompt(1)))
        (copy,) = engine.folded.copies("gpu").values()
        assert (copy[1].lineage, copy[1].admitted_after) == (Lineage.ONLOAD, None)


@pytest.mark.parametrize("connector", ["SimpleCPUOffloadConnector", "FlexKVConnectorV1"])
def test_connectors_that_tell_both_are_credited_until_the_removal(connector: str) -> None:
    engine = Engine(connector)
    engine.says(stored([1], prompt(1)), stored([1], prompt(1), medium="CPU"))
    assert engine.folded.credited("cpu") == set(ids(prompt(1)))
    engine.says(removed(1, medium="CPU"))
    assert not engine.folded.copies("cpu")


class TestStoresWithoutRemovals:
    def test_mooncake_s_stores_are_held_and_never_credited(self) -> None:
        engine = Engine("MooncakeStoreConnector")
        engine.says(stored([1, 2], prompt(2)))
        engine.says(stored([1, 2], prompt(2), medium="cpu"))
        assert engine.folded.credited("gpu") == set(ids(prompt(2)))
        assert set(engine.states("cpu")) == set(ids(prompt(2)))
        assert not engine.folded.credited("cpu")
        # Told again, it is no better known, and nothing is written.
        before = len(engine.folded.translations)
        engine.says(stored([1, 2], prompt(2), medium="cpu"))
        assert not any(engine.folded.translations[before:])
        assert not engine.folded.credited("cpu")
        engine.folded.snapshot()
        assert not engine.folded.credited("cpu")

    def test_lmcache_v1_s_chunks_are_of_their_own_size_and_nothing_is_claimed_of_them(self) -> None:
        """Its hashes are its own, and it tells no salts: next to an engine that does, they name nothing."""
        engine = Engine("LMCacheConnectorV1")
        engine.says(stored([1], prompt(1)))
        chunk = {"block_size": CHUNK, "medium": "cpu", "extra_keys": None}
        engine.says(stored([b"\1" * 32], prompt(1, CHUNK), **chunk))
        assert not engine.folded.copies("cpu")
        assert engine.folded.state.holders["cpu"].orphans == 1

    def test_lmcache_v1_s_chunks_of_an_engine_without_extra_keys_are_held_in_doubt(self) -> None:
        engine = Engine("LMCacheConnectorV1")
        tokens = prompt(2, CHUNK)
        chunk = {"block_size": CHUNK, "medium": "cpu", "extra_keys": None}
        engine.says(stored([b"\1" * 32], tokens[:CHUNK], **chunk))
        second = chunk | {"parent_block_hash": b"\1" * 32}
        engine.says(stored([b"\2" * 32], tokens[CHUNK:], **second))
        # The end of a prompt that fills no chunk: held, without a name.
        last = chunk | {"parent_block_hash": b"\2" * 32, "block_size": 7}
        engine.says(stored([b"\3" * 32], [5] * 7, **last))
        assert engine.states("cpu") == dict.fromkeys(ids(tokens, CHUNK), CopyState.UNCERTAIN)
        assert engine.folded.state.holders["cpu"].orphans == 1
        assert engine.folded.state.unknown_events == 0
        assert not engine.folded.credited("cpu")

    def test_a_medium_of_its_own_is_flagged_and_placed_nowhere(self) -> None:
        engine = Engine("LMCacheConnectorV1")
        engine.says(stored([1], prompt(1)), stored([2], prompt(1, CHUNK), medium="cuda:0", block_size=CHUNK))
        assert engine.folded.state.unknown_events == 1
        assert set(engine.folded.state.holders) == {"gpu"}
        assert engine.folded.stream.bounds.unplaced == 1
        engine.says(removed(2, medium="cuda:0"))
        assert engine.folded.state.unknown_events == 2

    def test_they_are_bounded_by_what_the_tier_can_hold(self) -> None:
        engine = Engine("MooncakeStoreConnector", capacity={Tier.CPU: 16})
        for number in range(1_100):
            engine.says(stored([number + 1], [number] * SIZE, medium="cpu"))
        assert len(engine.folded.copies("cpu")) <= 2 * 16 + 1_024
        assert not engine.folded.credited("cpu")

    def test_beside_a_connector_that_tells_removals_they_are_no_better(self) -> None:
        engine = Engine("OffloadingConnector", "MooncakeStoreConnector")
        engine.says(stored([1], prompt(1), medium="cpu"), removed(9, medium="CPU"))
        engine.says(stored([1], prompt(1), medium="cpu"))
        assert not engine.folded.credited("cpu")


class TestUnknownConnector:
    @pytest.mark.parametrize("connectors", [(), ("SomebodysConnector",)])
    def test_a_tier_is_credited_from_its_first_removal_on(self, connectors: tuple[str, ...]) -> None:
        engine = Engine(*connectors)
        first, second = prompt(1), [7] * SIZE
        engine.says(stored([1], first, medium="CPU"))
        assert engine.states("cpu") == {ids(first)[0]: CopyState.UNCERTAIN}
        engine.says(stored([2], second, medium="CPU"), removed(2, medium="CPU"))
        assert set(engine.states("cpu")) == set(ids(first))
        engine.says(stored([2], second, medium="CPU"))
        assert engine.folded.credited("cpu") == set(ids(second))
        engine.says(stored([1], first, medium="CPU"))
        assert engine.folded.credited("cpu") == {*ids(first), *ids(second)}

    def test_a_removal_in_another_tier_proves_nothing(self) -> None:
        engine = Engine()
        engine.says(stored([1], prompt(1)), removed(1), stored([1], prompt(1), medium="CPU"))
        engine.says(stored([3], [3] * SIZE, medium="STORAGE"), removed(3, medium="STORAGE"))
        engine.says(stored([1], prompt(1), medium="CPU"))
        assert not engine.folded.credited("cpu")


def test_the_gpu_s_removals_are_the_engine_s_own() -> None:
    assert departures("vllm", ("MooncakeStoreConnector",), Tier.GPU) is Departures.TOLD
    assert departures("sglang", (), Tier.CPU) is Departures.TOLD
    assert departures("sglang", (), Tier.REMOTE) is Departures.UNKNOWN
    assert departures("vllm", ("MooncakeConnectorOfTomorrow",), Tier.CPU) is Departures.UNTOLD
    assert departures("vllm", ("OffloadingConnector", "Other"), Tier.CPU) is Departures.UNKNOWN


def test_a_store_without_medium_is_the_gpu_s_and_a_removal_that_names_it_ends_it() -> None:
    engine = Engine()
    engine.says(stored([1], prompt(1), medium=None))
    assert engine.folded.credited("gpu") == set(ids(prompt(1)))
    engine.says(removed(1, medium="GPU"))
    assert not engine.folded.copies("gpu")


def test_a_store_without_medium_is_in_doubt_when_a_removal_names_another_tier() -> None:
    engine = Engine()
    engine.says(stored([1, 2], prompt(2), medium=None))
    engine.says(removed(1, medium="CPU"))
    first, second = ids(prompt(2))
    assert engine.states("gpu") == {first: CopyState.UNCERTAIN, second: CopyState.COMMITTED}
    assert engine.folded.stream.removed_unknown == 1


def test_a_store_that_named_its_medium_is_not_touched_by_another_tier_s_removal() -> None:
    engine = Engine()
    engine.says(stored([1], prompt(1)))
    engine.says(removed(1, medium="CPU"))
    assert engine.folded.credited("gpu") == set(ids(prompt(1)))
