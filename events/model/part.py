"""Event types inside an `EventBatch`: part 0 speaks of the stream, the other parts of one domain each.

Every event is a past-tense fact of the worker that wrote it. `holder` names one of the holders that the
stream's `opened` declared; `group` one of that holder's attention groups; `profile` a number that the
same domain declared before. Offsets are of `kv.control`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from events.ids import (
    Capability,
    CopyState,
    EvictReason,
    GroupKind,
    InvalidateReason,
    Inventory,
    Lineage,
    Tier,
)
from events.model.field import (
    BlockBytes,
    Count,
    GroupIndex,
    Hex16,
    Hex32,
    Name,
    Offset,
    PackedIds,
    ProfileNumber,
    Record,
    Text,
)
from events.model.profile import ContentProfile, LayoutProfile


class Group(Record):
    """One attention group of a holder; `window` in tokens for sliding windows; `block_tokens` is its own."""

    index: GroupIndex
    kind: GroupKind
    block_tokens: Annotated[int, Field(gt=0)]
    window: Annotated[int, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _window_fits(self) -> Group:
        if (self.kind is GroupKind.SLIDING_WINDOW) != (self.window is not None):
            raise ValueError("a sliding window, and only that, has a window")
        return self


class HolderDeclared(Record):
    """What can hold copies: a volatile tier for one engine life, or a durable one with a registered id."""

    name: Name
    tier: Tier
    capacity_blocks: Count | None = None
    durable_id: Name | None = None
    groups: tuple[Group, ...]
    inventory: Inventory


class Opened(Record):
    """Record 0 of a stream, and nothing else is."""

    type: Literal["opened"] = "opened"
    engine_life: Name
    engine: Text
    engine_version: Text
    hash_algorithm: Text | None = None
    hash_seed: Text | None = None
    removal: Capability
    admission_known: bool
    connectors: tuple[Text, ...] = ()
    holders: Annotated[tuple[HolderDeclared, ...], Field(min_length=1)]


class EngineLoss(Record):
    """The engine's own records were lost for good: its holders become partial, their copies uncertain."""

    type: Literal["engine_loss"] = "engine_loss"
    first_missing: Count
    last_missing: Count | None = None


class Cleared(Record):
    """A whole holder was emptied. Unknown scope empties nothing elsewhere and makes other tiers partial."""

    type: Literal["cleared"] = "cleared"
    holders: tuple[Name, ...]
    unknown_scope: bool = False


class UnknownEvents(Record):
    """Something the hook could not read; the stream is flagged."""

    type: Literal["unknown_events"] = "unknown_events"
    kind: Text
    length: Count
    count: Count = 1


class Orphans(Record):
    """Hashes without a traceable root, and copies under an unknown salt, by holder."""

    type: Literal["orphans"] = "orphans"
    holder: Name
    orphans: Count
    unassigned: Count


class SnapshotBegin(Record):
    """Starts a full restatement; it repeats what the stream opened with, so that a fold whose log was cut
    has a base. Profiles are declared again in the domain parts before their copies.

    `source` pool: it was read out of the engine's own pool, which alone (or a clear of the whole holder) ends
    what an engine loss made uncertain. Without it the snapshot is of the hook's own books.
    """

    type: Literal["snapshot_begin"] = "snapshot_begin"
    snapshot: Name
    opened: Opened
    source: Literal["pool"] | None = None


class SnapshotRange(Record):
    """This record's domain parts replace [low, high] of one holder and group; a domain without a part is empty."""

    type: Literal["snapshot_range"] = "snapshot_range"
    snapshot: Name
    holder: Name
    group: GroupIndex
    low: Hex16
    high: Hex16


class HolderInventory(Record):
    holder: Name
    inventory: Inventory


class SnapshotEnd(Record):
    type: Literal["snapshot_end"] = "snapshot_end"
    snapshot: Name
    inventories: tuple[HolderInventory, ...]


class Drained(Record):
    """A planned leave has begun: no new work should be routed here."""

    type: Literal["drained"] = "drained"


class Closed(Record):
    """End of the reporting; memory is gone only if `engine_ended`."""

    type: Literal["closed"] = "closed"
    engine_ended: bool = False


class ProfileDeclared(Record):
    type: Literal["profile_declared"] = "profile_declared"
    profile: ProfileNumber
    content: ContentProfile
    layout: LayoutProfile = LayoutProfile()
    block_bytes: Annotated[tuple[BlockBytes, ...], Field(min_length=1)]
    """Bytes of one block, by group index."""


class ProfileRetired(Record):
    """Weights or adapter changed in place: the profile's copies are void."""

    type: Literal["profile_retired"] = "profile_retired"
    profile: ProfileNumber


class BlockStored(Record):
    """`ids` continue each other: ids[0] continues `parent` (None: the profile's root). No ids: nothing was stored.

    `expires_at` is information: no fold reads a clock, and only a removal ends a copy.
    """

    type: Literal["block_stored"] = "block_stored"
    holder: Name
    group: GroupIndex
    profile: ProfileNumber
    ids: PackedIds
    parent: Hex16 | None = None
    lineage: Lineage = Lineage.UNKNOWN
    admitted_after: Offset | None = None
    pinned: bool = False
    expires_at: Count | None = None
    session: Text | None = None


