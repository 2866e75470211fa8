"""Copies of one stream as the index has to hold them: as last told, with the record that last touched each.

`auditor.residency` keeps the oldest provenance, for a verdict; rows keep what was said. The rules are those of
docs/fold.md, written apart from the fold that they check. An id belongs to one domain: a stream that says one id
under two aliases is read differently here and by the index, and shows as a finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from auditor.residency import HeldCopy, Place, Tables, oldest
from events.ids import ROOT_PARENT, CopyState
from events.model.part import CopyRun, SnapshotRange

LEAST_BOUND = 65_536
BOUND_PER_CAPACITY = 4
STREAM_BOUND = 16_777_216
"""The bounds of docs/fold.md, «Bounds»."""
REMEMBERED_ENDS = 65_536
"""Of one stream: copies that ended, remembered with the record that ended them."""


@dataclass(slots=True)
class RowCopy(HeldCopy):
    """`since` is the offset of the record that stored it, `touched` of the last one that changed anything."""

    parent: bytes = ROOT_PARENT
    since: int = 0
    touched: int = 0

    def attributes(self) -> tuple[object, ...]:
        """Everything that a row says of it but its begin."""
        return (self.parent, *self.shared())

    def shared(self) -> tuple[object, ...]:
        """What many copies share, without the alias, in the order of the index's attributes."""
        return self.number, self.state, self.lineage, self.provenance, self.pinned, self.transfer


@dataclass(slots=True)
class RowTables(Tables):
    """`offset` is that of the record under the fold; `capacity` what the stream declared for a holder.
    `overflow` counts copies that weren't kept at a bound."""

    offset: int = 0
    capacity: dict[str, int | None] = field(default_factory=dict)
    overflow: int = 0
    ended: dict[tuple[str, int, bytes], int] = field(default_factory=dict)
    _sizes: dict[tuple[str, int], int] = field(default_factory=dict)
    """At least how many copies a holder's group has; counted again where it meets the bound."""

    def claimed(self, admitted_after: int | None, installed: int) -> int | None:
        del installed
        return admitted_after

    def put(self, place: Place, ids: Sequence[bytes], copy: HeldCopy) -> None:
        """Stores copies of one parent; a resident one only gets more certain, older and pinned."""
        for block in ids:
            self._put_one(place, block, copy, _parent(copy))

    def chain(self, place: Place, ids: Sequence[bytes], parent: bytes | None, copy: HeldCopy) -> None:
        before = ROOT_PARENT if parent is None else parent
        for block in ids:
            self._put_one(place, block, copy, before)
            before = block

    def listed(
        self, alias: bytes, run: CopyRun, mark: SnapshotRange, like: HeldCopy
    ) -> dict[tuple[bytes, bytes], HeldCopy]:
        return {
            (alias, block): self._row(like, parent)
            for block, parent in zip(run.ids, run.parents, strict=True)
            if mark.low <= block <= mark.high
        }

    def _put_one(self, place: Place, block: bytes, copy: HeldCopy, parent: bytes) -> None:
        table = self.places.setdefault(place, {})
        have = table.get(block)
        if have is None:
            if self._room(place):
                table[block] = self._row(copy, parent)
            else:
                self.overflow += 1
            return
        state = CopyState.COMMITTED if CopyState.COMMITTED in (have.state, copy.state) else have.state
        age, pinned = oldest(have.provenance, copy.provenance), have.pinned or copy.pinned
        if (state, age, pinned) != (have.state, have.provenance, have.pinned):
            assert isinstance(have, RowCopy)
            table[block] = replace(have, state=state, provenance=age, pinned=pinned, touched=self.offset)

    def _row(self, copy: HeldCopy, parent: bytes) -> RowCopy:
        return RowCopy(
            copy.profile, copy.number, copy.state, copy.lineage, copy.provenance,
            copy.seq, copy.installed, copy.transfer, pinned=copy.pinned,
            parent=parent, since=self.offset, touched=self.offset,
        )  # fmt: skip

    def drop(self, place: Place, ids: Iterable[bytes]) -> None:
        """Ends copies; what isn't resident is a no-op."""
        table = self.places.get(place, {})
        for block in ids:
            if table.pop(block, None) is not None:
                self._end(place, block)

    def empty_holder(self, holder: str) -> None:
        for place, table in self.places.items():
            if place.holder == holder:
                self.drop(place, list(table))

    def restate(self, place: Place, ids: Iterable[bytes], state: CopyState) -> None:
        table = self.places.get(place, {})
        for block in ids:
            copy = table.get(block)
            if copy is not None and copy.state is not state:
                assert isinstance(copy, RowCopy)
                table[block] = replace(copy, state=state, touched=self.offset)

    def replace_range(
        self,
        holder: str,
        group: int,
        bounds: tuple[bytes, bytes],
        listed: dict[tuple[bytes, bytes], HeldCopy],
        *,
        torn: bool,
        partial: bool,
        doubtful: bool,
    ) -> None:
        """Makes one id range of a holder and group exactly what is `listed`; what is the same stays untouched."""
        del torn, partial
        low, high = bounds
        for place, table in self.places.items():
            if place[:2] != (holder, group):
                continue
            for block in [b for b in table if low <= b <= high]:
                key = (place.alias, block)
                have, told = table[block], listed.get(key)
                if (
                    told is not None
                    and doubtful
                    and (have.state, told.state) == (CopyState.UNCERTAIN, CopyState.COMMITTED)
                ):
                    listed[key] = told = replace(told, state=CopyState.UNCERTAIN)
                if told is None or _attributes(have) != _attributes(told):
                    self.drop(place, [block])
        for (alias, block), told in listed.items():
            place = Place(holder, group, alias)
            if block not in self.places.get(place, {}):
                self.put(place, (block,), told)

    def free(self, holder: str) -> None:
        """Gives up a holder's copies without a record that ended them."""
        for place in [place for place in self.places if place.holder == holder]:
            del self.places[place]

    def _end(self, place: Place, block: bytes) -> None:
        key = (place.holder, place.group, block)
        self.ended.pop(key, None)
        self.ended[key] = self.offset
        if len(self.ended) > REMEMBERED_ENDS:
            del self.ended[next(iter(self.ended))]

    def _room(self, place: Place) -> bool:
        where = place[:2]
        size, capacity = self._sizes.get(where, 0), self.capacity.get(place.holder)
        bound = STREAM_BOUND if capacity is None else max(LEAST_BOUND, BOUND_PER_CAPACITY * capacity)
        if size >= bound:
            size = sum(len(table) for held, table in self.places.items() if held[:2] == where)
        self._sizes[where] = size + 1 if size < bound else size
        return size < bound and (sum(self._sizes.values()) <= STREAM_BOUND or self._copies() < STREAM_BOUND)

    def _copies(self) -> int:
        for where in self._sizes:
            self._sizes[where] = sum(len(table) for held, table in self.places.items() if held[:2] == where)
        return sum(len(table) for table in self.places.values())


def _parent(copy: HeldCopy) -> bytes:
    return copy.parent if isinstance(copy, RowCopy) else ROOT_PARENT


def _attributes(copy: HeldCopy) -> tuple[object, ...]:
    assert isinstance(copy, RowCopy)
    return copy.attributes()
