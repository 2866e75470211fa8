"""vLLM's KV events: what its fields mean. Pure.

Both wire forms are read: events as arrays in the order of their struct (0.16) and as maps tagged by "type"
(0.24 and later).
"""

from __future__ import annotations

from typing import Final

from events.hooks.engine_event import (
    NO_EXTRA_KEYS,
    TOKEN_SIZE_BYTES,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineBatch,
    ExtraKeys,
)
from events.hooks.engine_wire import (
    Dialect,
    FieldError,
    Fields,
    Kind,
    block_size_of,
    hashes_of,
    optional_int,
    optional_text,
    parent_of,
    tier_of,
    tokens_of,
)
from events.hooks.engine_wire import decode_batch as decode

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


def decode_batch(engine_seq: int, payload: bytes) -> EngineBatch:
    """Read one payload of a vLLM engine; see `events.hooks.engine_wire.decode_batch`."""
    return decode(engine_seq, payload, VLLM)


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


def _stored(fields: Fields) -> tuple[BlockStored]:
    hashes = hashes_of(fields)
    parent = parent_of(fields)
    tokens = tokens_of(fields.get("token_ids"))
    block_size = block_size_of(fields)
    medium = optional_text(fields, "medium")
    lora_name = optional_text(fields, "lora_name")
    lora_id = optional_int(fields.get("lora_id"), "lora_id")
    entries = fields.get("extra_keys")
    extra_keys: tuple[ExtraKeys, ...] | None = None
    if entries is not None:
        if not isinstance(entries, list) or len(entries) != len(hashes):
            raise FieldError("extra_keys")
        root = parent is None and len(hashes) * block_size * TOKEN_SIZE_BYTES == len(tokens)
        extra_keys = tuple(
            read_extra_keys(entry, lora_name=lora_name, lora_id=lora_id, first_block=root and index == 0)
            for index, entry in enumerate(entries)
        )
    if fields.get("cache_salt") is not None:
        # No vLLM says so today. Left out, the prompts of a salted tenant would count as the default domain's.
        raise FieldError("cache_salt")
    stored = BlockStored(
        hashes=hashes,
        parent=parent,
        tokens=tokens,
        block_size=block_size,
        tier=tier_of(medium),
        medium=medium,
        lora_name=lora_name,
        lora_id=lora_id,
        extra_keys=extra_keys,
        group=optional_int(fields.get("group_idx"), "group_idx"),
        spec_kind=optional_text(fields, "kv_cache_spec_kind"),
        window=optional_int(fields.get("kv_cache_spec_sliding_window"), "kv_cache_spec_sliding_window"),
        locality=optional_text(fields, "locality"),
        ownership=optional_text(fields, "ownership"),
        session=optional_text(fields, "session_id"),
    )
    return (stored,)


def _removed(fields: Fields) -> tuple[BlockRemoved]:
    medium = optional_text(fields, "medium")
    removed = BlockRemoved(
        hashes=hashes_of(fields),
        tier=tier_of(medium),
        medium=medium,
        group=optional_int(fields.get("group_idx"), "group_idx"),
        locality=optional_text(fields, "locality"),
        ownership=optional_text(fields, "ownership"),
    )
    return (removed,)


def _cleared(_: Fields) -> tuple[AllBlocksCleared]:
    return (AllBlocksCleared(),)


VLLM: Final = Dialect(
    "vllm",
    {
        "BlockStored": Kind(_STORED_FIELDS, _stored),
        "BlockRemoved": Kind(_REMOVED_FIELDS, _removed),
        "AllBlocksCleared": Kind((), _cleared),
    },
)
