"""What an engine's hook is told about it beforehand; everything else is learned from its events. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from events.ids import Capability, Tier
from events.model.part import Group
from events.model.profile import ContentProfile, LayoutProfile

HASHES_REMEMBERED = 4_096
DOUBTFUL_KEPT = 65_536
COPIES_KEPT = 1 << 19
PROFILES_KEPT = 1_024
GROUPS_KEPT = 64


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One engine rank. Everything may be left out: the profile is then `unverified` and says so.

    `content.adapter` and `content.adapter_revision` are ignored: adapters come with the events, their
    revisions from `adapter_revisions` by name (an adapter that isn't in it is unverified).
    `content.block_tokens` only serves to open a stream before its first event; the events' own block size
    counts. `capacity_blocks` is the physical size of a tier's pool, over all groups; it bounds the duplicate
    counts. `groups` are those of the GPU's cache, if known; otherwise they are learned. The events' own words
    count here too: each group that turns out to be another costs the stream one more epoch.

    `connectors` non-empty: a block that appears on the GPU may have been loaded rather than computed, so
    its provenance is that of a copy held elsewhere, or unknown. `short_last_blocks`: the engine stores last
    blocks that aren't full, so `content.block_tokens` counts and a single shorter block is one of those; in
    other tiers, which connectors fill, once a full block has been seen. `hashes_remembered`: how many hashes without
    a copy are kept, for children of a block that was removed under a running request. `doubtful_kept`: how
    many copies that may be gone a holder keeps (clients can make them, by having hits announced again);
    above it the older half is forgotten and the holder is partial. `copies_kept`: the same for all that a
    holder keeps, orphans included, where its capacity isn't known; else it is twice the capacity.
    `profiles_kept`, `groups_kept`: what one engine can declare by its events, groups by holder; what comes
    under another one has no id, or no place, and is flagged.
    """

    engine: str = "vllm"
    engine_version: str = ""
    hash_algorithm: str | None = None
    hash_seed: str | None = None
    removal: Capability = Capability.NONE
    admission_known: bool = False
    connectors: tuple[str, ...] = ()
    short_last_blocks: bool = False
    content: ContentProfile = field(default_factory=ContentProfile)
    layout: LayoutProfile = field(default_factory=LayoutProfile)
    block_bytes: tuple[int, ...] = (0,)
    adapter_revisions: Mapping[str, str] = field(default_factory=dict)
    default_domain: str | None = "default"
    groups: tuple[Group, ...] = ()
    capacity_blocks: Mapping[Tier, int] = field(default_factory=dict)
    durable_ids: Mapping[Tier, str] = field(default_factory=dict)
    hashes_remembered: int = HASHES_REMEMBERED
    doubtful_kept: int = DOUBTFUL_KEPT
    copies_kept: int = COPIES_KEPT
    profiles_kept: int = PROFILES_KEPT
    groups_kept: int = GROUPS_KEPT

    def copies_limit(self, tier: Tier) -> int:
        """Copies and orphans that one tier's holder keeps at most."""
        capacity = self.capacity_blocks.get(tier)
        return self.copies_kept if capacity is None else 2 * capacity + 1_024

    @property
    def hashes_limit(self) -> int:
        """Engine hashes that are kept at most, with all that lie before them in their chains."""
        known = sum(self.copies_limit(tier) for tier in self.capacity_blocks)
        return 2 * (self.hashes_remembered + known + self.copies_kept)
