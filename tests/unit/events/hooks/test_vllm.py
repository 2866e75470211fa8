"""What vLLM says is read the same in every wire form, and bad bytes cost no more than themselves."""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from collections import Counter
from typing import Any

import msgspec
import pytest

from events.errors import DecodeError
from events.hooks.engine_event import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineEvent,
    EngineTier,
    ExtraKeys,
    MalformedEvent,
    UnknownEvent,
)
from events.hooks.engine_wire import END_SEQ, decode_frames, engine_hash, tier_of
from events.hooks.vllm import decode_batch
from tests.support.capture import load_capture, load_lines


def stored(**changes: Any) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": [1, 2],
        "parent_block_hash": None,
        "token_ids": [1, 2, 3, 4],
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    } | changes


def payload(*events: object, rank: object = 0, ts: object = 1.5) -> bytes:
    return msgspec.msgpack.encode([ts, list(events), rank])


def decode_one(event: object) -> EngineEvent:
    (one,) = decode_batch(0, payload(event)).events
    return one


@pytest.mark.parametrize(
    ("name", "messages", "counts"),
    [
        ("A_main", 102, (107, 279, 8)),
        ("B1", 6, (6, 0, 0)),
        ("B3", 6, (6, 0, 0)),
        ("B6", 6, (6, 0, 0)),
        ("C1", 134, (162, 112, 2)),
        ("C2", 22, (44, 5, 1)),
        ("C3", 4, (4, 0, 0)),
        ("C5", 11, (11, 0, 2)),
        ("V28", 10, (10, 20, 1)),
        ("K", 60, (60, 106, 0)),
    ],
)
def test_every_capture_decodes_whole(name: str, messages: int, counts: tuple[int, int, int]) -> None:
    captured = load_capture(name)
    kinds: Counter[type] = Counter()
    for message in captured:
        if message.seq == END_SEQ:
            assert not message.payload
            continue
        batch = decode_batch(message.seq, message.payload)
        assert batch.raw_sha256 == hashlib.sha256(message.payload).digest()
        assert batch.ts is not None
        kinds.update(type(event) for event in batch.events)
    assert len(captured) == messages
    assert (kinds[BlockStored], kinds[BlockRemoved], kinds[AllBlocksCleared]) == counts
    assert sum(kinds.values()) == sum(counts)


def test_legacy_array_form_decodes_and_agrees_with_the_map_form() -> None:
    from base64 import b64decode

    names = (
        ["block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"],
        ["block_hashes", "medium"],
    )
    lines = load_lines("U_legacy")
    assert len(lines) == 4
    for line in lines:
        raw = b64decode(line["payload_b64"])
        array_form = decode_batch(3, raw)
        ts, events, rank = msgspec.msgpack.decode(raw)
        maps = [
            {"type": kind} | dict(zip(names[kind == "BlockRemoved"], values, strict=False))
            for kind, *values in events
        ]
        map_form = decode_batch(3, msgspec.msgpack.encode([ts, maps, rank]))
        assert array_form.events == map_form.events
        assert not any(isinstance(event, MalformedEvent | UnknownEvent) for event in array_form.events)


def test_array_form_with_later_fields_reads_them_by_position() -> None:
    values = list(stored().values())
    longer = decode_one([*values, [["salt"], None], 1, "sliding_window", 64, "not known"])
    assert isinstance(longer, BlockStored)
    assert (longer.group, longer.spec_kind, longer.window) == (1, "sliding_window", 64)
    assert longer.extra_keys == (ExtraKeys(salt="salt"), ExtraKeys())


def test_batch_as_map_decodes() -> None:
    batch = decode_batch(0, msgspec.msgpack.encode({"ts": 1.0, "events": [stored()], "new": 1}))
    assert isinstance(batch.events[0], BlockStored)
    assert batch.rank is None


