"""Reads what vLLM puts on its KV-event socket: frames, the batch, its events. Pure.

Both wire forms are read: events as arrays in the order of their struct (0.16) and as maps tagged by
"type" (0.24 and later). Fields that are not known here are ignored, kinds that are not known here become
`UnknownEvent`, and a field that can't be used costs its own event only (`MalformedEvent`).
"""

from __future__ import annotations

import hashlib
import math
import struct
import sys
from array import array
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from events.errors import DecodeError
from events.hooks.engine_event import (
    NO_EXTRA_KEYS,
    TOKEN_SIZE_BYTES,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineBatch,
    EngineEvent,
    EngineHash,
    EngineTier,
    ExtraKeys,
    MalformedEvent,
    UnknownEvent,
)
from events.model.field import MAX_COUNT

END_SEQ: Final = -1
"""Sequence number of the empty message that ends a replay answer."""

_STORED_FIELDS: Final = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
)
_REMOVED_FIELDS: Final = ("block_hashes", "medium", "group_idx")

_TIERS: Final = {
    "gpu": EngineTier.GPU,
    "cpu": EngineTier.CPU,
    "localcpubackend": EngineTier.CPU,
    "storage": EngineTier.DISK,
    "disk": EngineTier.DISK,
    "ssd": EngineTier.DISK,
    "nvme": EngineTier.DISK,
    "localdiskbackend": EngineTier.DISK,
    "gdsbackend": EngineTier.DISK,
    "remote": EngineTier.REMOTE,
    "remotebackend": EngineTier.REMOTE,
    "mooncake": EngineTier.REMOTE,
}

_MAX_HASH_BYTES: Final = 64
_MAX_NAME_CHARS: Final = 64
_MAX_BLOCK_SIZE: Final = 1 << 20


_NIL: Final = msgspec.Raw(b"\xc0")


class _BatchArray(msgspec.Struct, array_like=True):
    ts: msgspec.Raw
    events: list[msgspec.Raw]
    data_parallel_rank: msgspec.Raw = _NIL


class _BatchMap(msgspec.Struct):
    ts: msgspec.Raw
    events: list[msgspec.Raw]
    data_parallel_rank: msgspec.Raw = _NIL


_DECODE_ARRAY = msgspec.msgpack.Decoder(_BatchArray)
_DECODE_MAP = msgspec.msgpack.Decoder(_BatchMap)
_DECODE_ANY = msgspec.msgpack.Decoder()


class _FieldError(Exception):
    """A field can't be used; the message is its stable name."""


def decode_frames(frames: Sequence[bytes]) -> tuple[str, int, bytes]:
    """Return (topic, seq, payload) of one published message or one part of a replay answer.

    Accepts the three frames of a publication and both forms of a replay answer, with or without topic
    frame, with or without the empty delimiter in front. The end of an answer has seq `END_SEQ` and an
    empty payload. Raises `DecodeError` ("engine_frames") on anything else; skip that message.
    """
    if not 2 <= len(frames) <= 4 or len(frames[-2]) != 8 or (len(frames) == 4 and frames[0]):
        raise DecodeError("engine_frames", f"{len(frames)} frames")
    seq: int = struct.unpack(">q", frames[-2])[0]
    if not END_SEQ <= seq <= MAX_COUNT or (seq == END_SEQ and frames[-1]):
        raise DecodeError("engine_frames", f"sequence {seq}")
    try:
        topic = frames[-3].decode() if len(frames) > 2 else ""
    except UnicodeDecodeError as cause:
        raise DecodeError("engine_frames", "topic is not UTF-8") from cause
    return topic, seq, frames[-1]


