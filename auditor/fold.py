"""The auditor's own fold of one stream, written apart from the index's: it shares records, not code.

It follows a stream by raw header hashes, keeps in-scope copies with their oldest provenance, and knows for
each holder from which record on its content is exact. It never raises on a record.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, assert_never

from auditor.content import Content, Landing, Moving, OpenTransfer
from auditor.legality import illegal
from auditor.record import StreamRecord
from auditor.residency import HolderView, Place, Tables
from auditor.seen import SeenHashes
from auditor.snapshot import SnapshotWork
from events.ids import Inventory, Lineage, StreamKey, StreamStatus
from events.model.part import (
    BlockStored,
    Cleared,
    Closed,
    DomainEvent,
    Drained,
    EngineLoss,
    HolderInventory,
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
    TransferCommitted,
    TransferStarted,
    UnknownEvents,
)


class Fault(NamedTuple):
    """Where a stream's chain or content failed: gap, chain_break, equivocation, unreadable, illegal."""

    kind: str
    seq: int
    detail: str


class Divergence(NamedTuple):
    seq: int
    place: Place
    stated: tuple[int, bytes]
    held: tuple[int, bytes]


ELSEWHERE = frozenset({Lineage.TRANSFER, Lineage.ONLOAD, Lineage.RESTORE})


def _brings(event: DomainEvent) -> bool:
    if type(event) is BlockStored:
        return event.lineage in ELSEWHERE
    if type(event) is SnapshotPart:
        return any(run.lineage in ELSEWHERE or run.transfer is not None for run in event.runs)
    return type(event) is TransferStarted


