"""What SGLang says, in bytes of its own event classes through its own publisher and real sockets."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from events.hooks.engine_adapter import SGLANG
from events.hooks.engine_config import EngineConfig
from events.hooks.engine_event import AllBlocksCleared, BlockStored, EngineTier
from events.hooks.sglang import decode_batch
from events.identity import bound_salt_hmac, make_salt
from events.ids import CopyState, Inventory
from events.model.profile import ContentProfile
from tests.support.bridged_stream import Bridged, bridged
from tests.support.folded_stream import CONTENT, RING, FoldedStream
from tests.support.sglang_publisher import SglangPublisher, sglang_publisher
from tests.support.vllm_message import ids

PAGE = 16
ARRAYS = Path(__file__).parents[3] / "golden" / "sglang" / "array_wire.jsonl.gz"
SIGNED = (-(1 << 63), -1, (1 << 63) - 1, 5)


@pytest.fixture
def engine() -> Iterator[SglangPublisher]:
    with sglang_publisher() as publisher:
        yield publisher


@pytest.fixture
async def reader(engine: SglangPublisher) -> AsyncIterator[Bridged]:
    async with bridged(engine.endpoint, engine.replay_endpoint, adapter=SGLANG) as reader:
        yield reader


def config(page: int | None) -> EngineConfig:
    content = ContentProfile() if page is None else CONTENT.model_copy(update={"block_tokens": page})
    return EngineConfig(engine="sglang", content=content, short_last_blocks=True)


def prompt(pages: int, page: int = PAGE, first: int = 100) -> list[int]:
    return list(range(first, first + pages * page))


async def test_stores_and_removals_of_a_whole_prefix(engine: SglangPublisher, reader: Bridged) -> None:
    tokens = prompt(4)
    engine.publish(engine.stored(SIGNED[:2], tokens[:32], PAGE))
    engine.publish(engine.stored(SIGNED[2:], tokens[32:], PAGE, parent_block_hash=SIGNED[1]))
    engine.publish(engine.removed(SIGNED[3]))
    folded = await reader.upto(3)
    assert folded.credited() == set(ids(tokens)[:3])
    assert folded.stream.orphan_counts() == (0, 0)
    assert folded.stream.inventory_known()


async def test_a_signed_hash_and_its_unsigned_form_are_one(engine: SglangPublisher, reader: Bridged) -> None:
    tokens = prompt(2)
    engine.publish(engine.stored([-5], tokens[:16], PAGE))
    engine.publish(engine.stored([7], tokens[16:], PAGE, parent_block_hash=(1 << 64) - 5))
    folded = await reader.upto(2)
    assert folded.credited() == set(ids(tokens))


@pytest.mark.parametrize("told", [None, 2 * PAGE])
async def test_a_page_times_the_context_parallel_size_is_the_block(
    engine: SglangPublisher, told: int | None
) -> None:
    """SGLang's tree pages at page_size × dcp_size, and `/server_info` says so; so do the events."""
    tokens = prompt(3, PAGE * 2)
    engine.publish(engine.stored([1, 2, 3], tokens, PAGE * 2))
    settings = {"adapter": SGLANG, "config": config(told)}
    async with bridged(engine.endpoint, engine.replay_endpoint, **settings) as reader:  # type: ignore[arg-type]
        folded = await reader.upto(1)
        assert folded.state.holders["gpu"].groups[0].block_tokens == PAGE * 2
        assert len(folded.credited()) == 3
        assert (folded.credited() == set(ids(tokens, PAGE * 2))) == (told is not None)


async def test_pages_of_one_token_are_blocks_of_one_token(engine: SglangPublisher) -> None:
    tokens = prompt(5, 1)
    engine.publish(engine.stored([1, 2, 3, 4, 5], tokens, 1))
    async with bridged(engine.endpoint, engine.replay_endpoint, adapter=SGLANG, config=config(1)) as reader:
        assert (await reader.upto(1)).credited() == set(ids(tokens, 1))


async def test_a_last_block_that_is_not_full_is_held_and_has_no_id(
    engine: SglangPublisher, reader: Bridged
) -> None:
    tokens = prompt(2)
    engine.publish(engine.stored([9], tokens[:5], 5))
    engine.publish(engine.stored([1, 2], tokens, PAGE))
    engine.publish(engine.stored([3], [7] * 3, 3, parent_block_hash=2))
    folded = await reader.upto(3)
    assert folded.credited() == set(ids(tokens))
    assert folded.stream.orphan_counts() == (2, 0)
    assert folded.stream.inventory_known()
    assert folded.state.unknown_events == 0
    engine.publish(engine.removed(9, 3))
    await reader.upto(4)
    assert folded.stream.orphan_counts() == (0, 0)
    assert folded.stream.removed_unknown == 0


