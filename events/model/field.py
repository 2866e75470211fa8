"""Field types that the records share, with their JSON forms.

Ids travel packed: one base64 string of n x 16 bytes, in order; a single id, hash or key is lower-case hex.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Callable
from itertools import chain
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    StringConstraints,
    WithJsonSchema,
)

ID_BYTES = 16
_ONE = f"{ID_BYTES}s"
_CHUNK = struct.Struct(_ONE * 64)
MAX_IDS_PER_EVENT = 65_536
"""An event with more ids is split by its writer; a reader refuses it."""


class Record(BaseModel):
    """Frozen, strict, closed to unknown fields: a new field is a new version with an upcast."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @classmethod
    def read(cls, raw: bytes) -> Self:
        """From JSON, as `model_validate_json` without its options. Raises pydantic's ValidationError."""
        found: Self = cls.__pydantic_validator__.validate_json(raw)
        return found


def unpack_ids(packed: str) -> tuple[bytes, ...]:
    """Ids out of one base64 string. Raises ValueError."""
    if len(packed) > MAX_IDS_PER_EVENT * 22:
        raise ValueError(f"more than {MAX_IDS_PER_EVENT} ids in one event")
    try:
        raw = binascii.a2b_base64(packed, strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("ids are not base64") from error
    rest = len(raw) % _CHUNK.size
    if rest % ID_BYTES:
        raise ValueError(f"{len(raw)} bytes are no whole number of 16-byte ids")
    last: tuple[bytes, ...] = struct.unpack_from(_ONE * (rest // ID_BYTES), raw, len(raw) - rest)
    if rest == len(raw):
        return last
    return (*chain.from_iterable(_CHUNK.iter_unpack(raw[: len(raw) - rest])), *last)


def _unpack(value: Any) -> Any:
    if isinstance(value, str):
        return unpack_ids(value)
    if isinstance(value, (tuple, list)) and all(isinstance(x, bytes) and len(x) == ID_BYTES for x in value):
        if len(value) > MAX_IDS_PER_EVENT:
            raise ValueError(f"more than {MAX_IDS_PER_EVENT} ids in one event")
        return tuple(value)
    raise ValueError("ids are one base64 string of 16-byte ids")


def _pack(ids: tuple[bytes, ...]) -> str:
    return base64.b64encode(b"".join(ids)).decode()


def _hex(length: int) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if isinstance(value, str):
            if value != value.lower():
                raise ValueError("hex is lower case")
            try:
                value = bytes.fromhex(value)
            except ValueError as error:
                raise ValueError("not hex") from error
        if isinstance(value, bytes) and len(value) == length:
            return value
        raise ValueError(f"wanted {length} bytes")

    return check


def _to_hex(value: bytes) -> str:
    return value.hex()


PackedIds = Annotated[
    tuple[bytes, ...],
    PlainValidator(_unpack),
    PlainSerializer(_pack, return_type=str),
    WithJsonSchema({"type": "string", "contentEncoding": "base64", "description": "n x 16-byte ids, packed"}),
]
Hex16 = Annotated[
    bytes,
    PlainValidator(_hex(16)),
    PlainSerializer(_to_hex, return_type=str),
    WithJsonSchema({"type": "string", "pattern": "^[0-9a-f]{32}$"}),
]
Hex32 = Annotated[
    bytes,
    PlainValidator(_hex(32)),
    PlainSerializer(_to_hex, return_type=str),
    WithJsonSchema({"type": "string", "pattern": "^[0-9a-f]{64}$"}),
]
Hex64 = Annotated[
    bytes,
    PlainValidator(_hex(64)),
    PlainSerializer(_to_hex, return_type=str),
    WithJsonSchema({"type": "string", "pattern": "^[0-9a-f]{128}$"}),
]
Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9._:@/+\-]+$")]
"""A worker, holder, domain or tenant: stable, printable, no spaces."""
NamePattern = Annotated[
    str, StringConstraints(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9._:@/+\-]+\*?$")
]
"""One name, or with a star at its end all that begin with what stands before it."""
Text = Annotated[str, StringConstraints(max_length=2_000)]
MAX_COUNT = (1 << 62) - 1
"""Largest count or offset: one more, or the sum of two, still fits a signed 64-bit column."""
Offset = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
BlockBytes = Annotated[int, Field(ge=0, le=1 << 36)]
"""Bytes of one block: at most 64 GiB, so that the sum over any inventory fits a 64-bit column."""
Rank = Annotated[int, Field(ge=0, lt=65_536)]
GroupIndex = Annotated[int, Field(ge=0, lt=1_024)]
ProfileNumber = Annotated[int, Field(ge=0, lt=1 << 31)]
