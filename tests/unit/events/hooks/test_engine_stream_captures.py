"""Streams recorded from running engines, through decoder, EngineStream and codec into the fold."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pytest

from events.hooks.engine_config import EngineConfig
from events.hooks.engine_event import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineBatch,
    EngineHash,
)
from events.hooks.vllm import decode_batch
from events.identity import bound_salt_hmac, pack_tokens, profile_digest, root_parent
from events.ids import CopyState, GroupKind, Inventory, Tier
from events.model.part import Cleared
from events.model.profile import ContentProfile
from tests.support.capture import CAPTURES, load_capture, load_lines
from tests.support.folded_stream import CONTENT, RING, FoldedStream

POOL_BLOCKS = {"C1": 64}
DOMAINS = {None: "default", "tenant-a": "acme", "tenant-b": "umbrella"}
BOUND: Mapping[bytes, str] = {
    bound_salt_hmac(RING[domain].salt_key, salt): domain for salt, domain in DOMAINS.items() if salt
}
Key = tuple[str, str]


def lives(name: str) -> dict[Key, list[list[EngineBatch]]]:
    """Published batches by (source, topic), cut where the engine's numbers begin again."""
    found: dict[Key, list[list[EngineBatch]]] = {}
    for message in load_capture(name):
        if message.channel != "pub":
            continue
        batch = decode_batch(message.seq, message.payload)
        own = found.setdefault((message.source, message.topic), [])
        if not own or batch.engine_seq <= own[-1][-1].engine_seq:
            own.append([])
        own[-1].append(batch)
    return found


def config(name: str) -> EngineConfig:
    return EngineConfig(content=CONTENT, capacity_blocks={Tier.GPU: POOL_BLOCKS.get(name[:2], 256)})


def chain_ids(domain: str, tokens: Sequence[int], content: ContentProfile) -> list[bytes]:
    """Ids of a prompt's whole blocks, as a router of the domain computes them."""
    profile = profile_digest(content.model_copy(update={"block_tokens": 32}))
    return RING[domain].hasher().chain(root_parent(profile), pack_tokens(tokens), 32)


def run(name: str) -> dict[Key, list[FoldedStream]]:
    """Each life of each engine, folded."""
    result: dict[Key, list[FoldedStream]] = {}
    for key, own in lives(name).items():
        for batches in own:
            folded = FoldedStream(config(name), worker="-".join(key), bound=BOUND)
            for batch in batches:
                folded.feed(batch)
            result.setdefault(key, []).append(folded)
    return result


def pool(batches: Iterable[EngineBatch]) -> dict[int, Counter[EngineHash]]:
    """Announced copies by group, counted without any of the code under test."""
    counts: dict[int, Counter[EngineHash]] = {}
    for batch in batches:
        for event in batch.events:
            if isinstance(event, BlockStored):
                counts.setdefault(event.group or 0, Counter()).update(event.hashes)
            elif isinstance(event, BlockRemoved):
                counts[event.group or 0].subtract(event.hashes)
            elif isinstance(event, AllBlocksCleared):
                counts.clear()
    return {group: +counter for group, counter in counts.items()}


def prompts(batches: Iterable[EngineBatch]) -> dict[EngineHash, bytes]:
    """Id of every hash ever announced with its tokens: from the whole prompt up to it, salt and adapter."""
    whole: dict[EngineHash, tuple[str, str | None, bytes]] = {}
    for batch in batches:
        for event in batch.events:
            if isinstance(event, BlockStored) and event.aligned:
                if event.parent is None:
                    assert event.extra_keys is not None
                    domain, tokens = DOMAINS[event.extra_keys[0].salt], b""
                else:
                    domain, _, tokens = whole[event.parent]
                for index, name in enumerate(event.hashes):
                    tokens += event.block_tokens(index)
                    whole[name] = (domain, event.lora_name, tokens)
    return {
        name: chain_ids(domain, memoryview(tokens).cast("I").tolist(), adapted(adapter))[-1]
        for name, (domain, adapter, tokens) in whole.items()
    }


def adapted(adapter: str | None) -> ContentProfile:
    return CONTENT.model_copy(update={"adapter": adapter})


NAMES = ["A_main", "B1", "B3", "B6", "C1", "C2", "C3", "C5", "V28", "K"]


def test_no_capture_is_left_out() -> None:
    """The array form of 0.16 has a test of its own: it is synthetic and has one block each."""
    files = {path.name for path in CAPTURES.glob("*.gz")}
    assert {file for file in files if file.startswith((*NAMES, "U_legacy"))} == files
    assert len(files) == 11


