"""SGLang's KV events: what its fields mean. Pure.

Frames, batch and replay are vLLM's (`events.hooks.engine_wire`). The event classes were read in sglang 0.5.12
and 0.5.18 (arrays) and 0.5.23 (maps). What is SGLang's own:

- the salt stands on every store of a salted prompt (0.5.18: in a map behind the array's fields);
- with EAGLE a token is a pair with its successor, and a page holds as many pairs as it has tokens;
- an image is written as token ids beyond 32 bits; a block with one can't be named;
- a clear empties the GPU and the host's pinned memory, not what lies behind them;
- the caller's `extra_key` is in no event, and in the hash only with `"format": "dynamo"`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from events.hooks.engine_event import (
    NO_EXTRA_KEYS,
    TOKEN_SIZE_BYTES,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineBatch,
    EngineTier,
    ExtraKeys,
)
from events.hooks.engine_wire import (
    Dialect,
    FieldError,
    Fields,
    Kind,
    block_size_of,
    hashes_of,
    optional_text,
    pack_u32,
    parent_of,
    tier_of,
)
from events.hooks.engine_wire import decode_batch as decode

_STORED_FIELDS: Final = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "metadata",
)
_REMOVED_FIELDS: Final = ("block_hashes", "medium")
_CLEARED: Final = AllBlocksCleared(tiers=frozenset({EngineTier.GPU, EngineTier.CPU}))
_WIDE: Final = 1 << 32
_UNREADABLE: Final = ExtraKeys(unrecognised=True)


def decode_batch(engine_seq: int, payload: bytes) -> EngineBatch:
    """Read one payload of an SGLang engine; see `events.hooks.engine_wire.decode_batch`."""
    return decode(engine_seq, payload, SGLANG)


def read_tokens(values: object) -> tuple[bytes, frozenset[int]]:
    """(token ids as u32 little endian, places of those that are no token ids but stand for an image).

    Pairs give their first tokens: those are what the page's positions hold. Raises FieldError
    ("token_ids") for anything else, and for pairs that don't follow from one another.
    """
    if not isinstance(values, list):
        raise FieldError("token_ids")
    tokens: Sequence[Any] = _firsts(values) if values and isinstance(values[0], list) else values
    try:
        return pack_u32(array("I", tokens)), frozenset()
    except (TypeError, ValueError) as cause:
        raise FieldError("token_ids") from cause
    except OverflowError:
        pass
    wide = frozenset(at for at, token in enumerate(tokens) if type(token) is int and token >= _WIDE)
    try:
        return pack_u32(array("I", [0 if at in wide else token for at, token in enumerate(tokens)])), wide
    except (TypeError, ValueError, OverflowError) as cause:
        raise FieldError("token_ids") from cause


def _firsts(pairs: list[Any]) -> list[Any]:
    if any(not isinstance(pair, list) or len(pair) != 2 for pair in pairs):
        raise FieldError("token_ids")
    if any(type(token) is not int for pair in pairs for token in pair):
        raise FieldError("token_ids")
    if any(pair[1] != following[0] for pair, following in pairwise(pairs)):
        raise FieldError("token_ids")
    return [pair[0] for pair in pairs]


def _stored(fields: Fields) -> tuple[BlockStored]:
    hashes, parent, size = hashes_of(fields), parent_of(fields), block_size_of(fields)
    tokens, wide = read_tokens(fields.get("token_ids"))
    aligned = size > 0 and len(hashes) * size * TOKEN_SIZE_BYTES == len(tokens)
    keys = [NO_EXTRA_KEYS] * len(hashes)
    if aligned:
        salt = _salt_of(fields)
        if salt is not None and parent is None and keys:
            keys[0] = ExtraKeys(salt=salt)
        for at in wide:
            keys[at // size] = _UNREADABLE
    medium = optional_text(fields, "medium")
    stored = BlockStored(
        hashes=hashes,
        parent=parent,
        tokens=tokens,
        block_size=size,
        tier=tier_of(medium),
        medium=medium,
        lora_name=optional_text(fields, "lora_name"),
        extra_keys=tuple(keys),
        session=optional_text(fields, "session_id"),
    )
    return (stored,)


def _salt_of(fields: Fields) -> str | None:
    metadata = fields.get("metadata")
    if metadata is None:
        return optional_text(fields, "cache_salt")
    if not isinstance(metadata, dict):
        raise FieldError("metadata")
    return optional_text(metadata, "cache_salt")


def _removed(fields: Fields) -> tuple[BlockRemoved]:
    medium = optional_text(fields, "medium")
    return (BlockRemoved(hashes=hashes_of(fields), tier=tier_of(medium), medium=medium),)


def _cleared(_: Fields) -> tuple[AllBlocksCleared]:
    return (_CLEARED,)


SGLANG: Final = Dialect(
    "sglang",
    {
        "BlockStored": Kind(_STORED_FIELDS, _stored),
        "BlockRemoved": Kind(_REMOVED_FIELDS, _removed),
        "AllBlocksCleared": Kind((), _cleared),
    },
)