def decode_batch(engine_seq: int, payload: bytes) -> EngineBatch:
    """Read one payload.

    Raises `DecodeError` ("engine_payload") if the batch as a whole can't be read: all its events are
    lost, and the caller treats it as a hole at `engine_seq`.
    """
    try:
        batch: _BatchArray | _BatchMap
        if payload[:1] and (0x80 <= payload[0] <= 0x8F or payload[0] in {0xDE, 0xDF}):
            batch = _DECODE_MAP.decode(payload)
        else:
            batch = _DECODE_ARRAY.decode(payload)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as cause:
        raise DecodeError("engine_payload", f"{len(payload)} bytes are no batch") from cause
    events = [_decode_event(raw) for raw in batch.events]
    rank: int | None = None
    try:
        rank = _optional_int(_any(batch.data_parallel_rank), "data_parallel_rank")
    except _FieldError as error:
        events.append(MalformedEvent("batch", str(error)))
    return EngineBatch(
        engine_seq, rank, _timestamp(batch.ts), tuple(events), hashlib.sha256(payload).digest()
    )


def engine_hash(value: object) -> EngineHash:
    """Canonical form of a hash as it came off the wire: an integer of any width, or a digest.

    Raises `DecodeError` ("engine_hash") for everything else.
    """
    try:
        return _hash(value)
    except _FieldError as cause:
        raise DecodeError("engine_hash", type(value).__name__) from cause


def tier_of(medium: str | None) -> EngineTier:
    """Tier that a medium's name stands for, whatever its case; `UNKNOWN` if not named or not known."""
    return _TIERS.get(medium.casefold(), EngineTier.UNKNOWN) if medium is not None else EngineTier.UNKNOWN


def read_extra_keys(
    entry: object, *, lora_name: str | None, lora_id: int | None, first_block: bool
) -> ExtraKeys:
    """Give the untagged extra keys of one block their meaning.

    vLLM writes `[adapter?, [mm id, offset]..., salt (first block only)?, prompt-embedding digest?]`. The
    order and the types decide: the first item is the adapter if it equals the event's own adapter (name,
    or id on engines that hash the id); a pair of string and integer is a multimodal item; bytes are a
    digest; and one string that is left over is the salt, but only on a prompt's first block. Everything
    else (a string elsewhere, a second string, another shape) is `unrecognised`. An adapter and a salt of
    the same text are therefore told apart by position, and a text that only looks like a digest is taken
    for a salt that nobody issued: no id rather than a wrong one.
    """
    if entry is None:
        return NO_EXTRA_KEYS
    if not isinstance(entry, list):
        return ExtraKeys(unrecognised=True)
    lora: str | None = None
    mm: list[tuple[str, int]] = []
    salt: str | None = None
    embeds: bytes | None = None
    unrecognised = False
    for position, item in enumerate(entry):
        match item:
            case str() if position == 0 and lora_name is not None and item == lora_name:
                lora = item
            case int() if position == 0 and lora_id is not None and item == lora_id and item is not True:
                lora = lora_name if lora_name is not None else str(item)
            case [str() as identifier, int() as offset] if not isinstance(offset, bool):
                mm.append((identifier, offset))
            case str() if first_block and salt is None:
                salt = item
            case bytes() if item and embeds is None:
                embeds = item
            case _:
                unrecognised = True
    return ExtraKeys(lora, tuple(mm), salt, embeds, unrecognised)


def _decode_event(raw: msgspec.Raw) -> EngineEvent:
    length = memoryview(raw).nbytes
    try:
        value = _any(raw)
    except _FieldError:
        return MalformedEvent("?", "encoding")
    kind: object
    fields: dict[Any, Any]
    if isinstance(value, dict):
        kind, fields = value.get("type"), value
    elif isinstance(value, list) and value:
        kind = value[0]
        names = {"BlockStored": _STORED_FIELDS, "BlockRemoved": _REMOVED_FIELDS}
        fields = dict(zip(names.get(kind, ()) if isinstance(kind, str) else (), value[1:], strict=False))
    else:
        return MalformedEvent("?", "shape")
    try:
        match kind:
            case "BlockStored":
                return _stored(fields)
            case "BlockRemoved":
                return _removed(fields)
            case "AllBlocksCleared":
                return AllBlocksCleared()
            case str():
                return UnknownEvent(_printable(kind), length)
            case _:
                return MalformedEvent("?", "type")
    except _FieldError as error:
        return MalformedEvent(str(kind), str(error))


