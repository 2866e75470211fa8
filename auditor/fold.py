"""The auditor's own fold of one stream, written apart from the index's: it shares records, not code.

It follows a stream by raw header hashes, keeps in-scope copies with their oldest provenance, and knows for
each holder from which record on its content is exact. It never raises on a record.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, assert_never

from auditor.record import StreamRecord
from auditor.residency import HeldCopy, HolderView, Place, Tables
from events.chain import MODULUS, transfer_digest
from events.identity import profile_digest
from events.ids import CopyState, EvictReason, Inventory, Lineage, StreamKey, StreamStatus
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
    HolderDeclared,
    HolderInventory,
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


class Fault(NamedTuple):
    """Where a stream's chain or content failed: gap, chain_break, equivocation, unreadable, illegal."""

    kind: str
    seq: int
    detail: str


class Landing(NamedTuple):
    """Copies that a record brought in, with the provenance it claims for them."""

    event: str
    place: Place
    ids: tuple[bytes, ...]
    provenance: int | None


class Divergence(NamedTuple):
    seq: int
    place: Place
    stated: tuple[int, bytes]
    held: tuple[int, bytes]


class OpenTransfer(NamedTuple):
    place: Place
    provenance: int | None
    seq: int
    ids: tuple[bytes, ...]


@dataclass(slots=True)
class SnapshotWork:
    name: str
    begin_seq: int
    ranges: dict[tuple[str, int], list[tuple[int, int]]] = field(default_factory=dict)
    broken: bool = False
    inspected: bool = False


