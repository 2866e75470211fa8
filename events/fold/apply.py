"""The one fold: `apply(state, batch) -> changes`. Total, deterministic, idempotent; no clock, no configuration.

A stream is folded by its own chain, whatever control says; the table of cases is in `docs/fold.md`.
"""

from __future__ import annotations

from typing import assert_never

from events.chain import transfer_digest
from events.fold.change import Changes, Outcome
from events.fold.legality import illegal
from events.fold.residency import drop, landing, move, put_chain, restate
from events.fold.snapshot import complete, doubt, replace_range
from events.fold.state import (
    CopyAttributes,
    GroupState,
    HolderState,
    ProfileState,
    SnapshotProgress,
    Standing,
    StreamState,
)
from events.identity import profile_digest
from events.ids import CopyState, Inventory, Lineage, StreamStatus
from events.model.batch import EventBatch
from events.model.part import (
    Ack,
    BlockEvicted,
    BlockInvalidated,
    BlockStored,
    Cleared,
    Closed,
    DomainEvent,
    Drained,
    EngineLoss,
    Opened,
    Orphans,
    ProfileDeclared,
    ProfileRetired,
    Refused,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotPart,
    SnapshotRange,
    Statement,
    StreamEvent,
    TierChanged,
    TransferAborted,
    TransferCommitted,
    TransferRejected,
    TransferStarted,
    UnknownEvents,
)

OVERFLOW = "over_capacity: more copies than four times what was declared, or than a stream may hold"


def apply(state: StreamState, batch: EventBatch) -> Changes:
    """Folds one record into its stream's state (mutating it) and returns what changed.

    Redelivery is a no-op (`DUPLICATE`). Never raises on any decoded batch: what doesn't fit becomes a
    status of the stream.
    """
    header = batch.header
    if header.seq < state.next_seq:
        return _again(state, batch)
    why = illegal(state, batch)
    outcome = Outcome.APPLIED
    if header.seq > state.next_seq:
        _fault(state, StreamStatus.GAP, f"seq {state.next_seq} to {header.seq - 1} missing")
        outcome = Outcome.GAP
    elif header.seq > 0 and state.prev and header.prev != state.prev:
        _fault(state, StreamStatus.QUARANTINED, "chain_break", sticky=True)
        outcome = Outcome.CHAIN_BREAK
    if why is not None and outcome is not Outcome.CHAIN_BREAK:
        _fault(state, StreamStatus.QUARANTINED, f"illegal record: {why}")
        outcome = Outcome.ILLEGAL
    changes = Changes(header.stream, outcome, state.fault if outcome is not Outcome.APPLIED else "")
    if header.seq == 0:
        state.first_prev = header.prev
    state.next_seq = header.seq + 1
    state.prev = state.last_header = batch.header_sha256
    if outcome in (Outcome.ILLEGAL, Outcome.CHAIN_BREAK):
        changes.resync = True
        return changes
    state.control_offset, state.control_hash = header.control.offset, header.control.hash
    _events(state, changes, batch)
    return changes


def apply_undecodable(state: StreamState, seq: int, reason: str) -> Changes:
    """A record whose header told its stream and seq but which can't be read.

    If it is the next one, the stream has lost its content: quarantined until a snapshot, and goes on behind
    it; what the next record names as `prev` is taken as given, for nothing here can be trusted. Any other
    number proves nothing and changes nothing: a real loss shows as a gap.
    """
    if seq != state.next_seq:
        return Changes(state.key, Outcome.UNDECODABLE, reason)
    _fault(state, StreamStatus.QUARANTINED, reason)
    state.next_seq = seq + 1
    state.prev = state.last_header = b""
    return Changes(state.key, Outcome.UNDECODABLE, reason, resync=True)


def lose_log(state: StreamState, reason: str) -> Changes:
    """Records before the log's new start are gone unread: the stream is in gap until a complete snapshot."""
    _fault(state, StreamStatus.GAP, reason)
    return Changes(state.key, Outcome.GAP, reason, resync=True)


def _again(state: StreamState, batch: EventBatch) -> Changes:
    header = batch.header
    if header.seq == state.next_seq - 1 and state.last_header and batch.header_sha256 != state.last_header:
        _fault(state, StreamStatus.QUARANTINED, "equivocation", sticky=True)
        return Changes(
            header.stream, Outcome.EQUIVOCATION, f"equivocation: two records {header.seq}", resync=True
        )
    state.duplicates += 1
    return Changes(header.stream, Outcome.DUPLICATE)