def _stored(fields: dict[Any, Any]) -> BlockStored:
    hashes = _hashes(fields)
    if "parent_block_hash" not in fields:
        raise _FieldError("parent_block_hash")
    raw_parent = fields["parent_block_hash"]
    parent = None if raw_parent is None else _hash(raw_parent, "parent_block_hash")
    tokens = _tokens(fields.get("token_ids"))
    block_size = fields.get("block_size")
    if type(block_size) is not int or not 0 <= block_size <= _MAX_BLOCK_SIZE:
        raise _FieldError("block_size")
    medium = _optional_text(fields, "medium")
    lora_name = _optional_text(fields, "lora_name")
    lora_id = _optional_int(fields.get("lora_id"), "lora_id")
    entries = fields.get("extra_keys")
    extra_keys: tuple[ExtraKeys, ...] | None = None
    if entries is not None:
        if not isinstance(entries, list) or len(entries) != len(hashes):
            raise _FieldError("extra_keys")
        root = parent is None and len(hashes) * block_size * TOKEN_SIZE_BYTES == len(tokens)
        extra_keys = tuple(
            read_extra_keys(entry, lora_name=lora_name, lora_id=lora_id, first_block=root and index == 0)
            for index, entry in enumerate(entries)
        )
    return BlockStored(
        hashes=hashes,
        parent=parent,
        tokens=tokens,
        block_size=block_size,
        tier=tier_of(medium),
        medium=medium,
        lora_name=lora_name,
        lora_id=lora_id,
        extra_keys=extra_keys,
        group=_optional_int(fields.get("group_idx"), "group_idx"),
        spec_kind=_optional_text(fields, "kv_cache_spec_kind"),
        window=_optional_int(fields.get("kv_cache_spec_sliding_window"), "kv_cache_spec_sliding_window"),
        locality=_optional_text(fields, "locality"),
        ownership=_optional_text(fields, "ownership"),
        session=_optional_text(fields, "session_id"),
    )


def _removed(fields: dict[Any, Any]) -> BlockRemoved:
    medium = _optional_text(fields, "medium")
    return BlockRemoved(
        hashes=_hashes(fields),
        tier=tier_of(medium),
        medium=medium,
        group=_optional_int(fields.get("group_idx"), "group_idx"),
        locality=_optional_text(fields, "locality"),
        ownership=_optional_text(fields, "ownership"),
    )


def _any(raw: msgspec.Raw) -> Any:
    try:
        return _DECODE_ANY.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, TypeError, ValueError) as cause:
        raise _FieldError("encoding") from cause


def _hashes(fields: dict[Any, Any]) -> tuple[EngineHash, ...]:
    values = fields.get("block_hashes")
    if not isinstance(values, list):
        raise _FieldError("block_hashes")
    return tuple([_hash(value) for value in values])


def _hash(value: object, field: str = "block_hashes") -> EngineHash:
    if type(value) is int:
        return EngineHash((value & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "big"))
    if isinstance(value, bytes) and 0 < len(value) <= _MAX_HASH_BYTES:
        return EngineHash(value)
    raise _FieldError(field)


def _tokens(values: object) -> bytes:
    if not isinstance(values, list):
        raise _FieldError("token_ids")
    try:
        tokens = array("I", values)
    except (TypeError, OverflowError, ValueError) as cause:
        raise _FieldError("token_ids") from cause
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens.tobytes()


def _optional_text(fields: dict[Any, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is None or isinstance(value, str):
        return value
    raise _FieldError(name)


def _optional_int(value: object, name: str) -> int | None:
    if value is None:
        return None
    if type(value) is int and 0 <= value < 1 << 31:
        return value
    raise _FieldError(name)


def _timestamp(raw: msgspec.Raw) -> float | None:
    try:
        value = _any(raw)
    except _FieldError:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _printable(kind: str) -> str:
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in kind[:_MAX_NAME_CHARS])