async def test_pairs_of_the_eagle_mode_name_the_tokens_that_a_page_holds(
    engine: SglangPublisher, reader: Bridged
) -> None:
    tokens = prompt(2)
    pairs = list(zip(tokens, [*tokens[1:], 999], strict=True))
    engine.publish(engine.stored([1, 2], pairs, PAGE))
    folded = await reader.upto(1)
    assert folded.credited() == set(ids(tokens))
    # Another page that only goes on otherwise: one block, two of the engine's pages.
    other = list(zip(tokens[16:], [*tokens[17:], 1000], strict=True))
    engine.publish(engine.stored([3], other, PAGE, parent_block_hash=1))
    engine.publish(engine.removed(3))
    await reader.upto(3)
    assert set(folded.copies()) == set(ids(tokens))
    assert folded.credited() == {ids(tokens)[0]}


async def test_pairs_that_do_not_follow_from_one_another_are_a_loss(
    engine: SglangPublisher, reader: Bridged
) -> None:
    engine.publish(engine.stored([1], prompt(1), PAGE))
    pairs = [(token, 3) for token in prompt(1, first=500)]
    engine.publish(engine.stored([2], pairs, PAGE))
    folded = await reader.upto(2)
    assert folded.credited() == set()
    assert folded.state.unknown_events == 1
    assert folded.state.holders["gpu"].inventory is Inventory.PARTIAL


async def test_a_salt_names_the_domain_on_every_store(engine: SglangPublisher, reader: Bridged) -> None:
    tokens = prompt(2)
    salt = make_salt(RING["acme"].salt_key, "acme")
    engine.publish(engine.stored([1], tokens[:16], PAGE, cache_salt=salt))
    engine.publish(engine.stored([2], tokens[16:], PAGE, cache_salt=salt, parent_block_hash=1))
    engine.publish(engine.stored([3], tokens[:16], PAGE, cache_salt="somebody's"))
    folded = await reader.upto(3)
    assert set(folded.copies(domain="acme")) == set(ids(tokens, domain="acme"))
    assert set(folded.copies(domain="default")) == set()
    assert folded.stream.orphan_counts() == (0, 1)


async def test_an_adapter_has_a_profile_of_its_own(engine: SglangPublisher, reader: Bridged) -> None:
    tokens = prompt(1)
    engine.publish(engine.stored([1], tokens, PAGE, lora_name="ad1"), engine.stored([2], tokens, PAGE))
    folded = await reader.upto(1)
    assert set(folded.copies()) == {*ids(tokens), *ids(tokens, adapter="ad1")}


async def test_an_image_makes_no_id_and_the_text_before_it_keeps_its_own(
    engine: SglangPublisher, reader: Bridged
) -> None:
    """SGLang writes an image as numbers beyond 32 bits, made of its digest."""
    pad = 1_000_000 + (int.from_bytes(hashlib.sha256(b"image").digest()[:8], "big") & ((1 << 62) - 1))
    text = prompt(1)
    image = [*prompt(1)[:8], *[pad] * 8]
    engine.publish(engine.stored([1, 2, 3], text + image + prompt(1, first=900), PAGE))
    folded = await reader.upto(1)
    assert folded.credited() == set(ids(text))
    assert folded.stream.orphan_counts() == (2, 0)
    assert folded.state.unknown_events == 0
    assert folded.stream.inventory_known()


async def test_media_are_tiers_and_a_copy_in_each_ends_alone(
    engine: SglangPublisher, reader: Bridged
) -> None:
    """Of disk and external storage nobody has seen it tell a removal: credited from the first one on."""
    tokens, other = prompt(1), prompt(1, first=700)
    for name in ("GPU", "CPU", "DISK", "EXTERNAL"):
        engine.publish(engine.stored([1], tokens, PAGE, medium=engine.medium(name)))
    engine.publish(engine.removed(1, medium="CPU"))
    folded = await reader.upto(5)
    assert [len(folded.credited(holder)) for holder in ("gpu", "cpu", "disk", "remote")] == [1, 0, 0, 0]
    assert [len(folded.copies(holder)) for holder in ("gpu", "cpu", "disk", "remote")] == [1, 0, 1, 1]
    engine.publish(engine.removed(1, medium="DISK"))
    engine.publish(engine.stored([2], other, PAGE, medium=engine.medium("DISK")))
    folded = await reader.upto(7)
    assert folded.credited("disk") == set(ids(other))
    assert folded.state.unknown_events == 0