def _fault(state: StreamState, status: StreamStatus, why: str, *, sticky: bool = False) -> None:
    """Enters gap or quarantine; a running snapshot is void, a sticky fault is never replaced by a lesser one."""
    state.snapshot = None
    if state.sticky or state.status is StreamStatus.CLOSED:
        return
    state.status, state.fault, state.sticky = status, why, sticky


def _events(state: StreamState, changes: Changes, batch: EventBatch) -> None:
    mark: SnapshotRange | None = None
    ends: SnapshotEnd | None = None
    for event in batch.stream_events:
        if isinstance(event, SnapshotRange):
            mark = event
        elif isinstance(event, SnapshotEnd):
            ends = event
        else:
            _stream_event(state, changes, event)
    statements: list[tuple[bytes, Statement]] = []
    for part in batch.parts:
        for domain_event in part.events:
            if isinstance(domain_event, Statement):
                statements.append((part.alias, domain_event))
            else:
                _domain_event(state, changes, part.alias, domain_event, batch.header.seq)
    if mark is not None and mark.holder in state.holders:
        replace_range(state, changes, mark, batch.parts)
    if changes.overflow:
        _overflow(state, changes)
    if ends is not None:
        _end_snapshot(state, changes, ends)
    for alias, statement in statements:
        _compare(state, changes, alias, statement)


def _stream_event(state: StreamState, changes: Changes, event: StreamEvent) -> None:
    match event:
        case Opened():
            _open(state, changes, event)
            if state.status is StreamStatus.UNOPENED:
                state.status = StreamStatus.LIVE
        case SnapshotBegin():
            _open(state, changes, event.opened)
            state.snapshot = SnapshotProgress(event.snapshot, inspected=event.source == "pool")
        case EngineLoss():
            for holder in state.holders.values():
                _lose(state, changes, holder)
        case Cleared():
            _clear(state, changes, event)
        case UnknownEvents():
            state.unknown_events += event.count
        case Orphans():
            if event.holder in state.holders:
                holder = state.holders[event.holder]
                holder.orphans, holder.unassigned = event.orphans, event.unassigned
                changes.holders.add(event.holder)
        case Drained():
            state.draining = True
            if state.status is StreamStatus.LIVE:
                state.status = StreamStatus.DRAINING
        case Closed():
            state.status, state.engine_ended = StreamStatus.CLOSED, event.engine_ended
            if event.engine_ended:
                for where, table in state.copies.items():
                    if state.holders[where[0]].durable_id is None:
                        drop(state, changes, where, list(table), "engine_ended")
        case SnapshotRange() | SnapshotEnd():
            return
        case _:
            assert_never(event)


def _open(state: StreamState, changes: Changes, event: Opened) -> None:
    state.engine_life, state.engine, state.engine_version = (
        event.engine_life,
        event.engine,
        event.engine_version,
    )
    state.removal, state.admission_known = event.removal, event.admission_known
    for holder in event.holders:
        groups = {g.index: GroupState(g.index, g.kind, g.block_tokens, g.window) for g in holder.groups}
        known = state.holders.get(holder.name)
        state.holders[holder.name] = HolderState(
            holder.name,
            holder.tier,
            holder.capacity_blocks,
            holder.durable_id,
            groups,
            known.inventory if known else holder.inventory,
            known.orphans if known else 0,
            known.unassigned if known else 0,
            known.lost if known else False,
        )
        changes.holders.add(holder.name)


def _clear(state: StreamState, changes: Changes, event: Cleared) -> None:
    for where, table in state.copies.items():
        if where[0] in event.holders:
            drop(state, changes, where, list(table), "cleared")
    for name, holder in state.holders.items():
        if name in event.holders:
            holder.inventory, holder.orphans, holder.unassigned = Inventory.EMPTY, 0, 0
            holder.lost = False
            changes.holders.add(name)
        elif event.unknown_scope:
            _lose(state, changes, holder)


def _lose(state: StreamState, changes: Changes, holder: HolderState) -> None:
    """What the holder has may be gone, and there may be more: only the pool itself can tell."""
    holder.inventory, holder.lost = Inventory.PARTIAL, True
    changes.holders.add(holder.name)
    doubt(state, changes, holder.name)


def _end_snapshot(state: StreamState, changes: Changes, event: SnapshotEnd) -> None:
    progress = state.snapshot
    state.snapshot = None
    if progress is None or progress.snapshot != event.snapshot or not complete(state, progress):
        changes.resync = not state.whole
        return
    for entry in event.inventories:
        holder = state.holders.get(entry.holder)
        if holder is None or (holder.lost and not progress.inspected):
            continue
        holder.inventory, holder.lost = entry.inventory, entry.inventory is Inventory.PARTIAL and holder.lost
        changes.holders.add(entry.holder)
    if not state.sticky and state.status is not StreamStatus.CLOSED:
        state.status = StreamStatus.DRAINING if state.draining else StreamStatus.LIVE
        state.fault = ""


