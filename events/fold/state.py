"""What the fold knows of one stream. Mutated by `events.fold.apply` alone; everything else reads it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from events.chain import Checksum
from events.fold.spread import Spread
from events.ids import (
    Capability,
    CopyState,
    GroupKind,
    Inventory,
    Lineage,
    ProfileId,
    StreamKey,
    StreamStatus,
    Tier,
)
from events.model.profile import ContentProfile, LayoutProfile

HolderGroup = tuple[str, int]
"""(holder name within the stream, attention group)."""


class CopyAttributes(NamedTuple):
    """What many copies share; interned, so that equal attributes are one object.

    `admitted_after` None means that the provenance is unknown, which counts as oldest.
    """

    alias: bytes
    profile: int
    state: CopyState
    lineage: Lineage
    admitted_after: int | None
    pinned: bool
    transfer: str | None


Copy = tuple[bytes, CopyAttributes]
"""(parent id, zeros for the profile's root; shared attributes)."""


@dataclass(frozen=True, slots=True)
class GroupState:
    index: int
    kind: GroupKind
    block_tokens: int
    window: int | None


@dataclass(slots=True)
class HolderState:
    name: str
    tier: Tier
    capacity_blocks: int | None
    durable_id: str | None
    groups: dict[int, GroupState]
    inventory: Inventory
    orphans: int = 0
    unassigned: int = 0
    lost: bool = False
    """Partial because records of the engine were lost, or a clear may have reached it: what is uncertain stays
    so until the pool is inspected or the whole holder is cleared, whatever the hook's own books say."""


@dataclass(slots=True)
class ProfileState:
    """`missing` non-empty: unverified, its copies are answered for their own worker only."""

    alias: bytes
    number: int
    id: ProfileId
    content: ContentProfile
    layout: LayoutProfile
    block_bytes: tuple[int, ...]
    missing: tuple[str, ...]
    retired: bool = False

    def bytes_of(self, group: int) -> int:
        """Bytes of one block of the group, 0 where the declaration has none."""
        return self.block_bytes[group] if group < len(self.block_bytes) else 0


@dataclass(slots=True)
class Usage:
    blocks: int = 0
    bytes: int = 0


@dataclass(slots=True)
class Standing:
    """A deletion request as this stream last acknowledged or refused it, at `seq`."""

    removed: int
    old_left: int
    orphans: int
    unassigned: int
    seq: int
    refused: str | None = None

    @property
    def discharged(self) -> bool:
        return self.refused is None and self.old_left == 0


@dataclass(slots=True)
class SnapshotProgress:
    """Ranges replaced since the begin, by (holder, group), as inclusive integer bounds. `inspected`: it is of
    the engine's own pool. `spreads`: of tables that ranges were looked up in; nobody keeps them."""

    snapshot: str
    ranges: dict[HolderGroup, list[tuple[int, int]]] = field(default_factory=dict)
    inspected: bool = False
    spreads: dict[HolderGroup, Spread] = field(default_factory=dict, repr=False, compare=False)


@dataclass(slots=True)
class StreamState:
    """One stream's fold. `prev` is what the next record must name; `last_header` the hash of the last one
    applied, for equivocation; `sticky` marks a fault that no snapshot heals; `fault` says why a stream is in
    gap or quarantine."""

    key: StreamKey
    epoch_no: int
    next_seq: int = 0
    prev: bytes = b""
    first_prev: bytes = b""
    last_header: bytes = b""
    status: StreamStatus = StreamStatus.UNOPENED
    fault: str = ""
    sticky: bool = False
    draining: bool = False
    engine_ended: bool = False
    engine_life: str = ""
    engine: str = ""
    engine_version: str = ""
    removal: Capability = Capability.NONE
    admission_known: bool = False
    control_offset: int = -1
    control_hash: bytes = b""
    duplicates: int = 0
    unknown_events: int = 0
    holders: dict[str, HolderState] = field(default_factory=dict)
    profiles: dict[tuple[bytes, int], ProfileState] = field(default_factory=dict)
    copies: dict[HolderGroup, dict[bytes, Copy]] = field(default_factory=dict)
    usage: dict[tuple[bytes, Tier], Usage] = field(default_factory=dict)
    checksums: dict[tuple[bytes, str, int], Checksum] = field(default_factory=dict)
    standings: dict[tuple[bytes, int], Standing] = field(default_factory=dict)
    nonces: dict[bytes, int] = field(default_factory=dict)
    transfers: dict[str, HolderGroup] = field(default_factory=dict)
    snapshot: SnapshotProgress | None = None
    interned: dict[CopyAttributes, CopyAttributes] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether every record up to `next_seq` was applied and the inventory rests on a base."""
        return self.status in (StreamStatus.LIVE, StreamStatus.DRAINING)

    def table(self, holder: str, group: int) -> dict[bytes, Copy]:
        """Copies of one holder and group by block id; made on first use."""
        return self.copies.setdefault((holder, group), {})

    def exact(self, attributes: CopyAttributes) -> bool:
        """Whether copies with these attributes are of an exact id space: approximate ones never answer."""
        profile = self.profiles.get((attributes.alias, attributes.profile))
        return profile is None or profile.content.approximate is None

    def credited(self, copy: Copy | None) -> bool:
        """Whether a copy may count in an answer: committed, and of an exact id space."""
        return copy is not None and copy[1].state is CopyState.COMMITTED and self.exact(copy[1])

    def intern(self, attributes: CopyAttributes) -> CopyAttributes:
        return self.interned.setdefault(attributes, attributes)

    def copy_count(self) -> int:
        return sum(len(table) for table in self.copies.values())


def older(left: int | None, right: int | None) -> int | None:
    """The older of two provenances; unknown is oldest."""
    return None if left is None or right is None else min(left, right)