def test_every_integer_width_and_bytes_decode_alike() -> None:
    widths = [
        b"\x07",
        b"\xcc\x07",
        b"\xcd\x00\x07",
        b"\xce\x00\x00\x00\x07",
        b"\xcf" + struct.pack(">Q", 7),
        b"\xd0\x07",
        b"\xd1\x00\x07",
        b"\xd2\x00\x00\x00\x07",
        b"\xd3" + struct.pack(">q", 7),
        b"\xc4\x08" + struct.pack(">Q", 7),
    ]
    encoded = msgspec.msgpack.encode([1.5, [stored(block_hashes=[99] * len(widths))], 0])
    head, tail = encoded.split(bytes([99]) * len(widths))
    (event,) = decode_batch(0, head + b"".join(widths) + tail).events
    assert isinstance(event, BlockStored)
    assert set(event.hashes) == {struct.pack(">Q", 7)}


def test_signed_and_unsigned_form_of_a_hash_are_one() -> None:
    assert engine_hash(-1) == engine_hash(2**64 - 1) == b"\xff" * 8
    assert engine_hash(b"\x01" * 32) == b"\x01" * 32


@pytest.mark.parametrize("value", [None, True, 1.5, "text", b"", b"x" * 65, [1]])
def test_what_is_no_hash_is_refused(value: object) -> None:
    with pytest.raises(DecodeError):
        engine_hash(value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("block_hashes", None),
        ("block_hashes", ["seven"]),
        ("block_hashes", [1, True]),
        ("parent_block_hash", "x"),
        ("token_ids", [1, 2, -3, 4]),
        ("token_ids", [1, 2, 2**32, 4]),
        ("token_ids", [1, 2, 3.5, 4]),
        ("token_ids", "abcd"),
        ("block_size", -1),
        ("block_size", True),
        ("block_size", None),
        ("lora_id", "one"),
        ("lora_name", 7),
        ("medium", 7),
        ("extra_keys", [None]),
        ("extra_keys", "x"),
        ("group_idx", -1),
        ("kv_cache_spec_kind", 1),
        ("kv_cache_spec_sliding_window", "64"),
        ("session_id", 5),
    ],
)
def test_one_bad_field_costs_one_event_visibly(field: str, value: object) -> None:
    good = stored()
    batch = decode_batch(4, payload(good, stored(**{field: value}), good))
    first, bad, last = batch.events
    assert bad == MalformedEvent("BlockStored", field)
    assert first == last
    assert isinstance(first, BlockStored)


def test_missing_parent_is_not_taken_for_a_root() -> None:
    event = stored()
    del event["parent_block_hash"]
    assert decode_one(event) == MalformedEvent("BlockStored", "parent_block_hash")


def test_text_that_is_not_utf8_costs_one_event() -> None:
    raw = payload(stored(medium="GPUX"), {"type": "AllBlocksCleared"}).replace(b"GPUX", b"\xff\xfe\xfd\xfc")
    assert decode_batch(0, raw).events == (MalformedEvent("?", "encoding"), AllBlocksCleared())


def test_bad_rank_and_time_stamp_leave_the_events() -> None:
    batch = decode_batch(0, payload(stored(), rank="zero", ts=float("nan")))
    assert (batch.rank, batch.ts) == (None, None)
    assert isinstance(batch.events[0], BlockStored)
    assert batch.events[1] == MalformedEvent("batch", "data_parallel_rank")


def test_unknown_kind_is_reported_with_its_length() -> None:
    event = {"type": "BlockPinned\n", "block_hashes": [1]}
    assert decode_one(event) == UnknownEvent("BlockPinned?", len(msgspec.msgpack.encode(event)))
    assert decode_one(["BlockPinned", 1]) == UnknownEvent("BlockPinned", 14)


def test_unknown_fields_are_ignored() -> None:
    assert decode_one(stored(brand_new={"a": [1]})) == decode_one(stored())


