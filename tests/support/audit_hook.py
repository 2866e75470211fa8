"""A hook of a simulated fleet under audit: physical truth beside the light records that it writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from auditor.record import StreamRecord, UnreadableRecord
from auditor.registry import ControlFold
from auditor.telling import WORDS
from events.chain import sha256
from events.ids import (
    Capability,
    GroupKind,
    InvalidateReason,
    Inventory,
    Lineage,
    StreamKey,
    Tier,
)
from events.model.batch import ControlPosition, Header, PartRef
from events.model.part import (
    Ack,
    BlockEvicted,
    BlockInvalidated,
    BlockStored,
    Cleared,
    DomainEvent,
    EngineLoss,
    Group,
    HolderDeclared,
    HolderInventory,
    Opened,
    RequestStanding,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotPart,
    SnapshotRange,
    Statement,
    StreamEvent,
    TransferRejected,
)
from tests.support.audit_fault import Faults
from tests.support.audit_memory import HOLDERS, Copies, listed, older, stated
from tests.support.light_log import LightSigner
from tests.support.log import HIGH, LOW, declared

GROUP = Group(index=0, kind=GroupKind.FULL, block_tokens=16)
PROFILE = declared()


class Surroundings(Protocol):
    """The fleet as its hooks see it."""

    faults: Faults
    registry: ControlFold
    request: int
    nonce: int | None
    written: int
    returned: bool
    lied: bool
    drop: int
    stores: Mapping[str, str]

    def strikes(self, fault: str, times: float = 1.0) -> bool: ...

    def chance(self, probability: float) -> bool: ...

    def evidence_feed(self, record: StreamRecord | UnreadableRecord) -> None: ...


@dataclass
class Hook:
    """One epoch of one engine life: `known` is what the hook believes, which a bug may bend."""

    fleet: Surroundings
    worker: str
    life: str
    epoch: str
    epoch_no: int
    copies: Copies
    known: dict[tuple[str, bytes], int | None] = field(default_factory=dict)
    running: list[tuple[bytes, int]] = field(default_factory=list)
    landing: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    seq: int = 0
    prev: bytes = b""
    installed: int = 0
    alive: bool = True
    cut: bool = False
    acked: bool = False
    nonce: int | None = None
    repair: bool = False
    torn: bool = False
    hole: bool = False
    sure: bool = False
    cleared: bool = False
    unwatched: bool = False
    waiting: list[StreamRecord | UnreadableRecord] = field(default_factory=list)
    alias: bytes = b""

    def say(
        self, *stream_events: StreamEvent, events: Sequence[DomainEvent] = (), signed: bool = False
    ) -> None:
        """Numbers a record; it may be lost or damaged on the way. An idle reset is told first. What a hook says under
        its signature only is signed."""
        signed = signed or any(type(event) in WORDS for event in (*stream_events, *events))
        fleet = self.fleet
        name = self.alias
        signed = signed or any(isinstance(event, Statement) for event in events)
        if self.cleared:
            self.cleared = False
            self.say(Cleared(holders=("gpu", "cpu")))
        refs = [PartRef.model_construct(alias=None, sha256=bytes(32), events=len(stream_events))]
        if events:
            refs.append(PartRef.model_construct(alias=name, sha256=bytes(32), events=len(events)))
        position = min(self.installed, fleet.registry.next_offset - 1)
        seen = fleet.registry.hashes.get(position, bytes(32))
        if fleet.strikes("split_view"):
            seen = sha256(b"another log")
        header = Header.model_construct(
            v=1,
            worker=self.worker,
            rank=0,
            epoch=self.epoch,
            epoch_no=self.epoch_no,
            seq=self.seq,
            prev=self.prev,
            control=ControlPosition.model_construct(offset=position, hash=seen),
            parts=tuple(refs),
        )
        fleet.written += 1
        line = f"{self.worker}/{self.epoch}/{self.seq}/{fleet.written}".encode() + self.prev
        record = StreamRecord(
            0,
            fleet.written,
            header,
            line,
            sha256(line),
            LightSigner(sha256(self.epoch.encode())).sign(line) if signed or self.seq == 0 else None,
            tuple(stream_events),
            {name: tuple(events)} if events else {},
            header.stream,
        )
        self.seq += 1
        dropped = fleet.written == fleet.drop
        if dropped or (self.seq > 1 and not self.sure and fleet.strikes("lost")):
            self.repair, self.torn, self.hole = self.repair or dropped or fleet.chance(0.7), True, True
            return
        self.prev = record.header_sha256
        if self.seq > 1 and not self.sure and fleet.strikes("unreadable"):
            self.torn = self.hole = True
            stream = StreamKey(self.worker, 0, self.epoch)
            self.waiting.append(
                UnreadableRecord(0, fleet.written, stream, header.seq, record.header_sha256, "part_hash")
            )
            return
        self.waiting.append(record)
        if fleet.strikes("repeated"):
            self.waiting.append(record)
        if fleet.strikes("equivocated"):
            line = record.header_line + b"'"
            twin = replace(record, header_line=line, header_sha256=sha256(line), signature=None)
            self.waiting.insert(-1 if fleet.chance(0.5) else len(self.waiting), twin)

    def flush(self) -> None:
        if not self.cut:
            for record in self.waiting:
                self.fleet.evidence_feed(record)
            self.waiting.clear()

    def opening(self, inventory: Inventory) -> Opened:
        store = self.fleet.stores.get(self.worker)
        holders = [
            HolderDeclared(name=name, tier=tier, groups=(GROUP,), inventory=inventory)
            for name, tier in HOLDERS
        ]
        if store is not None:
            disk = HolderDeclared(
                name="disk", tier=Tier.DISK, durable_id=store, groups=(GROUP,), inventory=inventory
            )
            holders.append(disk)
        return Opened(
            engine_life=self.life,
            engine="sim",
            engine_version="1",
            removal=Capability.EVICT_BLOCKS,
            admission_known=True,
            holders=tuple(holders),
        )

    def land(
        self, holder: str, one: bytes, after: int, lineage: Lineage, *, claimed: int | None = None
    ) -> None:
        """A physical copy more, admitted `after`, and the record of it, which says `claimed` for an onload."""
        fleet = self.fleet
        if holder == "gpu" and any(one == coming for coming, _ in self.landing.values()):
            return
        if self.hides(holder, one):
            return
        self.copies.table.setdefault((holder, one), []).append(after)
        if self.acked and after < fleet.request:
            fleet.returned = True
        if not self.acked and fleet.strikes("silent"):
            return
        if fleet.strikes("engine_loss"):
            self.unwatched = True
            return
        said = after if lineage is Lineage.PREFILL else claimed
        known = (holder, one) in self.known
        launder = known and fleet.strikes("laundered")
        self.known[holder, one] = older(self.known[holder, one], said) if known and not launder else said
        stored = BlockStored(
            holder=holder, group=0, profile=0, ids=(one,), lineage=lineage, admitted_after=said
        )
        self.say(events=[stored])

    def hides(self, holder: str, one: bytes) -> bool:
        """Whether a bug left a copy here that the hook doesn't know of: the engine hits it and computes no
        duplicate. With one, a liar's old copy would lie under a fresh one's id for ever."""
        return (holder, one) not in self.known and bool(self.copies.table.get((holder, one)))

    def end(self, holder: str, one: bytes, *, request: int | None = None) -> None:
        """Every physical copy of a block goes, unless a bug keeps one; the record says that all went."""
        fleet = self.fleet
        kept = request is not None and fleet.strikes("kept")
        if not kept:
            self.copies.table.pop((holder, one), None)
        self.known.pop((holder, one), None)
        if request is None:
            self.say(events=[BlockEvicted(holder=holder, group=0, ids=(one,))])
        else:
            self.say(
                events=[
                    BlockInvalidated(
                        holder=holder,
                        group=0,
                        ids=(one,),
                        reason=InvalidateReason.DELETION,
                        request=request,
                    ),
                    *self.statements(),
                ]
            )

    def statements(self) -> list[DomainEvent]:
        return stated(self.copies, self.landing)

    def obey(self) -> None:
        """Removes, rejects, and acks as soon as nothing admitted before is running."""
        request = self.fleet.request
        if self.unwatched:
            return
        for (holder, one), known in sorted(self.known.items(), key=lambda item: item[0]):
            if known is None or known < request:
                self.end(holder, one, request=request)
        for transfer, (_, after) in sorted(self.landing.items()):
            if after < request and not self.fleet.strikes("tombstone_ignored"):
                del self.landing[transfer]
                self.say(events=[TransferRejected(transfer=transfer, request=request)])
        if not any(after < request for _, after in self.running) and not any(
            after < request for _, after in self.landing.values()
        ):
            self.ack()

    def ack(self) -> None:
        fleet = self.fleet
        if self.copies.old(fleet.request):
            fleet.lied = True
        self.acked = True
        due = fleet.nonce if fleet.nonce is not None and fleet.nonce <= self.installed else None
        standing = RequestStanding(request=fleet.request, removed=0, old_left=0)
        self.say(events=[*self.statements(), Ack(requests=(standing,), nonce=due)], signed=True)
        self.nonce = due

    def lose_words(self) -> None:
        """Tells that the engine's own records were lost, behind which only a look into the pool is sure."""
        self.say(EngineLoss(first_missing=self.seq))
        self.repair = True

    def inspect(self) -> None:
        """Learns what is really there; nobody knows the age of what it hadn't heard of."""
        there = {where for where, copies in self.copies.table.items() if copies}
        self.known = {where: self.known.get(where) for where in sorted(there)}
        self.unwatched = False

    def snapshot(self) -> None:
        """Restates both holders from what the hook believes, or after an engine loss from the pool."""
        fleet, name = self.fleet, f"s{self.seq}"
        self.repair = self.hole = False
        if self.known and not self.torn and fleet.strikes("laundered"):
            self.known = dict.fromkeys(self.known, self.installed)
        looked = self.unwatched
        if looked:
            self.inspect()
        begin = SnapshotBegin(
            snapshot=name, opened=self.opening(Inventory.PARTIAL), source="pool" if looked else None
        )
        self.say(begin, events=[PROFILE])
        for holder, _ in HOLDERS:
            runs = listed(holder, self.known, self.landing)
            mark = SnapshotRange(snapshot=name, holder=holder, group=0, low=LOW, high=HIGH)
            self.say(mark, events=[SnapshotPart(runs=tuple(runs))] if runs else ())
        known = tuple(HolderInventory(holder=name_, inventory=Inventory.KNOWN) for name_, _ in HOLDERS)
        self.say(SnapshotEnd(snapshot=name, inventories=known), signed=True)
        if self.acked:
            self.obey()