async def test_a_clear_empties_gpu_and_host_and_leaves_what_lies_behind_in_doubt(
    engine: SglangPublisher, reader: Bridged
) -> None:
    tokens = prompt(1)
    for name in ("GPU", "CPU", "DISK"):
        engine.publish(engine.stored([1], tokens, PAGE, medium=engine.medium(name)))
    engine.publish(engine.events.AllBlocksCleared())
    folded = await reader.upto(4)
    assert not folded.copies("gpu")
    assert not folded.copies("cpu")
    assert {copy[1].state for copy in folded.copies("disk").values()} == {CopyState.UNCERTAIN}
    inventories = {name: holder.inventory for name, holder in folded.state.holders.items()}
    assert inventories == {"gpu": Inventory.EMPTY, "cpu": Inventory.EMPTY, "disk": Inventory.PARTIAL}


async def test_its_replay_socket_answers_a_late_subscriber_and_vouches_for_it(
    engine: SglangPublisher,
) -> None:
    tokens = prompt(3)
    for index in range(3):
        page = tokens[index * PAGE : (index + 1) * PAGE]
        engine.publish(engine.stored([index + 1], page, PAGE, parent_block_hash=index or None))
    async with bridged(engine.endpoint, engine.replay_endpoint, adapter=SGLANG) as late:
        folded = await late.upto(3)
        assert folded.credited() == set(ids(tokens))
        assert folded.stream.inventory_known()
        assert await late.confirmed()


async def test_what_its_replay_buffer_has_let_go_is_a_loss() -> None:
    with sglang_publisher(buffer_steps=2, topic="kv@s0@tiny") as engine:
        async with bridged(engine.endpoint, engine.replay_endpoint, adapter=SGLANG) as first:
            for number in range(5):
                engine.publish(engine.stored([number + 1], prompt(1, first=number * 50), PAGE))
            await first.reached(4)
        settings = {"topic": "kv@s0@tiny", "adapter": SGLANG}
        async with bridged(engine.endpoint, engine.replay_endpoint, **settings) as late:  # type: ignore[arg-type]
            folded = await late.upto(2)
            assert late.bridge.counts.lost_messages == 3
            assert len(folded.credited()) == 2
            assert folded.state.holders["gpu"].inventory is Inventory.PARTIAL


async def test_another_rank_s_batch_is_not_taken(engine: SglangPublisher, reader: Bridged) -> None:
    engine.publish(engine.stored([1], prompt(1), PAGE), rank=3)
    folded = await reader.upto(1)
    assert not folded.copies()
    assert reader.bridge.counts.wrong_rank == 1
    assert not await reader.confirmed()


async def test_salted_stores_read_as_vllm_s_are_a_loss_and_never_the_default_domain_s(
    engine: SglangPublisher,
) -> None:
    """Somebody forgot to say that this engine is SGLang."""
    engine.publish(engine.stored([1], prompt(1), PAGE, cache_salt="acme's"))
    async with bridged(engine.endpoint, engine.replay_endpoint) as reader:
        folded = await reader.upto(1)
        assert not folded.copies()
        assert folded.state.unknown_events == 1
        assert not folded.stream.inventory_known()


@pytest.mark.parametrize("version", ["0.5.12", "0.5.18"])
def test_the_array_form_of_older_versions_is_read(version: str) -> None:
    """Made with the event classes of those versions; 0.5.18 has the salt in a map behind the fields."""
    bound = {bound_salt_hmac(RING["acme"].salt_key, "tenant-a"): "acme"}
    folded = FoldedStream(config(PAGE), bound=bound)
    tokens = list(range(100, 132))
    seen: dict[str, FoldedStream] = {}
    with gzip.open(ARRAYS, "rt") as file:
        lines = [line for line in map(json.loads, file) if line["version"] == version]
    for seq, line in enumerate(lines):
        folded.feed(decode_batch(seq, base64.b64decode(line["payload_b64"])))
        match line["label"]:
            case "stored":
                assert folded.credited() == set(ids(tokens))
            case "backed up":
                assert folded.credited("cpu") == {ids(tokens)[0]}
            case "salted":
                assert set(folded.copies(domain="acme")) == {ids(tokens, domain="acme")[0]}
            case "removed":
                assert ids(tokens)[1] not in folded.credited()
            case "cleared":
                assert not folded.copies("gpu")
                assert not folded.copies("cpu")
            case _:
                pass
        seen[line["label"]] = folded
    assert ("salted" in seen) == (version == "0.5.18")
    assert folded.state.unknown_events == 0
    assert folded.stream.removed_unknown == 0


def test_a_clear_says_which_tiers() -> None:
    (event,) = decode_batch(0, msgspec.msgpack.encode([1.5, [["AllBlocksCleared"]], 0])).events
    assert event == AllBlocksCleared(tiers=frozenset({EngineTier.GPU, EngineTier.CPU}))


def test_repr_holds_no_token() -> None:
    stored = ["BlockStored", [1], None, [4242, 4243], 2, None, "GPU"]
    (event,) = decode_batch(0, msgspec.msgpack.encode([1.5, [stored], 0])).events
    assert isinstance(event, BlockStored)
    assert "4242" not in repr(event)
