"""What vLLM's event socket carries, in its map form, and the ids that a hook makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from events.identity import pack_tokens, profile_digest, root_parent
from tests.support.folded_stream import CONTENT, RING

SIZE = 16
CLEARED: dict[str, Any] = {"type": "AllBlocksCleared"}


def stored(hashes: Sequence[object], tokens: Sequence[object], **changes: Any) -> dict[str, Any]:
    """One BlockStored; `tokens` of all its blocks."""
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": None,
        "token_ids": list(tokens),
        "block_size": SIZE,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    } | changes


def removed(*hashes: object, **changes: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU"} | changes


def message(*events: object, rank: object = 0) -> bytes:
    """One payload of the event socket."""
    return msgspec.msgpack.encode([1.5, list(events), rank])


def ids(
    tokens: Sequence[int],
    size: int = SIZE,
    *,
    domain: str = "default",
    adapter: str | None = None,
    extras: list[bytes] | None = None,
) -> list[bytes]:
    """Block ids of a prompt's full blocks, under the content profile of a `FoldedStream`."""
    content = CONTENT.model_copy(update={"block_tokens": size, "adapter": adapter})
    return (
        RING[domain].hasher().chain(root_parent(profile_digest(content)), pack_tokens(tokens), size, extras)
    )
