"""Whether a record may follow what its stream has told before. Pure."""

from __future__ import annotations

from auditor.content import Content
from auditor.record import StreamRecord
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
    TierChanged,
    TransferStarted,
)


def illegal(record: StreamRecord, content: Content, epoch_no: int, *, complete: bool) -> str:
    """Why a record may not follow, "" if it may. Not `complete`: records before it are missing or
    unread, and what they declared isn't known."""
    events = record.stream_events
    opens = sum(isinstance(event, Opened) for event in events)
    if opens != (1 if record.header.seq == 0 else 0):
        return "opened belongs into record 0 and nowhere else"
    if record.header.epoch_no != epoch_no:
        return "epoch_no differs"
    for alias, told in record.parts.items():
        for declared_ in (event for event in told if isinstance(event, ProfileDeclared)):
            known = content.declarations.get((alias, declared_.profile))
            if known is not None and known != declared_:
                return "a profile number changes its meaning"
    for opening in (e for e in events if isinstance(e, Opened | SnapshotBegin)):
        told_of = opening if isinstance(opening, Opened) else opening.opened
        if any(_changes(content, holder) for holder in told_of.holders):
            return "a holder changes its meaning"
    if not complete:
        return ""
    holders = {name: view.groups for name, view in content.holders.items()}
    for event in events:
        if isinstance(event, Opened | SnapshotBegin):
            declared = event if isinstance(event, Opened) else event.opened
            holders |= {h.name: frozenset(g.index for g in h.groups) for h in declared.holders}
            if len({h.name for h in declared.holders}) != len(declared.holders):
                return "a holder is declared twice"
    ranges = [event for event in events if isinstance(event, SnapshotRange)]
    if len(ranges) > 1 or any(r.group not in holders.get(r.holder, ()) or r.low > r.high for r in ranges):
        return "snapshot_range doesn't fit"
    named = {event.holder for event in events if isinstance(event, Orphans)}
    named |= {name for event in events if isinstance(event, Cleared) for name in event.holders}
    named |= {e.holder for event in events if isinstance(event, SnapshotEnd) for e in event.inventories}
    if not named <= set(holders):
        return "an unknown holder is named"
    usable = set(content.declarations) - content.retired
    for alias, said in ((alias, said) for alias, part in record.parts.items() for said in part):
        if isinstance(said, ProfileDeclared):
            usable.add((alias, said.profile))
        if isinstance(said, SnapshotPart) and not ranges:
            return "snapshot_part without a range"
        if any((alias, number) not in usable for number in _numbers(said)):
            return f"{said.type} names an undeclared profile"
        if any(group not in holders.get(holder, ()) for holder, group in _places(said)):
            return f"{said.type} names an unknown holder or group"
    return ""


def _changes(content: Content, holder: HolderDeclared) -> bool:
    known = content.declared_holders.get(holder.name)
    if known is None:
        return False
    kept = {group.index: group for group in holder.groups}
    same = (known.tier, known.durable_id) == (holder.tier, holder.durable_id)
    return not same or any(kept.get(group.index) != group for group in known.groups)


def _numbers(event: DomainEvent) -> list[int]:
    """Profile numbers that must have been declared before."""
    if isinstance(event, BlockStored | TransferStarted | ProfileRetired):
        return [event.profile]
    return [run.profile for run in event.runs] if isinstance(event, SnapshotPart) else []


def _places(event: DomainEvent) -> list[tuple[str, int]]:
    if isinstance(event, BlockStored | BlockEvicted | BlockInvalidated | Statement | TransferStarted):
        return [(event.holder, event.group)]
    if isinstance(event, TierChanged):
        return [(event.from_holder, event.group), (event.to_holder, event.group)]
    return []
