"""A simulated engine's step as the bytes that vLLM puts on its event socket (map form, as since 0.24)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from events.hooks.engine_event import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineEvent,
    EngineHash,
    ExtraKeys,
)

END: Final = (b"", struct.pack(">q", -1), b"")
"""Topic, number and payload of the message that ends a replay answer."""

_ENCODE = msgspec.msgpack.Encoder()


def encode_step(events: Sequence[EngineEvent], *, rank: int, ts: float) -> bytes:
    """One payload; `ts` is the engine's wall clock in seconds. Raises ValueError for an event that no engine
    sends."""
    return _ENCODE.encode([ts, [_as_map(event) for event in events], rank])


def frames(topic: bytes, seq: int, payload: bytes) -> tuple[bytes, bytes, bytes]:
    """The three frames of a publication."""
    return topic, struct.pack(">Q", seq), payload


def replay_start(question: Sequence[bytes]) -> tuple[bytes, int] | None:
    """(client, first record wanted) of what a ROUTER received; None if it isn't a question."""
    if len(question) != 3 or len(question[2]) != 8:
        return None
    start: int = struct.unpack(">Q", question[2])[0]
    return question[0], start


def _as_map(event: EngineEvent) -> dict[str, Any]:
    match event:
        case BlockStored():
            return _stored(event)
        case BlockRemoved():
            removed = {"type": "BlockRemoved", "block_hashes": _hashes(event.hashes), "medium": event.medium}
            return removed if event.group is None else removed | {"group_idx": event.group}
        case AllBlocksCleared():
            return {"type": "AllBlocksCleared"}
        case _:
            raise ValueError(f"{type(event).__name__} is not something that an engine sends")


def _stored(event: BlockStored) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "type": "BlockStored",
        "block_hashes": _hashes(event.hashes),
        "parent_block_hash": None if event.parent is None else int.from_bytes(event.parent, "big"),
        "token_ids": memoryview(event.tokens).cast("I").tolist(),
        "block_size": event.block_size,
        "lora_id": event.lora_id,
        "medium": event.medium,
        "lora_name": event.lora_name,
    }
    if event.extra_keys is not None:
        fields["extra_keys"] = [_extra(keys) for keys in event.extra_keys]
    if event.group is not None:
        fields["group_idx"] = event.group
    if event.spec_kind is not None:
        fields["kv_cache_spec_kind"] = event.spec_kind
    return fields


def _hashes(names: Sequence[EngineHash]) -> list[int]:
    return [int.from_bytes(name, "big") for name in names]


def _extra(keys: ExtraKeys) -> list[Any] | None:
    entry: list[Any] = [] if keys.lora is None else [keys.lora]
    entry += [[name, offset] for name, offset in keys.mm]
    if keys.salt is not None:
        entry.append(keys.salt)
    if keys.prompt_embeds is not None:
        entry.append(keys.prompt_embeds)
    return entry or None