def test_what_was_replayed_is_what_was_published() -> None:
    """A reader that has both takes each record once."""
    captured = load_capture("A_main")
    published = {message.payload for message in captured if message.channel == "pub"}
    replayed = [message for message in captured if message.channel == "replay"]
    assert len(replayed) == 4
    assert {message.payload for message in replayed if message.payload} <= published


@pytest.mark.parametrize("name", NAMES)
def test_inventory_is_what_the_engine_announced(name: str) -> None:
    batches = lives(name)
    for key, streams in run(name).items():
        for life, folded in zip(batches[key], streams, strict=True):
            assert folded.stream.orphan_counts() == (0, 0)
            assert folded.stream.removed_unknown == 0
            assert folded.stream.inventory_known()
            ids = prompts(life)
            for group, counter in pool(life).items():
                assert set(folded.copies(group=group)) == {ids[name] for name in counter}
            assert max(folded.sizes) < 20_000


@pytest.mark.parametrize("name", NAMES)
def test_a_snapshot_changes_nothing_for_a_reader_that_followed(name: str) -> None:
    for streams in run(name).values():
        for folded in streams:
            before = {where: dict(table) for where, table in folded.state.copies.items()}
            folded.snapshot()
            assert {where: dict(table) for where, table in folded.state.copies.items()} == before
            assert {holder.inventory for holder in folded.state.holders.values()} <= {
                Inventory.KNOWN,
                Inventory.EMPTY,
            }


@pytest.mark.parametrize("name", ["B1", "B3", "B6"])
def test_two_workers_name_blocks_alike_whatever_their_engines_hash(name: str) -> None:
    (first,), (second,) = run(name).values()
    assert len(first.copies()) >= 9
    assert set(first.copies()) == set(second.copies())


def test_ids_don_t_depend_on_hash_algorithm_seed_or_version() -> None:
    found = [
        set(streams[0].copies(domain="acme")) for name in ("B1", "B3", "B6") for streams in run(name).values()
    ]
    assert found[0]
    assert all(ids == found[0] for ids in found)


def test_a_salt_of_nobody_gets_no_id() -> None:
    for batches in lives("B1").values():
        folded = FoldedStream(config("B1"))
        for batch in batches[0]:
            folded.feed(batch)
        assert folded.stream.orphan_counts() == (0, 3)
        assert set(folded.copies()) == set(folded.copies(domain="default"))
        assert len(folded.copies()) == 7


def test_adapter_and_salt_make_different_ids_of_the_same_prompt() -> None:
    ((folded,),) = run("C3").values()
    assert len(folded.copies()) == 12
    assert len(folded.copies(domain="acme")) == 3
    profiles = {
        (state.content.adapter, state.missing)
        for (alias, _), state in folded.state.profiles.items()
        if alias == folded.alias_of("default")
    }
    assert profiles == {
        (None, ()),
        ("ad1", ("adapter_revision",)),
        ("ad2", ("adapter_revision",)),
    }


def test_an_adapter_with_a_configured_revision_is_verified() -> None:
    ((batches,),) = lives("C3").values()
    folded = FoldedStream(EngineConfig(content=CONTENT, adapter_revisions={"ad1": "r7"}), bound=BOUND)
    for batch in batches:
        folded.feed(batch)
    assert {(p.content.adapter, p.missing == ()) for p in folded.state.profiles.values()} == {
        (None, True),
        ("ad1", True),
        ("ad2", False),
    }


def test_ranks_are_streams_of_their_own() -> None:
    (zero,), (one,) = run("C5").values()
    assert zero.copies()
    assert one.copies()
    assert set(zero.copies()) != set(one.copies())


def test_sparse_groups_of_a_hybrid_model_share_ids_with_the_whole_chain() -> None:
    """A sliding window's hashes are not always the last ones of the tokens beside them: their ids come from
    the full-attention group of the same step."""
    ((folded,),) = run("C2").values()
    groups = folded.state.holders["gpu"].groups
    assert (groups[0].kind, groups[0].window) == (GroupKind.SLIDING_WINDOW, 64)
    assert groups[1].kind is GroupKind.FULL
    sliding, full = folded.copies(group=0), folded.copies(group=1)
    assert set(sliding) < set(full)
    assert all(sliding[block][0] == full[block][0] for block in sliding)
    assert len(sliding) == 2
    # The groups were not known when the stream opened, so it restated itself once.
    assert sum(translation.snapshot_due for translation in folded.translations) == 1


