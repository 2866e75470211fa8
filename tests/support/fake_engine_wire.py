"""How the versions of vLLM write an event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_STORED = (
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
_STORED_0_16 = 7
_ALWAYS = frozenset({"type", *_STORED[:_STORED_0_16]})


@dataclass(frozen=True, slots=True)
class Wire:
    """What differs between vLLM's versions."""

    version: str
    array_events: bool
    replay_topic: bool

    def encode(self, event: dict[str, Any]) -> object:
        """An event of the newest version in this version's form."""
        if not self.array_events:
            return {key: value for key, value in event.items() if value is not None or key in _ALWAYS}
        match event["type"]:
            case "BlockStored":
                return [event["type"], *(event.get(name) for name in _STORED[:_STORED_0_16])]
            case "BlockRemoved":
                return [event["type"], event["block_hashes"], event["medium"]]
            case kind:
                return [kind]


WIRES = {
    wire.version: wire
    for wire in (
        Wire("0.16", array_events=True, replay_topic=False),
        Wire("0.24", array_events=False, replay_topic=False),
        Wire("0.28", array_events=False, replay_topic=True),
        Wire("0.32", array_events=False, replay_topic=True),
    )
}