@dataclass(slots=True)
class StreamFold:
    """One stream. `torn` says that records are missing since the last complete snapshot."""

    stream: StreamKey
    epoch_no: int
    next_seq: int = 0
    prev: bytes = b""
    first_prev: bytes = b""
    seen: SeenHashes = field(default_factory=SeenHashes)
    status: StreamStatus = StreamStatus.UNOPENED
    sticky: bool = False
    torn: bool = False
    draining: bool = False
    engine_ended: bool = False
    opened: Opened | None = None
    content: Content = field(default_factory=Content)
    snapshot: SnapshotWork | None = None
    faults: list[Fault] = field(default_factory=list)
    divergences: list[Divergence] = field(default_factory=list)
    stated: dict[Place, int] = field(default_factory=dict)
    stated_derived: bool = False
    unread: int = 0
    """How much of what the engine told its hook couldn't read or place."""
    overtaken: int = -1
    """The highest number of a record that came behind one of a higher number, and so tells nothing."""
    brought: bool = False
    """Whether something here may have been computed elsewhere: there are connectors, or a copy is said to have been
    loaded, restored or sent."""

    @property
    def holders(self) -> dict[str, HolderView]:
        return self.content.holders

    @property
    def declarations(self) -> dict[tuple[bytes, int], ProfileDeclared]:
        return self.content.declarations

    @property
    def tables(self) -> Tables:
        return self.content.tables

    @property
    def transfers(self) -> dict[Moving, OpenTransfer]:
        return self.content.transfers

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
            if known is None:
                self.overtaken = max(self.overtaken, header.seq)
            return None
        broken = (
            header.seq == self.next_seq and header.seq > 0 and bool(self.prev) and header.prev != self.prev
        )
        lossy = header.seq > self.next_seq or self.status in (StreamStatus.GAP, StreamStatus.QUARANTINED)
        why = illegal(record, self.content, self.epoch_no, complete=not lossy)
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
        self.seen.add(header.seq, record.header_sha256)
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

    def _events(self, record: StreamRecord) -> list[Landing]:
        seq, installed = record.header.seq, record.header.control.offset
        landed: list[Landing] = []
        voided: dict[str, int] = {}
        for event in record.stream_events:
            self._stream_event(event, seq, installed)
        for alias, events in record.parts.items():
            for domain_event in events:
                if type(domain_event) is TransferCommitted:
                    if not self.content.under(alias, domain_event.transfer):
                        what = f"transfer {domain_event.transfer} was committed, its start is missing"
                        self._unknown_landing(what, seq)
                elif type(domain_event) is TierChanged and not self._held(alias, domain_event):
                    self._unknown_landing("copies were moved that nobody has told of", seq)
                elif type(domain_event) is ProfileRetired:
                    for holder, count in self.content.of_profile(alias, domain_event.profile).items():
                        voided[holder] = voided.get(holder, 0) + count
                self.brought = self.brought or _brings(domain_event)
                self.content.take(alias, domain_event, seq, installed, landed)
        if voided:
            self._void(voided, record.stream_events)
        for event in record.stream_events:
            if isinstance(event, SnapshotRange) and event.holder in self.holders:
                self._replace(event, record, landed)
        for event in record.stream_events:
            if isinstance(event, SnapshotEnd):
                self._end_snapshot(event)
        if Statement in record.kinds:
            for alias, events in record.parts.items():
                for domain_event in events:
                    if type(domain_event) is Statement:
                        self._compare(alias, domain_event, seq)
        return landed

    def _stream_event(self, event: StreamEvent, seq: int, installed: int) -> None:
        match event:
            case Opened():
                self.content.declare(event, seq, installed)
                self.opened = event
                self.brought = self.brought or bool(event.connectors)
                if self.status is StreamStatus.UNOPENED:
                    self.status = StreamStatus.LIVE
            case SnapshotBegin():
                self.content.declare(event.opened, None)
                self.opened = self.opened or event.opened
                self.brought = self.brought or bool(event.opened.connectors)
                self.snapshot = SnapshotWork(event.snapshot, seq, installed, inspected=event.source == "pool")
            case EngineLoss():
                for holder in self.holders.values():
                    self.content.doubt(holder)
                if self.snapshot is not None:
                    self.snapshot.broken = True
            case Cleared():
                for name, holder in self.holders.items():
                    if name in event.holders:
                        self.tables.empty_holder(name)
                        holder.inventory, holder.orphans, holder.unassigned = Inventory.EMPTY, 0, 0
                        holder.base_seq, holder.base_installed, holder.from_opened = seq, installed, False
                        holder.cleared_seq, holder.cleared_installed = seq, installed
                        holder.lost = False
                    elif event.unknown_scope:
                        self.content.doubt(holder)
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
            case UnknownEvents():
                self.unread += event.count
            case SnapshotRange() | SnapshotEnd():
                return
            case _:
                assert_never(event)

    def _held(self, alias: bytes, event: TierChanged) -> bool:
        """Whether all that is moved is known to lie where it comes from."""
        table = self.tables.places.get(Place(event.from_holder, event.group, alias), {})
        return all(block in table for block in event.ids)

    def _unknown_landing(self, what: str, seq: int) -> None:
        """Something landed that nobody has told of before: no holder's content is exact any more, and a snapshot under
        way may have listed already where it lies now."""
        self.faults.append(Fault("gap", seq, what))
        if self.snapshot is not None:
            self.snapshot.broken = True
        for holder in self.holders.values():
            holder.lose_base()

    def _void(self, voided: dict[str, int], told: tuple[StreamEvent, ...]) -> None:
        """A retired profile's copies still lie where they lay. A holder of which the same record doesn't count them
        isn't exactly known any more."""
        counted = {one.holder: one.orphans + one.unassigned for one in told if isinstance(one, Orphans)}
        for name, count in voided.items():
            if count > counted.get(name, 0):
                self.holders[name].lose_base()
                if self.snapshot is not None:
                    self.snapshot.broken = True

    def _replace(self, mark: SnapshotRange, record: StreamRecord, landed: list[Landing]) -> None:
        pending: set[str] = set()
        listed, known = self.content.listing(mark, record, landed, pending)
        if not known:
            self.snapshot = None
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
            self.snapshot.note(mark)
            self.snapshot.pending |= pending

    def _end_snapshot(self, event: SnapshotEnd) -> None:
        work, self.snapshot = self.snapshot, None
        if work is None or work.name != event.snapshot or not work.covers(self.holders):
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
            holder.base_seq, holder.base_installed = work.begin_seq, work.begin_installed
            if self.torn:
                self.content.end_transfers(entry.holder, work.begin_seq, work.pending)

    def _compare(self, alias: bytes, event: Statement, seq: int) -> None:
        place = Place(event.holder, event.group, alias)
        holder = self.holders.get(event.holder)
        exact = holder is not None and holder.base_seq is not None
        if exact:
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
