"""A hook of a simulated fleet under audit: physical truth beside the light records that it writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from auditor.record import StreamRecord
from auditor.registry import ControlFold
from events.chain import MODULUS, sha256
from events.ids import Capability, CopyState, GroupKind, InvalidateReason, Inventory, Lineage, Tier
from events.model.batch import ControlPosition, Header, PartRef
from events.model.part import (
    Ack,
    BlockEvicted,
    BlockInvalidated,
    BlockStored,
    CopyRun,
    DomainEvent,
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
from tests.support.light_log import LightSigner
from tests.support.log import HIGH, LOW, declared

GROUP = Group(index=0, kind=GroupKind.FULL, block_tokens=16)
HOLDERS = (("gpu", Tier.GPU), ("cpu", Tier.CPU))
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

    def chance(self, probability: float) -> bool: ...

    def evidence_feed(self, record: StreamRecord) -> None: ...


@dataclass
class Copies:
    """What a life really holds: admissions of the physical copies by (holder, block)."""

    table: dict[tuple[str, bytes], list[int]] = field(default_factory=dict)

    def old(self, request: int) -> bool:
        return any(after < request for copies in self.table.values() for after in copies)


@dataclass
class Hook:
    """One epoch of one engine life: `known` is what the hook believes, which a bug may bend."""

    fleet: Surroundings
    worker: str
    life: str
    epoch: str
    epoch_no: int
    copies: Copies
    known: dict[tuple[str, bytes], int] = field(default_factory=dict)
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
    sure: bool = False
    waiting: list[StreamRecord] = field(default_factory=list)
    alias: bytes = b""

    def say(
        self, *stream_events: StreamEvent, events: Sequence[DomainEvent] = (), signed: bool = False
    ) -> None:
        """Numbers a record; it may be lost on the way."""
        fleet = self.fleet
        name = self.alias
        refs = [PartRef.model_construct(alias=None, sha256=bytes(32), events=len(stream_events))]
        if events:
            refs.append(PartRef.model_construct(alias=name, sha256=bytes(32), events=len(events)))
        position = min(self.installed, fleet.registry.next_offset - 1)
        seen = fleet.registry.hashes.get(position, bytes(32))
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
        )
        self.seq += 1
        if self.seq > 1 and not self.sure and fleet.chance(fleet.faults.lost):
            self.repair, self.torn = self.repair or fleet.chance(0.7), True
            return
        self.prev = record.header_sha256
        self.waiting.append(record)
        if fleet.chance(fleet.faults.repeated):
            self.waiting.append(record)

    def flush(self) -> None:
        if not self.cut:
            for record in self.waiting:
                self.fleet.evidence_feed(record)
            self.waiting.clear()

    def opening(self, inventory: Inventory) -> Opened:
        return Opened(
            engine_life=self.life,
            engine="sim",
            engine_version="1",
            removal=Capability.EVICT_BLOCKS,
            admission_known=True,
            holders=tuple(
                HolderDeclared(name=name, tier=tier, groups=(GROUP,), inventory=inventory)
                for name, tier in HOLDERS
            ),
        )

    def land(self, holder: str, one: bytes, after: int, lineage: Lineage) -> None:
        """A physical copy more, and the record of it."""
        fleet = self.fleet
        if holder == "gpu" and any(one == coming for coming, _ in self.landing.values()):
            return
        if self.hides(holder, one):
            return
        self.copies.table.setdefault((holder, one), []).append(after)
        if self.acked and after < fleet.request:
            fleet.returned = True
        bug = fleet.chance(fleet.faults.silent) and not self.acked
        if bug:
            return
        believed = self.known.get((holder, one))
        launder = believed is not None and fleet.chance(fleet.faults.laundered)
        self.known[holder, one] = after if believed is None or launder else min(believed, after)
        stored = BlockStored(
            holder=holder, group=0, profile=0, ids=(one,), lineage=lineage, admitted_after=after
        )
        self.say(events=[stored])

    def hides(self, holder: str, one: bytes) -> bool:
        """Whether a bug left a copy here that the hook doesn't know of: the engine hits it and computes no
        duplicate. With one, a liar's old copy would lie under a fresh one's id for ever."""
        return (holder, one) not in self.known and bool(self.copies.table.get((holder, one)))

    def end(self, holder: str, one: bytes, *, request: int | None = None) -> None:
        """Every physical copy of a block goes, unless a bug keeps one; the record says that all went."""
        fleet = self.fleet
        kept = request is not None and fleet.chance(fleet.faults.kept)
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
        """From the pool: what is really there."""
        found: list[DomainEvent] = []
        for holder, _ in HOLDERS:
            ids = {one for (name, one), copies in self.copies.table.items() if name == holder and copies}
            ids |= {one for one, _ in self.landing.values()} if holder == "gpu" else set()
            total = sum(int.from_bytes(one, "big") for one in ids) % MODULUS
            found.append(
                Statement(
                    holder=holder, group=0, count=len(ids), checksum=total.to_bytes(16, "big"), source="pool"
                )
            )
        return found

    def obey(self) -> None:
        """Removes, rejects, and acks as soon as nothing admitted before is running."""
        request = self.fleet.request
        for (holder, one), after in sorted(self.known.items()):
            if after < request:
                self.end(holder, one, request=request)
        for transfer, (_, after) in sorted(self.landing.items()):
            if after < request and not self.fleet.chance(self.fleet.faults.tombstone_ignored):
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

    def snapshot(self) -> None:
        """Restates both holders from what the hook believes."""
        fleet, name = self.fleet, f"s{self.seq}"
        if not self.torn and fleet.chance(fleet.faults.laundered):
            self.known = dict.fromkeys(self.known, self.installed)
        self.say(SnapshotBegin(snapshot=name, opened=self.opening(Inventory.PARTIAL)), events=[PROFILE])
        for holder, _ in HOLDERS:
            runs = [
                CopyRun(
                    profile=0,
                    admitted_after=after,
                    ids=(one,),
                    parents=(bytes(16),),
                )
                for (where, one), after in self.known.items()
                if where == holder and one not in {b for b, _ in self.landing.values()}
            ]
            runs += [
                CopyRun(
                    profile=0,
                    state=CopyState.PENDING,
                    admitted_after=after,
                    transfer=transfer,
                    ids=(one,),
                    parents=(bytes(16),),
                )
                for transfer, (one, after) in self.landing.items()
                if holder == "gpu"
            ]
            mark = SnapshotRange(snapshot=name, holder=holder, group=0, low=LOW, high=HIGH)
            self.say(mark, events=[SnapshotPart(runs=tuple(runs))] if runs else ())
        known = tuple(HolderInventory(holder=name_, inventory=Inventory.KNOWN) for name_, _ in HOLDERS)
        self.say(SnapshotEnd(snapshot=name, inventories=known), signed=True)
        self.repair = False
        if self.acked:
            self.obey()
