"""Whether a record may follow what its stream has told before. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from auditor.content import Content
from auditor.record import StreamRecord
from events.model.part import (
    BlockEvicted,
    BlockInvalidated,
    BlockStored,
    Cleared,
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

Groups = dict[str, frozenset[int]]
"""Group indexes by holder."""
_WITH_PROFILE = frozenset({BlockStored, TransferStarted, ProfileRetired})
_WITH_PLACE = frozenset({BlockStored, BlockEvicted, BlockInvalidated, Statement, TransferStarted})
"""Looked up by a fact's exact class, which costs less than asking what it is an instance of."""


def illegal(record: StreamRecord, content: Content, epoch_no: int, *, complete: bool) -> str:
    """Why a record may not follow, "" if it may. Not `complete`: records before it are missing or
    unread, and what they declared isn't known."""
    events = record.stream_events
    opens = sum([isinstance(event, Opened) for event in events])
    if opens != (1 if record.header.seq == 0 else 0):
        return "opened belongs into record 0 and nowhere else"
    if record.header.epoch_no != epoch_no:
        return "epoch_no differs"
    for alias, told in record.parts.items() if ProfileDeclared in record.kinds else ():
        for said in told:
            if type(said) is not ProfileDeclared:
                continue
            known = content.declarations.get((alias, said.profile))
            if known is not None and known != said:
                return "a profile number changes its meaning"
    groups: Groups = {}
    if events:
        why = _illegal_of_stream(events, content, groups, complete=complete)
        if why:
            return why
    return _illegal_of_domains(record, content, groups) if complete else ""


def _illegal_of_stream(
    events: Sequence[StreamEvent], content: Content, groups: Groups, *, complete: bool
) -> str:
    """The same of part 0; adds to `groups` what it declares."""
    for opening in (e for e in events if isinstance(e, Opened | SnapshotBegin)):
        told_of = opening if isinstance(opening, Opened) else opening.opened
        if any(_changes(content, holder) for holder in told_of.holders):
            return "a holder changes its meaning"
    if not complete:
        return ""
    for event in events:
        if isinstance(event, Opened | SnapshotBegin):
            declared = event if isinstance(event, Opened) else event.opened
            groups |= {h.name: frozenset(g.index for g in h.groups) for h in declared.holders}
            if len({h.name for h in declared.holders}) != len(declared.holders):
                return "a holder is declared twice"
    ranges = [event for event in events if isinstance(event, SnapshotRange)]
    if len(ranges) > 1 or any(
        not _declared(content, groups, r.holder, r.group) or r.low > r.high for r in ranges
    ):
        return "snapshot_range doesn't fit"
    named = {event.holder for event in events if isinstance(event, Orphans)}
    named |= {name for event in events if isinstance(event, Cleared) for name in event.holders}
    named |= {e.holder for event in events if isinstance(event, SnapshotEnd) for e in event.inventories}
    if not named <= groups.keys() | content.holders.keys():
        return "an unknown holder is named"
    return ""


def _illegal_of_domains(record: StreamRecord, content: Content, groups: Groups) -> str:
    """The same of the other parts, beside a part 0 that may stand and declares `groups`."""
    ranged = SnapshotRange in record.kinds
    fresh: set[tuple[bytes, int]] = set()
    for alias, part in record.parts.items():
        for said in part:
            if type(said) is ProfileDeclared:
                fresh.add((alias, said.profile))
            if type(said) is SnapshotPart and not ranged:
                return "snapshot_part without a range"
            for number in _numbers(said):
                key = alias, number
                if key not in fresh and (key not in content.declarations or key in content.retired):
                    return f"{said.type} names an undeclared profile"
            for holder, group in _places(said):
                if not _declared(content, groups, holder, group):
                    return f"{said.type} names an unknown holder or group"
    return ""


def _declared(content: Content, groups: Groups, holder: str, group: int) -> bool:
    """Whether a holder has a group, by this record or else by those before it."""
    now = groups.get(holder)
    if now is None:
        before = content.holders.get(holder)
        now = frozenset() if before is None else before.groups
    return group in now


def _changes(content: Content, holder: HolderDeclared) -> bool:
    known = content.declared_holders.get(holder.name)
    if known is None:
        return False
    kept = {group.index: group for group in holder.groups}
    same = (known.tier, known.durable_id) == (holder.tier, holder.durable_id)
    return not same or any(kept.get(group.index) != group for group in known.groups)


def _numbers(event: Any) -> Sequence[int]:
    """Profile numbers that must have been declared before."""
    if type(event) in _WITH_PROFILE:
        return (event.profile,)
    return [run.profile for run in event.runs] if type(event) is SnapshotPart else ()


def _places(event: Any) -> Sequence[tuple[str, int]]:
    if type(event) in _WITH_PLACE:
        return ((event.holder, event.group),)
    if type(event) is TierChanged:
        return (event.from_holder, event.group), (event.to_holder, event.group)
    return ()