@dataclass(slots=True)
class StreamFold:
    """One stream. `torn` says that records are missing since the last complete snapshot."""

    stream: StreamKey
    epoch_no: int
    next_seq: int = 0
    prev: bytes = b""
    first_prev: bytes = b""
    seen: dict[int, bytes] = field(default_factory=dict)
    status: StreamStatus = StreamStatus.UNOPENED
    sticky: bool = False
    torn: bool = False
    draining: bool = False
    engine_ended: bool = False
    opened: Opened | None = None
    holders: dict[str, HolderView] = field(default_factory=dict)
    profiles: dict[tuple[bytes, int], str] = field(default_factory=dict)
    declarations: dict[tuple[bytes, int], ProfileDeclared] = field(default_factory=dict)
    retired: set[tuple[bytes, int]] = field(default_factory=set)
    declared_holders: dict[str, HolderDeclared] = field(default_factory=dict)
    tables: Tables = field(default_factory=Tables)
    transfers: dict[str, OpenTransfer] = field(default_factory=dict)
    snapshot: SnapshotWork | None = None
    faults: list[Fault] = field(default_factory=list)
    divergences: list[Divergence] = field(default_factory=list)
    stated: dict[Place, int] = field(default_factory=dict)
    stated_derived: bool = False

    @property
    def whole(self) -> bool:
        return self.status in (StreamStatus.LIVE, StreamStatus.DRAINING)

    def apply(self, record: StreamRecord) -> list[Landing] | None:
        """Folds one record; what landed, or None if nothing of it counts (repeated, broken or illegal)."""
        header = record.header
        if header.seq < self.next_seq:
            known = self.seen.get(header.seq)
            if known is not None and known != record.header_sha256:
                self._fault(StreamStatus.QUARANTINED, "equivocation", header.seq, "two records", sticky=True)
            return None
        broken = (
            header.seq == self.next_seq and header.seq > 0 and bool(self.prev) and header.prev != self.prev
        )
        why = self._illegal(record)
        if header.seq > self.next_seq:
            missing = f"{self.next_seq} to {header.seq - 1}"
            self._fault(StreamStatus.GAP, "gap", header.seq, f"records {missing} are missing")
        elif broken:
            self._fault(StreamStatus.QUARANTINED, "chain_break", header.seq, "prev differs", sticky=True)
        if why and not broken:
            self._fault(StreamStatus.QUARANTINED, "illegal", header.seq, why)
        if header.seq == 0:
            self.first_prev = header.prev
        self.next_seq, self.prev = header.seq + 1, record.header_sha256
        self.seen[header.seq] = record.header_sha256
        return None if broken or why else self._events(record)

    def apply_unreadable(self, seq: int, reason: str) -> None:
        """A record that can't be read: if it is the next one its content is lost and the chain goes on behind
        it, from whatever the next record names. Any other number proves nothing: a real loss shows as a gap."""
        if seq != self.next_seq:
            return
        self._fault(StreamStatus.QUARANTINED, "unreadable", seq, reason)
        self.next_seq, self.prev = seq + 1, b""

    def _fault(self, status: StreamStatus, kind: str, seq: int, detail: str, *, sticky: bool = False) -> None:
        self.faults.append(Fault(kind, seq, detail))
        self.snapshot = None
        self.torn = True
        for holder in self.holders.values():
            holder.lose_base()
        if not self.sticky and self.status is not StreamStatus.CLOSED:
            self.status, self.sticky = status, sticky

    def _illegal(self, record: StreamRecord) -> str:
        events = record.stream_events
        opens = sum(isinstance(event, Opened) for event in events)
        if opens != (1 if record.header.seq == 0 else 0):
            return "opened belongs into record 0 and nowhere else"
        if record.header.epoch_no != self.epoch_no:
            return "epoch_no differs"
        for alias, told in record.parts.items():
            for declared_ in (event for event in told if isinstance(event, ProfileDeclared)):
                known = self.declarations.get((alias, declared_.profile))
                if known is not None and known != declared_:
                    return "a profile number changes its meaning"
        for opening in (e for e in events if isinstance(e, Opened | SnapshotBegin)):
            told_of = opening if isinstance(opening, Opened) else opening.opened
            if any(self._changes(holder) for holder in told_of.holders):
                return "a holder changes its meaning"
        in_hole = record.header.seq > self.next_seq
        if in_hole or self.status in (StreamStatus.GAP, StreamStatus.QUARANTINED):
            return ""
        holders = {name: view.groups for name, view in self.holders.items()}
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
        usable = set(self.declarations) - self.retired
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

    def _changes(self, holder: HolderDeclared) -> bool:
        known = self.declared_holders.get(holder.name)
        if known is None:
            return False
        kept = {group.index: group for group in holder.groups}
        same = (known.tier, known.durable_id) == (holder.tier, holder.durable_id)
        return not same or any(kept.get(group.index) != group for group in known.groups)

    def _events(self, record: StreamRecord) -> list[Landing]:
        seq, installed = record.header.seq, record.header.control.offset
        landed: list[Landing] = []
        for event in record.stream_events:
            self._stream_event(event, seq, installed)
        for alias, events in record.parts.items():
            for domain_event in events:
                self._domain_event(alias, domain_event, seq, installed, landed)
        for event in record.stream_events:
            if isinstance(event, SnapshotRange) and event.holder in self.holders:
                self._replace(event, record, landed)
        for event in record.stream_events:
            if isinstance(event, SnapshotEnd):
                self._end_snapshot(event)
        for alias, events in record.parts.items():
            for domain_event in events:
                if isinstance(domain_event, Statement):
                    self._compare(alias, domain_event, seq)
        return landed

    def _stream_event(self, event: StreamEvent, seq: int, installed: int) -> None:
        match event:
            case Opened():
                self._declare(event, seq)
                self.opened = event
                if self.status is StreamStatus.UNOPENED:
                    self.status = StreamStatus.LIVE
            case SnapshotBegin():
                self._declare(event.opened, None)
                self.opened = self.opened or event.opened
                self.snapshot = SnapshotWork(event.snapshot, seq, inspected=event.source == "pool")
            case EngineLoss():
                for holder in self.holders.values():
                    self._doubt(holder)
                if self.snapshot is not None:
                    self.snapshot.broken = True
            case Cleared():
                for name, holder in self.holders.items():
                    if name in event.holders:
                        self.tables.empty_holder(name)
                        holder.inventory, holder.orphans, holder.unassigned = Inventory.EMPTY, 0, 0
                        holder.base_seq, holder.from_opened = seq, False
                        holder.cleared_seq, holder.cleared_installed = seq, installed
                        holder.lost = False
                    elif event.unknown_scope:
                        self._doubt(holder)
                if event.unknown_scope and self.snapshot is not None:
                    self.snapshot.broken = True
            case Orphans():
                if event.holder in self.holders:
                    view = self.holders[event.holder]
                    view.orphans, view.unassigned = event.orphans, event.unassigned
            case Drained():
                self.draining = True
                if self.status is StreamStatus.LIVE:
                    self.status = StreamStatus.DRAINING
            case Closed():
                self.status, self.engine_ended = StreamStatus.CLOSED, event.engine_ended
                if event.engine_ended:
                    for name, holder in self.holders.items():
                        if holder.durable_id is None:
                            self.tables.empty_holder(name)
            case UnknownEvents() | SnapshotRange() | SnapshotEnd():
                return
            case _:
                assert_never(event)

    def _doubt(self, holder: HolderView) -> None:
        """What the holder has may be gone, and there may be more."""
        holder.inventory, holder.lost = Inventory.PARTIAL, True
        holder.lose_base()
        for place, table in self.tables.places.items():
            if place.holder == holder.name:
                self.tables.restate(place, list(table), CopyState.UNCERTAIN)

    def _declare(self, event: Opened, seq: int | None) -> None:
        """Takes the holders in; `seq` is that of a stream's birth, None when a snapshot repeats them."""
        for holder in event.holders:
            known = self.holders.get(holder.name)
            self.declared_holders[holder.name] = holder
            view = HolderView(
                holder.name,
                holder.tier,
                holder.durable_id,
                frozenset(group.index for group in holder.groups),
                known.inventory if known else holder.inventory,
            )
            if known is not None:
                view.base_seq, view.from_opened = known.base_seq, known.from_opened
                view.cleared_seq, view.cleared_installed = known.cleared_seq, known.cleared_installed
                view.orphans, view.unassigned = known.orphans, known.unassigned
                view.lost = known.lost
            elif seq is not None and holder.inventory is Inventory.EMPTY:
                view.base_seq, view.from_opened = seq, True
            self.holders[holder.name] = view

    def _domain_event(
        self, alias: bytes, event: DomainEvent, seq: int, installed: int, landed: list[Landing]
    ) -> None:
        match event:
            case ProfileDeclared():
                self.profiles[alias, event.profile] = profile_digest(event.content)
                self.declarations[alias, event.profile] = event
                self.retired.discard((alias, event.profile))
            case ProfileRetired():
                if (alias, event.profile) in self.profiles:
                    self.retired.add((alias, event.profile))
                for place, table in self.tables.places.items():
                    if place.alias == alias:
                        self.tables.drop(place, [b for b, c in table.items() if c.number == event.profile])
            case BlockStored():
                place = Place(event.holder, event.group, alias)
                if not self._told_of(place, event.profile):
                    return
                self._land(landed, event, place, event.lineage, CopyState.COMMITTED, None, seq, installed)
            case TransferStarted():
                place = Place(event.holder, event.group, alias)
                if not self._told_of(place, event.profile):
                    return
                self.transfers[event.transfer] = OpenTransfer(place, event.admitted_after, seq, event.ids)
                self._land(
                    landed,
                    event,
                    place,
                    Lineage.TRANSFER,
                    CopyState.PENDING,
                    event.transfer,
                    seq,
                    installed,
                )
            case TransferCommitted():
                transfer = self.transfers.pop(event.transfer, None)
                if transfer is None:
                    self._unknown_landing(event.transfer, seq)
                else:
                    ids = self._landing(transfer.place, event.transfer)
                    written = event.digest == transfer_digest(ids)
                    to = CopyState.COMMITTED if written else CopyState.UNCERTAIN
                    self.tables.restate(transfer.place, ids, to)
                    landed.append(Landing(event.type, transfer.place, transfer.ids, transfer.provenance))
            case TransferAborted() | TransferRejected():
                transfer = self.transfers.pop(event.transfer, None)
                if transfer is not None:
                    self.tables.drop(transfer.place, self._landing(transfer.place, event.transfer))
            case BlockEvicted():
                place = Place(event.holder, event.group, alias)
                if event.certain:
                    self.tables.drop(place, event.ids)
                    if event.reason is EvictReason.EXPIRED:
                        self._expire_transfers(place)
                else:
                    self.tables.restate(place, event.ids, CopyState.UNCERTAIN)
            case BlockInvalidated():
                place = Place(event.holder, event.group, alias)
                self.tables.drop(place, event.ids)
                holder = self.holders.get(event.holder)
                if holder is None or holder.base_seq is None:
                    self.tables.unverified.setdefault(place, set()).update(event.ids)
            case TierChanged():
                source = Place(event.from_holder, event.group, alias)
                target = Place(event.to_holder, event.group, alias)
                if self._told_of(source) and self._told_of(target):
                    self.tables.move(source, target, event.ids)
            case SnapshotPart() | Statement() | Ack() | Refused():
                return
            case _:
                assert_never(event)

    def _land(
        self,
        landed: list[Landing],
        event: BlockStored | TransferStarted,
        place: Place,
        lineage: Lineage,
        state: CopyState,
        transfer: str | None,
        seq: int,
        installed: int,
    ) -> None:
        profile = self.profiles.get((place.alias, event.profile))
        like = HeldCopy(
            b"", profile, event.profile, state, lineage, event.admitted_after, seq, installed, transfer
        )
        self.tables.chain(place, event.ids, event.parent, like)
        landed.append(Landing(event.type, place, event.ids, event.admitted_after))

    def _told_of(self, place: Place, number: int | None = None) -> bool:
        """Whether the stream has declared the place, and the profile number there: behind a hole it may not
        have."""
        holder = self.holders.get(place.holder)
        known = holder is not None and place.group in holder.groups
        return known and (number is None or (place.alias, number) in self.profiles)

    def _expire_transfers(self, place: Place) -> None:
        """A transfer of which nothing is pending any more has expired. A clear or a removal says nothing of
        what is still on its way: such a transfer stays open."""
        for name in [name for name, transfer in self.transfers.items() if transfer.place == place]:
            if not self._landing(place, name):
                del self.transfers[name]

    def _unknown_landing(self, transfer: str, seq: int) -> None:
        """Something landed whose start was lost: no holder's content is exact any more."""
        self.faults.append(Fault("gap", seq, f"transfer {transfer} was committed, its start is missing"))
        for holder in self.holders.values():
            holder.lose_base()

    def _landing(self, place: Place, transfer: str) -> list[bytes]:
        return [
            block
            for block, copy in self.tables.places.get(place, {}).items()
            if copy.transfer == transfer and copy.state is CopyState.PENDING
        ]

    def _replace(self, mark: SnapshotRange, record: StreamRecord, landed: list[Landing]) -> None:
        seq, installed = record.header.seq, record.header.control.offset
        listed: dict[tuple[bytes, bytes], HeldCopy] = {}
        for alias, events in record.parts.items():
            for run in (run for event in events if isinstance(event, SnapshotPart) for run in event.runs):
                profile = self.profiles.get((alias, run.profile))
                if profile is None:
                    self.snapshot = None
                    continue
                inside = [
                    (b, p) for b, p in zip(run.ids, run.parents, strict=True) if mark.low <= b <= mark.high
                ]
                for block, parent in inside:
                    listed[alias, block] = HeldCopy(
                        parent,
                        profile,
                        run.profile,
                        run.state,
                        run.lineage,
                        run.admitted_after,
                        seq,
                        installed,
                        run.transfer,
                    )
                place = Place(mark.holder, mark.group, alias)
                if run.transfer is not None and run.state is CopyState.PENDING:
                    self.transfers.setdefault(
                        run.transfer, OpenTransfer(place, run.admitted_after, seq, run.ids)
                    )
                if run.state is CopyState.PENDING:
                    continue
                landed.append(
                    Landing("snapshot_part", place, tuple(block for block, _ in inside), run.admitted_after)
                )
        self.tables.replace_range(
            mark.holder,
            mark.group,
            (mark.low, mark.high),
            listed,
            torn=self.torn,
            partial=self.holders[mark.holder].inventory is Inventory.PARTIAL,
            doubtful=self.holders[mark.holder].lost and not (self.snapshot and self.snapshot.inspected),
        )
        if self.snapshot is not None and self.snapshot.name == mark.snapshot:
            bounds = (int.from_bytes(mark.low, "big"), int.from_bytes(mark.high, "big"))
            self.snapshot.ranges.setdefault((mark.holder, mark.group), []).append(bounds)

    def _end_snapshot(self, event: SnapshotEnd) -> None:
        work, self.snapshot = self.snapshot, None
        if work is None or work.name != event.snapshot or not self._covered(work):
            return
        for entry in event.inventories:
            self._settle(entry, work)
        self.torn = False
        if not self.sticky and self.status is not StreamStatus.CLOSED:
            self.status = StreamStatus.DRAINING if self.draining else StreamStatus.LIVE

    def _settle(self, entry: HolderInventory, work: SnapshotWork) -> None:
        holder = self.holders.get(entry.holder)
        if holder is None or (holder.lost and not work.inspected):
            return
        holder.inventory = entry.inventory
        holder.lost = holder.lost and entry.inventory is Inventory.PARTIAL
        holder.lose_base()
        if entry.inventory is not Inventory.PARTIAL and not work.broken:
            holder.base_seq = work.begin_seq

    def _covered(self, work: SnapshotWork) -> bool:
        """Whether the ranges leave no id of any declared holder and group out."""
        for name, holder in self.holders.items():
            for group in holder.groups:
                reached = 0
                for low, high in sorted(work.ranges.get((name, group), [])):
                    if low > reached:
                        return False
                    reached = max(reached, high + 1)
                if reached < MODULUS:
                    return False
        return True

    def _compare(self, alias: bytes, event: Statement, seq: int) -> None:
        place = Place(event.holder, event.group, alias)
        holder = self.holders.get(event.holder)
        exact = holder is not None and holder.base_seq is not None
        self.stated[place] = seq
        self.stated_derived = self.stated_derived or event.source == "derived"
        stated, held = (event.count, event.checksum), self.tables.inventory(place)
        if stated == held and exact:
            self.tables.verify(place)
        if stated == held or not (exact or self.whole):
            return
        if exact:
            self.divergences.append(Divergence(seq, place, stated, held))
        if self.whole:
            self.snapshot, self.status = None, StreamStatus.QUARANTINED


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