@pytest.mark.parametrize("event", [None, 7, "BlockStored", [], {}, {"type": 3}, [3, 4]])
def test_what_is_no_event_is_malformed(event: object) -> None:
    assert isinstance(decode_one(event), MalformedEvent)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc1",
        b"not msgpack at all",
        b"\xff" * 100,
        b"\x93",
        msgspec.msgpack.encode([1.5]),
        msgspec.msgpack.encode([1.5, "events"]),
        msgspec.msgpack.encode({"events": 3, "ts": 1}),
        msgspec.msgpack.encode([1.5, [], 0]) + b"\x00",
        b"\x93\x00" + b"\x91" * 100_000,
    ],
)
def test_garbage_raises_decode_error(raw: bytes) -> None:
    with pytest.raises(DecodeError) as caught:
        decode_batch(0, raw)
    assert caught.value.reason == "engine_payload"


def test_every_truncation_of_a_payload_is_an_error_and_never_half_a_batch() -> None:
    whole = payload(stored(), {"type": "AllBlocksCleared"})
    for end in range(len(whole)):
        with pytest.raises(DecodeError):
            decode_batch(0, whole[:end])


def test_deep_nesting_in_one_event_costs_that_event() -> None:
    deep = b"\x91" * 100_000 + b"\xc0"
    raw = b"\x93" + msgspec.msgpack.encode(1.5) + b"\x92" + deep + msgspec.msgpack.encode(stored()) + b"\x00"
    try:
        batch = decode_batch(0, raw)
    except DecodeError:
        return
    assert isinstance(batch.events[0], MalformedEvent)
    assert isinstance(batch.events[1], BlockStored)


def test_tokens_are_u32_little_endian_and_out_of_every_repr() -> None:
    event = decode_one(stored(token_ids=[123_456, 2, 3, 4_294_967_295], extra_keys=[["a-secret-salt"], None]))
    assert isinstance(event, BlockStored)
    assert event.tokens == struct.pack("<4I", 123_456, 2, 3, 4_294_967_295)
    assert event.block_tokens(1) == struct.pack("<2I", 3, 4_294_967_295)
    assert "secret" not in repr(event)
    assert repr(event.tokens) not in repr(event)


def test_sparse_and_empty_stores_of_hybrid_models_are_never_aligned() -> None:
    for message in load_capture("C2"):
        for event in decode_batch(message.seq, message.payload).events:
            if isinstance(event, BlockStored):
                assert event.aligned == (event.spec_kind == "full_attention")
                assert event.window == (64 if event.spec_kind == "sliding_window" else None)
                assert not event.root or event.group == 1


def test_placeholder_of_an_offloading_connector_is_not_aligned() -> None:
    event = decode_one(stored(block_hashes=[1], token_ids=[], block_size=0, medium="STORAGE"))
    assert isinstance(event, BlockStored)
    assert not event.aligned
    assert not decode_one(stored(block_hashes=[], token_ids=[], block_size=0)).aligned  # type: ignore[union-attr]


def test_captured_salts_and_adapters_are_told_apart() -> None:
    found = [
        (event.lora_name, event.extra_keys)
        for message in load_capture("C3")
        for event in decode_batch(message.seq, message.payload).events
        if isinstance(event, BlockStored)
    ]
    none, ad1, ad2 = ExtraKeys(), ExtraKeys(lora="ad1"), ExtraKeys(lora="ad2")
    assert found == [
        (None, (none,) * 3),
        ("ad1", (ad1,) * 3),
        ("ad2", (ad2,) * 3),
        ("ad1", (ExtraKeys(lora="ad1", salt="tenant-a"), ad1, ad1)),
    ]


def test_captured_ranks_number_themselves_apart() -> None:
    ranks = {
        (message.source, decode_batch(message.seq, message.payload).rank) for message in load_capture("C5")
    }
    assert ranks == {("rank0", 0), ("rank1", 1)}


