"""Whatever the bytes, a decoder gives events or a DecodeError, and the stream takes what it gives."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.errors import DecodeError
from events.hooks.engine_adapter import SGLANG, VLLM, EngineAdapter, adapter_of
from events.hooks.engine_config import EngineConfig
from events.hooks.lmcache import decode_request
from tests.support.folded_stream import CONTENT, FoldedStream

NUMBERS = st.integers(-(1 << 63), (1 << 64) - 1) | st.integers(-3, 40)
SCALARS = st.none() | st.booleans() | NUMBERS | st.floats() | st.text(max_size=5) | st.binary(max_size=9)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)
TOKENS = st.lists(st.integers(0, 9), max_size=9) | st.lists(st.tuples(NUMBERS, NUMBERS), max_size=5)
STORED = st.fixed_dictionaries(
    {"type": st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "BlockPinned"])},
    optional={
        "block_hashes": st.lists(NUMBERS | st.binary(max_size=40), max_size=4) | ANYTHING,
        "parent_block_hash": st.none() | NUMBERS | ANYTHING,
        "token_ids": TOKENS | st.lists(NUMBERS, max_size=9) | ANYTHING,
        "block_size": st.integers(0, 5) | ANYTHING,
        "lora_name": st.none() | st.text(max_size=3) | ANYTHING,
        "lora_id": st.none() | ANYTHING,
        "medium": st.sampled_from(["GPU", "CPU", "CPU_PINNED", "EXTERNAL", "tape", None]) | ANYTHING,
        "extra_keys": st.none() | st.lists(ANYTHING, max_size=4),
        "cache_salt": st.none() | ANYTHING,
        "group_idx": st.none() | st.integers(-1, 3) | ANYTHING,
    },
)


@pytest.mark.parametrize("adapter", [VLLM, SGLANG], ids=["vllm", "sglang"])
@settings(max_examples=150, deadline=None)
@given(batches=st.lists(st.lists(STORED | ANYTHING, max_size=4), max_size=3))
def test_no_event_breaks_a_socket_engine_s_stream(adapter: EngineAdapter, batches: list[list[Any]]) -> None:
    folded = FoldedStream(
        EngineConfig(engine=adapter.engine, content=CONTENT, short_last_blocks=adapter.short_last_blocks)
    )
    for seq, events in enumerate(batches):
        folded.feed(adapter.decode(seq, msgspec.msgpack.encode([1.5, events, 0])))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 40) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=10,
)
ENTRY = st.fixed_dictionaries(
    {
        "key": st.fixed_dictionaries(
            {
                "chunk_hash_hex": st.sampled_from(["aa", "bb", "", "zz", "a" * 200]),
                "model_name": st.sampled_from(["tiny", "other"]),
                "kv_rank": st.sampled_from([1 << 24, 2 << 24, 2 << 24 | 1 << 16, 0, -1, 1 << 40]),
            },
            optional={"cache_salt": st.text(max_size=3), "object_group_id": st.integers(-1, 2_000)},
        )
        | JSON
    },
    optional={
        "token_ids": st.lists(st.integers(-1, 1 << 33), max_size=4) | JSON,
        "token_offset": st.integers(-2, 9),
    },
)
BATCH = st.fixed_dictionaries(
    {
        "instance_id": st.just("lmc-0"),
        "incarnation": st.integers(0, 2),
        "seq": st.integers(1, 5),
        "event_type": st.sampled_from(["store", "delete", "access", "config", "move"]),
        "tier": st.sampled_from(["l1", "l2", "l3"]),
    },
    optional={
        "backend": st.sampled_from(["dram", "fs", "s3", "", "new"]),
        "entries": st.lists(ENTRY | JSON, max_size=4) | JSON,
    },
)


@settings(max_examples=200, deadline=None)
@given(batches=st.lists(BATCH | JSON, max_size=4))
def test_no_batch_breaks_an_lmcache_server_s_stream(batches: list[Any]) -> None:
    adapter = adapter_of("lmcache", "tiny")
    folded = FoldedStream(EngineConfig(engine="lmcache", content=CONTENT, connectors=adapter.connectors))
    found, lost = decode_request(json.dumps({"batches": batches}).encode())
    assert len(found) + lost == len(batches)
    for seq, batch in enumerate(found):
        try:
            folded.feed(adapter.decode(seq, batch.body))
        except DecodeError:
            continue


@settings(max_examples=200, deadline=None)
@given(raw=st.binary(max_size=60))
def test_bytes_are_events_or_an_error(raw: bytes) -> None:
    for adapter in (VLLM, SGLANG, adapter_of("lmcache", "tiny")):
        try:
            adapter.decode(0, raw)
        except DecodeError:
            continue
