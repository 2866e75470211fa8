"""What one stream has declared and holds: holders, profiles, copies, and transfers on their way.

It takes facts in as they are told; whether a record may tell them is `auditor.legality`'s, what a missing
one means is `auditor.fold`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, assert_never

from auditor.record import StreamRecord
from auditor.residency import HeldCopy, HolderView, Place, Tables, oldest
from events.chain import transfer_digest
from events.identity import profile_digest
from events.ids import CopyState, EvictReason, Inventory, Lineage
from events.model.part import (
    Ack,
    BlockEvicted,
    BlockInvalidated,
    BlockStored,
    DomainEvent,
    HolderDeclared,
    Opened,
    ProfileDeclared,
    ProfileRetired,
    Refused,
    SnapshotPart,
    SnapshotRange,
    Statement,
    TierChanged,
    TransferAborted,
    TransferCommitted,
    TransferRejected,
    TransferStarted,
)


class Landing(NamedTuple):
    """Copies that a record brought in, with the provenance it claims for them."""

    event: str
    place: Place
    ids: tuple[bytes, ...]
    provenance: int | None


class OpenTransfer(NamedTuple):
    place: Place
    provenance: int | None
    seq: int
    ids: tuple[bytes, ...]
    begun: int = 1
    """How often it was started since it was last over: so many ends end it."""


Moving = tuple[str, Place]
"""A transfer by its name and where it goes: one name may stand for several groups, and in each domain for another."""


@dataclass(slots=True)
class Content:
    """Of one stream. Profiles go by (alias, number)."""

    holders: dict[str, HolderView] = field(default_factory=dict)
    declared_holders: dict[str, HolderDeclared] = field(default_factory=dict)
    profiles: dict[tuple[bytes, int], str] = field(default_factory=dict)
    declarations: dict[tuple[bytes, int], ProfileDeclared] = field(default_factory=dict)
    retired: set[tuple[bytes, int]] = field(default_factory=set)
    tables: Tables = field(default_factory=Tables)
    transfers: dict[Moving, OpenTransfer] = field(default_factory=dict)

    def declare(self, event: Opened, seq: int | None, installed: int = -1) -> None:
        """Takes the holders in; `seq` and `installed` are those of a stream's birth, None and nothing when a snapshot
        repeats them."""
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
                view.base_installed = known.base_installed
                view.cleared_seq, view.cleared_installed = known.cleared_seq, known.cleared_installed
                view.orphans, view.unassigned = known.orphans, known.unassigned
                view.lost = known.lost
                if view.groups - known.groups:
                    view.lose_base()  # what it holds of a group that is new here nobody has told
            elif seq is not None and holder.inventory is Inventory.EMPTY:
                view.base_seq, view.base_installed, view.from_opened = seq, installed, True
            self.holders[holder.name] = view

    def doubt(self, holder: HolderView) -> None:
        """What the holder has may be gone, and there may be more."""
        holder.inventory, holder.lost = Inventory.PARTIAL, True
        holder.lose_base()
        for place, table in self.tables.places.items():
            if place.holder == holder.name:
                self.tables.restate(place, list(table), CopyState.UNCERTAIN)

    def take(self, alias: bytes, event: DomainEvent, seq: int, installed: int, landed: list[Landing]) -> None:
        """Folds one fact of a domain; appends to `landed` what came in by it."""
        match event:
            case BlockStored():
                place = Place(event.holder, event.group, alias)
                if not self._declared(place, event.profile):  # that was told in what is missing
                    since = self.tables.claimed(event.admitted_after, installed)
                    landed.append(Landing(event.type, place, event.ids, since))
                    return
                self._land(landed, event, place, event.lineage, CopyState.COMMITTED, None, seq, installed)
            case BlockEvicted():
                place = Place(event.holder, event.group, alias)
                if event.certain:
                    expires = event.reason is EvictReason.EXPIRED
                    expired = self._under_way(place, event.ids) if expires else {}
                    self.tables.drop(place, event.ids)
                    self._expire_transfers(place, expired)
                else:
                    self.tables.restate(place, event.ids, CopyState.UNCERTAIN)
            case ProfileDeclared():
                self.profiles[alias, event.profile] = profile_digest(event.content)
                self.declarations[alias, event.profile] = event
                self.retired.discard((alias, event.profile))
            case ProfileRetired():
                if (alias, event.profile) in self.profiles:
                    self.retired.add((alias, event.profile))
                for place, blocks in self._under_profile(alias, event.profile):
                    self.tables.drop(place, blocks)
            case TransferStarted():
                place = Place(event.holder, event.group, alias)
                if not self._declared(place, event.profile):
                    return
                self._start(
                    event.transfer,
                    place,
                    self.tables.claimed(event.admitted_after, installed),
                    seq,
                    event.ids,
                )
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
                ended = self._end(alias, event.transfer)
                places = {one.place: self._landing(one.place, event.transfer) for one in ended}
                written = event.digest == transfer_digest([block for ids in places.values() for block in ids])
                to = CopyState.COMMITTED if written else CopyState.UNCERTAIN
                for transfer in ended:
                    self.tables.restate(transfer.place, places[transfer.place], to)
                    landed.append(Landing(event.type, transfer.place, transfer.ids, transfer.provenance))
            case TransferAborted() | TransferRejected():
                for transfer in self._end(alias, event.transfer):
                    if transfer.begun == 1:
                        self.tables.drop(transfer.place, self._landing(transfer.place, event.transfer))
            case BlockInvalidated():
                place = Place(event.holder, event.group, alias)
                self.tables.drop(place, event.ids)
                holder = self.holders.get(event.holder)
                if holder is None or holder.base_seq is None:
                    self.tables.unverified.setdefault(place, set()).update(event.ids)
            case TierChanged():
                source = Place(event.from_holder, event.group, alias)
                target = Place(event.to_holder, event.group, alias)
                if self._declared(source) and self._declared(target):
                    if self.holders[event.from_holder].durable_id is not None:
                        landed += self._moved(source, target, event.ids)
                    self.tables.move(source, target, event.ids)
            case SnapshotPart() | Statement() | Ack() | Refused():
                return
            case _:
                assert_never(event)

    def listing(
        self, mark: SnapshotRange, record: StreamRecord, landed: list[Landing], pending: set[str]
    ) -> tuple[dict[tuple[bytes, bytes], HeldCopy], bool]:
        """What a record lists within its range, by (alias, id), and whether all of its profiles are known;
        appends to `landed` what lies there and to `pending` the transfers under way."""
        seq, installed = record.header.seq, record.header.control.offset
        known = True
        listed: dict[tuple[bytes, bytes], HeldCopy] = {}
        for alias, events in record.parts.items():
            for run in (run for event in events if isinstance(event, SnapshotPart) for run in event.runs):
                profile = self.profiles.get((alias, run.profile))
                since = self.tables.claimed(run.admitted_after, installed)
                if profile is None:
                    known = False
                    inside = tuple(block for block in run.ids if mark.low <= block <= mark.high)
                    place = Place(mark.holder, mark.group, alias)
                    if run.state is not CopyState.PENDING:
                        landed.append(Landing("snapshot_part", place, inside, since))
                    continue
                like = HeldCopy(
                    profile,
                    run.profile,
                    run.state,
                    run.lineage,
                    since,
                    seq,
                    installed,
                    run.transfer,
                    pinned=run.pinned,
                )
                told = self.tables.listed(alias, run, mark, like)
                listed.update(told)
                place = Place(mark.holder, mark.group, alias)
                if run.transfer is not None and run.state is CopyState.PENDING:
                    pending.add(run.transfer)
                    moving = OpenTransfer(place, since, seq, run.ids)
                    self.transfers.setdefault((run.transfer, place), moving)
                if run.state is CopyState.PENDING:
                    continue
                landed.append(Landing("snapshot_part", place, tuple(block for _, block in told), since))
        return listed, known

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
        since = self.tables.claimed(event.admitted_after, installed)
        like = HeldCopy(
            profile,
            event.profile,
            state,
            lineage,
            since,
            seq,
            installed,
            transfer,
            pinned=isinstance(event, BlockStored) and event.pinned,
        )
        self.tables.chain(place, event.ids, event.parent, like)
        landed.append(Landing(event.type, place, event.ids, since))

    def _start(
        self, name: str, place: Place, provenance: int | None, seq: int, ids: tuple[bytes, ...]
    ) -> None:
        """A transfer begins. One that is open under this name there hasn't ended because another begins, nor will it
        when that one does."""
        open_, begun = self.transfers.get((name, place)), 1
        if open_ is not None:
            provenance, seq = oldest(open_.provenance, provenance), open_.seq
            ids, begun = tuple(dict.fromkeys((*open_.ids, *ids))), open_.begun + 1
        self.transfers[name, place] = OpenTransfer(place, provenance, seq, ids, begun)

    def _under_profile(self, alias: bytes, number: int) -> list[tuple[Place, list[bytes]]]:
        return [
            (place, [block for block, copy in table.items() if copy.number == number])
            for place, table in self.tables.places.items()
            if place.alias == alias
        ]

    def of_profile(self, alias: bytes, number: int) -> dict[str, int]:
        """By holder: how many copies of a profile lie there. What is on its way doesn't yet."""
        found: dict[str, int] = {}
        for place, blocks in self._under_profile(alias, number):
            table = self.tables.places[place]
            count = sum(table[block].state is not CopyState.PENDING for block in blocks)
            found[place.holder] = found.get(place.holder, 0) + count
        return found

    def under(self, alias: bytes, name: str) -> list[OpenTransfer]:
        """What is on its way under a name in one domain."""
        return [
            one for (known, place), one in self.transfers.items() if known == name and place.alias == alias
        ]

    def _end(self, alias: bytes, name: str) -> list[OpenTransfer]:
        """Takes one end of a name in: what is on its way under it, those that aren't over (`begun` above 1) too."""
        ended = self.under(alias, name)
        for one in ended:
            del self.transfers[name, one.place]
            if one.begun > 1:
                self.transfers[name, one.place] = one._replace(begun=one.begun - 1)
        return ended

    def _moved(self, source: Place, target: Place, ids: Iterable[bytes]) -> list[Landing]:
        """What a move brings out of a durable store, by its age: others may have put it there."""
        table = self.tables.places.get(source, {})
        found: dict[int | None, list[bytes]] = {}
        for block in ids:
            copy = table.get(block)
            if copy is not None:
                found.setdefault(None if copy.doubted else copy.provenance, []).append(block)
        return [Landing("tier_changed", target, tuple(blocks), since) for since, blocks in found.items()]

    def _declared(self, place: Place, number: int | None = None) -> bool:
        """Whether the stream has declared the place, and the profile number there: behind a hole it may not
        have."""
        holder = self.holders.get(place.holder)
        known = holder is not None and place.group in holder.groups
        return known and (number is None or (place.alias, number) in self.profiles)

    def _under_way(self, place: Place, ids: Iterable[bytes]) -> dict[str, set[bytes]]:
        """Those of these ids that are pending, by their transfers."""
        table = self.tables.places.get(place, {})
        found: dict[str, set[bytes]] = {}
        for block in ids:
            copy = table.get(block)
            if copy is not None and copy.state is CopyState.PENDING and copy.transfer is not None:
                found.setdefault(copy.transfer, set()).add(block)
        return found

    def _expire_transfers(self, place: Place, expired: Mapping[str, set[bytes]]) -> None:
        """What expired of a transfer is no longer on its way; it is over once all else of it is resident. A clear, a
        removal, and what expires of others say nothing of what is still on its way: such a transfer stays open."""
        table = self.tables.places.get(place, {})
        for name, blocks in expired.items():
            open_ = self.transfers.get((name, place))
            if open_ is None or open_.begun > 1:
                continue
            ids = tuple(block for block in open_.ids if block not in blocks)
            if all(block in table and table[block].state is not CopyState.PENDING for block in ids):
                del self.transfers[name, place]
            else:
                self.transfers[name, place] = open_._replace(ids=ids)

    def end_transfers(self, holder: str, before: int, pending: set[str]) -> None:
        """Records are missing, and a snapshot that began in record `before` listed all that the holder has: of
        the older transfers those that aren't `pending` ended in what is missing."""
        for moving, transfer in list(self.transfers.items()):
            if transfer.place.holder == holder and transfer.seq < before and moving[0] not in pending:
                del self.transfers[moving]

    def _landing(self, place: Place, transfer: str) -> list[bytes]:
        return [
            block
            for block, copy in self.tables.places.get(place, {}).items()
            if copy.transfer == transfer and copy.state is CopyState.PENDING
        ]