def test_groups_learned_before_opening_need_no_restatement() -> None:
    ((batches,),) = lives("C2").values()
    folded = FoldedStream(config("C2"), learn=batches)
    assert set(folded.state.holders["gpu"].groups) == {0, 1}
    for batch in batches:
        folded.feed(batch)
    assert not any(translation.snapshot_due for translation in folded.translations)


def test_a_restarted_engine_begins_empty_and_names_its_blocks_as_before() -> None:
    ((main, terminated, killed),) = lives("A_main").values()
    folded = FoldedStream(config("A_main"), bound=BOUND)
    for batch in main:
        folded.feed(batch)
    assert folded.copies()
    ids = []
    for number, batches in enumerate((terminated, killed)):
        folded.open(f"life-{number + 2}")
        assert folded.state.holders["gpu"].inventory is Inventory.EMPTY
        for batch in batches:
            folded.feed(batch)
        ids.append(set(folded.copies()))
    assert ids[1] <= ids[0] or ids[0] <= ids[1]
    first = prompts(main)
    assert ids[0] <= set(first.values())


def test_two_resets_are_two_clears_and_leave_nothing_of_before() -> None:
    ((main, *_),) = lives("A_main").values()
    folded = FoldedStream(config("A_main"), bound=BOUND)
    clears = 0
    for batch in main:
        cleared = [event for event in batch.events if isinstance(event, AllBlocksCleared)]
        translation = folded.feed(batch)
        told = [event for event in translation.stream_events if isinstance(event, Cleared)]
        assert len(told) == len(cleared)
        clears += len(told)
        if cleared and batch.engine_seq == 67:
            assert not folded.copies()
    assert clears == 6


def test_a_count_that_report_mode_raised_is_not_credited_when_it_can_t_be_believed() -> None:
    """The shared prefix was announced once more than it exists, so its removal leaves a doubt."""
    ((main, *_),) = lives("A_main").values()
    folded = FoldedStream(config("A_main"), bound=BOUND)
    for batch in main[:66]:
        folded.feed(batch)
    doubted = set(folded.copies()) - folded.credited()
    assert len(doubted) == 4
    assert all(folded.copies()[block][1].state is CopyState.UNCERTAIN for block in doubted)


def test_legacy_array_wire_becomes_the_same_kind_of_stream() -> None:
    folded = FoldedStream(EngineConfig(content=CONTENT))
    payloads = [base64.b64decode(line["payload_b64"]) for line in load_lines("U_legacy")]
    counts = []
    for seq, payload in enumerate(payloads):
        folded.feed(decode_batch(seq, payload))
        counts.append((len(folded.copies()), folded.stream.orphan_counts()))
    # A store behind an unknown parent, one with an adapter, a removal, a clear.
    assert counts == [(0, (2, 0)), (1, (2, 0)), (1, (1, 0)), (0, (0, 0))]
    assert {profile.content.adapter for profile in folded.state.profiles.values()} == {"ad1"}


def test_known_hits_of_the_main_run_follow_from_the_inventory() -> None:
    """vLLM's own counter said 2560 hit tokens; the lookup rule over our inventory says the same."""
    folded = FoldedStream(config("A_main"), bound=BOUND)
    hits: Counter[str] = Counter()
    before: dict[str, frozenset[bytes]] = {}
    asked: dict[str, str] = {}
    for line in load_lines("A_main"):
        if line["kind"] == "message":
            if line["channel"] == "pub":
                folded.feed(decode_batch(line["seq"], base64.b64decode(line["payload_b64"])))
            continue
        what, _, name = line["label"].partition(":")
        if what == "PHASE A13 replay socket":
            break
        if what == "request":
            asked[name] = DOMAINS[line.get("params", {}).get("cache_salt")]
            before[name] = frozenset(folded.credited())
        if "prompt_token_ids" in line:
            prompt = line["prompt_token_ids"]
            chain = chain_ids(asked[name], prompt, config("A_main").content)
            usable = chain[: (len(prompt) - 1) // 32]
            length = next((at for at, block in enumerate(usable) if block not in before[name]), len(usable))
            hits[name] += 32 * length
    # Eight at once: the first found nothing, the other seven all that the first had stored.
    assert hits["A6 x8"] == 0
    eight = 7 * 32 * (200 // 32)
    # Announced once more than it existed and evicted since: uncertain, so no hint, and indeed no hit.
    assert hits["A8.after-reset"] == 0
    assert sum(hits.values()) + eight == 2560