class BlockEvicted(Record):
    """`certain` false: a duplicate may be left that the hook can't see; the copies become uncertain."""

    type: Literal["block_evicted"] = "block_evicted"
    holder: Name
    group: GroupIndex
    ids: PackedIds
    reason: EvictReason = EvictReason.UNKNOWN
    certain: bool = True


class BlockInvalidated(Record):
    type: Literal["block_invalidated"] = "block_invalidated"
    holder: Name
    group: GroupIndex
    ids: PackedIds
    reason: InvalidateReason
    request: Offset | None = None


class TierChanged(Record):
    """One atomic move between two holders of this stream; attributes travel with the copies."""

    type: Literal["tier_changed"] = "tier_changed"
    from_holder: Name
    to_holder: Name
    group: GroupIndex
    ids: PackedIds


class TransferStarted(Record):
    """Written by the destination; the copies are pending until committed, aborted, rejected, or evicted as
    expired. A block that is already resident stays what it is and doesn't belong to the transfer."""

    type: Literal["transfer_started"] = "transfer_started"
    transfer: Name
    source: Text
    holder: Name
    group: GroupIndex
    profile: ProfileNumber
    ids: PackedIds
    parent: Hex16 | None = None
    admitted_after: Offset | None = None
    layout: LayoutProfile | None = None


class TransferCommitted(Record):
    """Everything landed. `digest` is `events.chain.transfer_digest`: SHA-256 over the ids that the destination
    has wholly written and that were pending under this transfer until now, ascending, 16 bytes each; blocks
    that were resident before the transfer aren't among them.

    A reader commits the transfer only if the digest is that of the copies it holds pending under it. Otherwise
    something was written in part, and all of them become uncertain: never credited, still in scope of
    deletions, until a removal, a snapshot or a store of the block says how it stands.
    """

    type: Literal["transfer_committed"] = "transfer_committed"
    transfer: Name
    digest: Hex32


class TransferAborted(Record):
    type: Literal["transfer_aborted"] = "transfer_aborted"
    transfer: Name


class TransferRejected(Record):
    """A landing older than an installed deletion request was refused."""

    type: Literal["transfer_rejected"] = "transfer_rejected"
    transfer: Name
    request: Offset | None = None


class CopyRun(Record):
    """Copies that share their attributes; `parents[i]` belongs to `ids[i]`, zeros meaning the root."""

    profile: ProfileNumber
    state: CopyState = CopyState.COMMITTED
    lineage: Lineage = Lineage.UNKNOWN
    admitted_after: Offset | None = None
    pinned: bool = False
    transfer: Name | None = None
    ids: PackedIds
    parents: PackedIds

    @model_validator(mode="after")
    def _columns_agree(self) -> CopyRun:
        if len(self.ids) != len(self.parents):
            raise ValueError("ids and parents differ in length")
        return self


class SnapshotPart(Record):
    """This domain's copies in the range that the same record's `snapshot_range` marks."""

    type: Literal["snapshot_part"] = "snapshot_part"
    runs: tuple[CopyRun, ...]


class Statement(Record):
    """Count and sum of ids mod 2^128 over pending, committed and uncertain copies, after this record."""

    type: Literal["statement"] = "statement"
    holder: Name
    group: GroupIndex
    count: Count
    checksum: Hex16
    source: Literal["pool", "derived"]


class RequestStanding(Record):
    """How one installed deletion request stands here; `old_left` 0 discharges it."""

    request: Offset
    removed: Count
    old_left: Count
    orphans: Count = 0
    unassigned: Count = 0


class Ack(Record):
    """Every installed request of this domain; `nonce` names the audit nonce (an offset) that is answered."""

    type: Literal["ack"] = "ack"
    requests: tuple[RequestStanding, ...]
    nonce: Offset | None = None


class Refused(Record):
    """A request that this hook cannot carry out; it discharges nothing."""

    type: Literal["refused"] = "refused"
    request: Offset
    reason: Literal["no_delete_path", "blocks_in_use", "engine_error", "not_authorised"]
    cure: Text


StreamEvent = Annotated[
    Opened
    | EngineLoss
    | Cleared
    | UnknownEvents
    | Orphans
    | SnapshotBegin
    | SnapshotRange
    | SnapshotEnd
    | Drained
    | Closed,
    Field(discriminator="type"),
]
DomainEvent = Annotated[
    ProfileDeclared
    | ProfileRetired
    | BlockStored
    | BlockEvicted
    | BlockInvalidated
    | TierChanged
    | TransferStarted
    | TransferCommitted
    | TransferAborted
    | TransferRejected
    | SnapshotPart
    | Statement
    | Ack
    | Refused,
    Field(discriminator="type"),
]


class StreamPart(Record):
    """Part 0 of a batch."""

    events: tuple[StreamEvent, ...]


class DomainPart(Record):
    """One domain's part of a batch."""

    events: tuple[DomainEvent, ...]
