"""Whether a decoded batch speaks only of what its stream has declared; checked before anything changes."""

from __future__ import annotations

from events.fold.state import HolderState, StreamState
from events.ids import StreamStatus
from events.model.batch import EventBatch
from events.model.part import (
    BlockEvicted,
    BlockInvalidated,
    BlockStored,
    Cleared,
    DomainEvent,
    HolderDeclared,
    Opened,
    Orphans,
    ProfileDeclared,
    ProfileRetired,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotPart,
    SnapshotRange,
    Statement,
    StreamEvent,
    TierChanged,
    TransferStarted,
)

REDECLARED = "holders: declared otherwise before"


def illegal(state: StreamState, batch: EventBatch) -> str | None:
    """Why the batch is illegal in this state, or None. A stream in a hole is judged leniently: what it
    declared may lie in the hole, and nothing of it is credited before a snapshot anyway."""
    opens = [event for event in batch.stream_events if isinstance(event, Opened)]
    if (batch.header.seq == 0) != (len(opens) == 1) or len(opens) > 1:
        return "opened: in record 0 and nowhere else"
    if batch.header.epoch_no != state.epoch_no:
        return "epoch_no: differs from the stream's first record"
    holders = {name: set(holder.groups) for name, holder in state.holders.items()}
    holed = state.status in (StreamStatus.GAP, StreamStatus.QUARANTINED)
    lenient = holed or batch.header.seq > state.next_seq
    for event in batch.stream_events:
        why = _stream_event(event, holders, batch, state)
        if why is not None and (not lenient or why == REDECLARED):
            return why
    numbers = {key for key, profile in state.profiles.items() if not profile.retired}
    for part in batch.parts:
        for domain_event in part.events:
            if isinstance(domain_event, ProfileDeclared) and _redefines(state, part.alias, domain_event):
                return "profile_declared: the number stands for another profile"
            why = _domain_event(domain_event, part.alias, holders, numbers, batch)
            if why is not None and not lenient:
                return why
    return None


def _redefines(state: StreamState, alias: bytes, event: ProfileDeclared) -> bool:
    """A number means one profile for the life of a stream: copies and their bytes hang from it."""
    known = state.profiles.get((alias, event.profile))
    return known is not None and (known.content, known.layout, known.block_bytes) != (
        event.content,
        event.layout,
        event.block_bytes,
    )


def _redeclares(known: HolderState, holder: HolderDeclared) -> bool:
    """A holder's name means one tier and one store for the life of a stream: copies and usage hang from it. A
    group may be new, but never another than it was."""
    groups = {group.index: (group.kind, group.block_tokens, group.window) for group in holder.groups}
    return (known.tier, known.durable_id) != (holder.tier, holder.durable_id) or any(
        groups.get(index) != (group.kind, group.block_tokens, group.window)
        for index, group in known.groups.items()
    )


def _stream_event(
    event: StreamEvent, holders: dict[str, set[int]], batch: EventBatch, state: StreamState
) -> str | None:
    if isinstance(event, Opened | SnapshotBegin):
        opened = event if isinstance(event, Opened) else event.opened
        names = [holder.name for holder in opened.holders]
        if len(set(names)) != len(names):
            return "holders: named twice"
        for holder in opened.holders:
            if (known := state.holders.get(holder.name)) is not None and _redeclares(known, holder):
                return REDECLARED
            holders[holder.name] = {group.index for group in holder.groups}
    elif isinstance(event, Cleared):
        if not set(event.holders) <= set(holders):
            return "cleared: unknown holder"
    elif isinstance(event, Orphans):
        if event.holder not in holders:
            return "orphans: unknown holder"
    elif isinstance(event, SnapshotRange):
        if sum(isinstance(other, SnapshotRange) for other in batch.stream_events) > 1:
            return "snapshot_range: one in a record"
        if event.group not in holders.get(event.holder, set()) or event.low > event.high:
            return "snapshot_range: unknown holder or group, or low above high"
    elif isinstance(event, SnapshotEnd) and not {entry.holder for entry in event.inventories} <= set(holders):
        return "snapshot_end: unknown holder"
    return None


def _domain_event(
    event: DomainEvent,
    alias: bytes,
    holders: dict[str, set[int]],
    numbers: set[tuple[bytes, int]],
    batch: EventBatch,
) -> str | None:
    if isinstance(event, ProfileDeclared):
        numbers.add((alias, event.profile))
    elif isinstance(event, BlockStored | BlockEvicted | BlockInvalidated | Statement | TransferStarted):
        if event.group not in holders.get(event.holder, set()):
            return f"{event.type}: unknown holder or group"
        if isinstance(event, BlockStored | TransferStarted) and (alias, event.profile) not in numbers:
            return f"{event.type}: undeclared profile"
    elif isinstance(event, TierChanged):
        if not all(event.group in holders.get(name, set()) for name in (event.from_holder, event.to_holder)):
            return "tier_changed: unknown holder or group"
    elif isinstance(event, ProfileRetired):
        if (alias, event.profile) not in numbers:
            return "profile_retired: undeclared profile"
    elif isinstance(event, SnapshotPart):
        if not any(isinstance(other, SnapshotRange) for other in batch.stream_events):
            return "snapshot_part: no snapshot_range in this record"
        if any((alias, run.profile) not in numbers for run in event.runs):
            return "snapshot_part: undeclared profile"
    return None
