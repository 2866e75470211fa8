"""What engines of vLLM's kind put on their KV-event socket: frames, batches, and fields as they are typed. Pure.

vLLM and SGLang share the frames, the batch and the tagged events; what differs is a `Dialect`
(`events.hooks.vllm`, `events.hooks.sglang`). Fields that a dialect doesn't know are ignored, kinds that it
doesn't know become `UnknownEvent`, and a field that can't be used costs its own event only
(`MalformedEvent`).
"""

from __future__ import annotations

import hashlib
import math
import struct
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from events.errors import DecodeError
from events.hooks.engine_event import (
    EngineBatch,
    EngineEvent,
    EngineHash,
    EngineTier,
    MalformedEvent,
    UnknownEvent,
)
from events.model.field import MAX_COUNT

END_SEQ: Final = -1
"""Sequence number of the empty message that ends a replay answer."""

Fields = Mapping[Any, Any]
"""One event's fields by name, as msgpack had them."""

_TIERS: Final = {
    "gpu": EngineTier.GPU,
    "cpu": EngineTier.CPU,
    "cpu_pinned": EngineTier.CPU,
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
    "external": EngineTier.REMOTE,
}

_MAX_HASH_BYTES: Final = 64
_MAX_NAME_CHARS: Final = 64
_MAX_BLOCK_SIZE: Final = 1 << 20

_NIL: Final = msgspec.Raw(b"\xc0")


@dataclass(frozen=True, slots=True)
class Kind:
    """How one kind of event is read: the names of its fields in the order of the array form, and what they
    make. `read` raises FieldError; it may make several events of one."""

    positions: tuple[str, ...]
    read: Callable[[Fields], tuple[EngineEvent, ...]]


@dataclass(frozen=True, slots=True)
class Dialect:
    """What one engine says: its events by tag."""

    engine: str
    kinds: Mapping[str, Kind]


class FieldError(Exception):
    """A field can't be used; the message is its stable name."""


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


def decode_batch(engine_seq: int, payload: bytes, dialect: Dialect) -> EngineBatch:
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
    events: list[EngineEvent] = []
    for raw in batch.events:
        events.extend(_decode_event(raw, dialect))
    rank: int | None = None
    try:
        rank = optional_int(_any(batch.data_parallel_rank), "data_parallel_rank")
    except FieldError as error:
        events.append(MalformedEvent("batch", str(error)))
    return EngineBatch(
        engine_seq, rank, _timestamp(batch.ts), tuple(events), hashlib.sha256(payload).digest()
    )


def engine_hash(value: object) -> EngineHash:
    """Canonical form of a hash as it came off the wire: an integer of any width, or a digest.

    Raises `DecodeError` ("engine_hash") for everything else.
    """
    try:
        return hash_of(value)
    except FieldError as cause:
        raise DecodeError("engine_hash", type(value).__name__) from cause


def tier_of(medium: str | None) -> EngineTier:
    """Tier that a medium's name stands for, whatever its case; `UNKNOWN` if not named or not known."""
    return _TIERS.get(medium.casefold(), EngineTier.UNKNOWN) if medium is not None else EngineTier.UNKNOWN


def _decode_event(raw: msgspec.Raw, dialect: Dialect) -> tuple[EngineEvent, ...]:
    length = memoryview(raw).nbytes
    try:
        value = _any(raw)
    except FieldError:
        return (MalformedEvent("?", "encoding"),)
    tag: object
    if isinstance(value, dict):
        tag = value.get("type")
    elif isinstance(value, list) and value:
        tag = value[0]
    else:
        return (MalformedEvent("?", "shape"),)
    if not isinstance(tag, str):
        return (MalformedEvent("?", "type"),)
    kind = dialect.kinds.get(tag)
    if kind is None:
        return (UnknownEvent(_printable(tag), length),)
    fields = value if isinstance(value, dict) else dict(zip(kind.positions, value[1:], strict=False))
    try:
        return kind.read(fields)
    except FieldError as error:
        return (MalformedEvent(tag, str(error)),)


def _any(raw: msgspec.Raw) -> Any:
    try:
        return _DECODE_ANY.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, TypeError, ValueError) as cause:
        raise FieldError("encoding") from cause


def hashes_of(fields: Fields) -> tuple[EngineHash, ...]:
    """The event's hashes, in order."""
    values = fields.get("block_hashes")
    if not isinstance(values, list):
        raise FieldError("block_hashes")
    return tuple([hash_of(value) for value in values])


def hash_of(value: object, field: str = "block_hashes") -> EngineHash:
    """See `engine_hash`; raises FieldError."""
    if type(value) is int:
        return EngineHash((value & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "big"))
    if isinstance(value, bytes) and 0 < len(value) <= _MAX_HASH_BYTES:
        return EngineHash(value)
    raise FieldError(field)


def parent_of(fields: Fields) -> EngineHash | None:
    """The parent's hash; None where the engine says that there is none. One left out is no root."""
    if "parent_block_hash" not in fields:
        raise FieldError("parent_block_hash")
    parent = fields["parent_block_hash"]
    return None if parent is None else hash_of(parent, "parent_block_hash")


def block_size_of(fields: Fields) -> int:
    """Tokens of a block; 0 in the placeholders of offloading connectors."""
    size = fields.get("block_size")
    if type(size) is not int or not 0 <= size <= _MAX_BLOCK_SIZE:
        raise FieldError("block_size")
    return size


def tokens_of(values: object) -> bytes:
    """Token ids as u32 little endian back to back."""
    if not isinstance(values, list):
        raise FieldError("token_ids")
    try:
        return pack_u32(array("I", values))
    except (TypeError, OverflowError, ValueError) as cause:
        raise FieldError("token_ids") from cause


def pack_u32(numbers: array[int]) -> bytes:
    """Their bytes, each little endian, whatever this machine is."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def optional_text(fields: Fields, name: str) -> str | None:
    """A text, or None where it is nil or left out."""
    value = fields.get(name)
    if value is None or isinstance(value, str):
        return value
    raise FieldError(name)


def optional_int(value: object, name: str) -> int | None:
    """A count below 2^31, or None."""
    if value is None:
        return None
    if type(value) is int and 0 <= value < 1 << 31:
        return value
    raise FieldError(name)


def _timestamp(raw: msgspec.Raw) -> float | None:
    try:
        value = _any(raw)
    except FieldError:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _printable(kind: str) -> str:
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in kind[:_MAX_NAME_CHARS])