def _overflow(state: StreamState, changes: Changes) -> None:
    """Copies are missing here from now on: until a complete snapshot that fits."""
    first = state.fault != OVERFLOW
    _fault(state, StreamStatus.QUARANTINED, OVERFLOW)
    changes.detail = state.fault
    changes.resync = changes.resync or first


def _compare(state: StreamState, changes: Changes, alias: bytes, event: Statement) -> None:
    checksum = state.checksums.get((alias, event.holder, event.group))
    count, value = (checksum.count, checksum.value) if checksum else (0, bytes(16))
    if state.whole and (count, value) != (event.count, event.checksum):
        _fault(state, StreamStatus.QUARANTINED, f"divergent: {event.count} stated, {count} held")
        changes.detail, changes.resync = state.fault, True


def _domain_event(state: StreamState, changes: Changes, alias: bytes, event: DomainEvent, seq: int) -> None:
    match event:
        case ProfileDeclared():
            state.profiles[alias, event.profile] = ProfileState(
                alias,
                event.profile,
                profile_digest(event.content),
                event.content,
                event.layout,
                event.block_bytes,
                event.content.missing(),
            )
            changes.profiles.add((alias, event.profile))
        case ProfileRetired():
            _retire(state, changes, alias, event.profile)
        case BlockStored():
            if _known(state, event.holder, event.group) and (alias, event.profile) in state.profiles:
                attributes = CopyAttributes(
                    alias,
                    event.profile,
                    CopyState.COMMITTED,
                    event.lineage,
                    event.admitted_after,
                    event.pinned,
                    None,
                )
                put_chain(state, changes, (event.holder, event.group), attributes, event.ids, event.parent)
        case BlockEvicted():
            if event.certain:
                drop(state, changes, (event.holder, event.group), event.ids, event.reason.value)
            else:
                restate(state, changes, (event.holder, event.group), event.ids, CopyState.UNCERTAIN)
        case BlockInvalidated():
            drop(
                state,
                changes,
                (event.holder, event.group),
                event.ids,
                event.reason.value,
                event.request,
            )
        case TierChanged():
            if _known(state, event.from_holder, event.group) and _known(state, event.to_holder, event.group):
                move(
                    state,
                    changes,
                    (event.from_holder, event.group),
                    (event.to_holder, event.group),
                    event.ids,
                )
        case TransferStarted():
            if _known(state, event.holder, event.group) and (alias, event.profile) in state.profiles:
                state.transfers[event.transfer] = (event.holder, event.group)
                attributes = CopyAttributes(
                    alias,
                    event.profile,
                    CopyState.PENDING,
                    Lineage.TRANSFER,
                    event.admitted_after,
                    False,
                    event.transfer,
                )
                put_chain(state, changes, (event.holder, event.group), attributes, event.ids, event.parent)
        case TransferCommitted():
            where = state.transfers.pop(event.transfer, None)
            if where is not None:
                landed = landing(state, where, event.transfer)
                whole = event.digest == transfer_digest(landed)
                restate(state, changes, where, landed, CopyState.COMMITTED if whole else CopyState.UNCERTAIN)
        case TransferAborted() | TransferRejected():
            where = state.transfers.pop(event.transfer, None)
            if where is not None:
                drop(state, changes, where, landing(state, where, event.transfer), event.type)
        case Ack():
            for request in event.requests:
                state.standings[alias, request.request] = Standing(
                    request.removed, request.old_left, request.orphans, request.unassigned, seq
                )
                changes.standings.add((alias, request.request))
            if event.nonce is not None:
                state.nonces[alias] = event.nonce
        case Refused():
            state.standings[alias, event.request] = Standing(0, 0, 0, 0, seq, event.reason)
            changes.standings.add((alias, event.request))
        case SnapshotPart() | Statement():
            return
        case _:
            assert_never(event)


def _known(state: StreamState, holder: str, group: int) -> bool:
    return holder in state.holders and group in state.holders[holder].groups


def _retire(state: StreamState, changes: Changes, alias: bytes, number: int) -> None:
    profile = state.profiles.get((alias, number))
    if profile is None:
        return
    profile.retired = True
    changes.profiles.add((alias, number))
    for where, table in state.copies.items():
        gone = [block for block, (_, a) in table.items() if a.alias == alias and a.profile == number]
        drop(state, changes, where, gone, "retired")