@pytest.mark.parametrize(
    ("entry", "changes", "expected"),
    [
        (["t"], {}, ExtraKeys(salt="t")),
        (["ad"], {"lora_name": "ad", "lora_id": 1}, ExtraKeys(lora="ad")),
        (["ad", "ad"], {"lora_name": "ad", "lora_id": 1}, ExtraKeys(lora="ad", salt="ad")),
        ([1, "s"], {"lora_name": "ad", "lora_id": 1}, ExtraKeys(lora="ad", salt="s")),
        ([["img", -3], ["img2", 1], "s"], {}, ExtraKeys(mm=(("img", -3), ("img2", 1)), salt="s")),
        (["s", b"\x01" * 32], {}, ExtraKeys(salt="s", prompt_embeds=b"\x01" * 32)),
        ([b"\x01" * 32], {}, ExtraKeys(prompt_embeds=b"\x01" * 32)),
        (["s", "t"], {}, ExtraKeys(salt="s", unrecognised=True)),
        (["s"], {"parent_block_hash": 9}, ExtraKeys(unrecognised=True)),
        ([{"mm": 1}], {}, ExtraKeys(unrecognised=True)),
        ([["img", 1.5]], {}, ExtraKeys(unrecognised=True)),
        (["img", 3], {}, ExtraKeys(salt="img", unrecognised=True)),
        ({"a": 1}, {}, ExtraKeys(unrecognised=True)),
    ],
)
def test_extra_keys_get_their_meaning_from_order_and_type(
    entry: object, changes: dict[str, Any], expected: ExtraKeys
) -> None:
    event = decode_one(stored(extra_keys=[entry, None], **changes))
    assert isinstance(event, BlockStored)
    assert event.extra_keys == (expected, ExtraKeys())


def test_salt_is_not_read_from_a_sparse_store() -> None:
    event = decode_one(stored(extra_keys=[["t"], None], token_ids=[1, 2, 3, 4, 5, 6]))
    assert isinstance(event, BlockStored)
    assert event.extra_keys is not None
    assert event.extra_keys[0] == ExtraKeys(unrecognised=True)


@pytest.mark.parametrize(
    ("medium", "tier"),
    [
        ("GPU", EngineTier.GPU),
        ("gpu", EngineTier.GPU),
        ("CPU", EngineTier.CPU),
        ("cpu", EngineTier.CPU),
        ("STORAGE", EngineTier.DISK),
        ("LocalCPUBackend", EngineTier.CPU),
        ("RemoteBackend", EngineTier.REMOTE),
        ("tape", EngineTier.UNKNOWN),
        (None, EngineTier.UNKNOWN),
    ],
)
def test_medium_names_a_tier(medium: str | None, tier: EngineTier) -> None:
    assert tier_of(medium) is tier


def test_frames_of_all_versions_are_read() -> None:
    seq = struct.pack(">Q", 5)
    assert decode_frames([b"kv", seq, b"p"]) == ("kv", 5, b"p")
    assert decode_frames([b"", b"kv", seq, b"p"]) == ("kv", 5, b"p")
    assert decode_frames([b"", seq, b"p"]) == ("", 5, b"p")
    assert decode_frames([seq, b"p"]) == ("", 5, b"p")
    end = struct.pack(">q", -1)
    assert decode_frames([b"", b"", end, b""]) == decode_frames([b"", end, b""]) == ("", END_SEQ, b"")


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b"x"],
        [b"kv", b"short", b"p"],
        [b"kv", b"\xff" * 8, b"payload after the end"],
        [b"kv", b"\xfe" + b"\xff" * 7, b""],
        [b"x", b"kv", bytes(8), b"p"],
        [b"\xff", bytes(8), b"p"],
        [b"", b"", b"", bytes(8), b"p"],
    ],
)
def test_frames_of_nobody_are_refused(frames: list[bytes]) -> None:
    with pytest.raises(DecodeError):
        decode_frames(frames)


def test_events_are_frozen() -> None:
    event = decode_one(stored())
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.medium = "CPU"  # type: ignore[union-attr, misc]
