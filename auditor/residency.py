"""Copies of one stream as the auditor keeps them: by (holder, group, alias), the oldest provenance kept.

A duplicate, however fresh, never makes a resident copy younger; only its removal ends it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from events.chain import MODULUS
from events.ids import CopyState, Inventory, Lineage, Tier
from events.model.part import CopyRun, SnapshotRange


class Place(NamedTuple):
    """One domain's copies on one holder and group."""

    holder: str
    group: int
    alias: bytes


@dataclass(slots=True)
class HeldCopy:
    """What is known of a copy; one object stands for all that an event brought in, so nobody changes one (freezing it
    would make its making three times as dear). `provenance` None is unknown;
    `doubted` says that a younger one than was known before is claimed, by somebody who could not have watched the
    copy all the time. `seq` and `installed` are of the record that stored it first: its number, and the newest order
    the hook had installed then."""

    profile: str | None
    number: int
    state: CopyState
    lineage: Lineage
    provenance: int | None
    seq: int
    installed: int
    transfer: str | None = None
    doubted: bool = False
    pinned: bool = False


def _merged(have: HeldCopy, copy: HeldCopy) -> HeldCopy:
    """A resident copy, after a duplicate of it was told of."""
    state = CopyState.COMMITTED if copy.state is CopyState.COMMITTED else have.state
    provenance = oldest(have.provenance, copy.provenance)
    doubted = have.doubted or copy.doubted
    if (state, provenance, doubted) == (have.state, have.provenance, have.doubted):
        return have
    return replace(have, state=state, provenance=provenance, doubted=doubted)


def _listed(have: HeldCopy, copy: HeldCopy, *, unwatched: bool, doubtful: bool) -> HeldCopy:
    """A resident copy that a snapshot lists: see `Tables.replace_range`."""
    state = copy.state
    if doubtful and (have.state, state) == (CopyState.UNCERTAIN, CopyState.COMMITTED):
        state = CopyState.UNCERTAIN
    age = oldest(have.provenance, copy.provenance)
    doubted = have.doubted or (unwatched and age != copy.provenance)
    if unwatched:
        return replace(copy, state=state, doubted=doubted, provenance=age)
    return replace(
        copy,
        state=state,
        doubted=doubted,
        provenance=age,
        seq=have.seq,
        installed=have.installed,
        lineage=have.lineage,
    )


def _derived(copy: HeldCopy) -> bool:
    """Whether a dated copy may have been made of one on another holder of its stream."""
    return copy.lineage not in (Lineage.PREFILL, Lineage.TRANSFER) and copy.provenance is not None


def oldest(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None else min(left, right)


@dataclass(slots=True)
class HolderView:
    """What the stream says of one holder. `base_seq` is the record from which its content is exactly known
    (`from_opened`: because it opened empty); None while it isn't. `base_installed` is the newest order installed
    then."""

    name: str
    tier: Tier
    durable_id: str | None
    groups: frozenset[int]
    inventory: Inventory
    base_seq: int | None = None
    base_installed: int = -1
    from_opened: bool = False
    cleared_seq: int | None = None
    cleared_installed: int = -1
    orphans: int = 0
    unassigned: int = 0
    lost: bool = False
    """Partial by a loss: only the pool itself, or a clear, ends that."""

    def lose_base(self) -> None:
        self.base_seq, self.from_opened = None, False


@dataclass(slots=True)
class Tables:
    """The copies. `shadow` holds what an earlier epoch of the same engine life left: memory that this
    epoch's hook did not watch from the start. `unverified` names blocks said to be removed by order while
    nobody could check it, until a clear or a fitting statement makes it certain."""

    places: dict[Place, dict[bytes, HeldCopy]] = field(default_factory=dict)
    shadow: dict[Place, dict[bytes, int | None]] = field(default_factory=dict)
    unverified: dict[Place, set[bytes]] = field(default_factory=dict)

    def claimed(self, admitted_after: int | None, installed: int) -> int | None:
        """What a record may claim: nobody who has installed the orders up to `installed` can tell that something was
        admitted behind a later one."""
        return None if admitted_after is None or admitted_after > installed else admitted_after

    def chain(self, place: Place, ids: Sequence[bytes], parent: bytes | None, copy: HeldCopy) -> None:
        """Stores ids that continue each other from `parent` (None: the profile's root), which no verdict needs."""
        del parent
        if not _derived(copy):
            self.put(place, ids, copy)
            return
        doubted = {block for block in ids if self.outlives(place, block, copy)}
        self.put(place, [block for block in ids if block not in doubted], copy)
        self.put(place, [block for block in ids if block in doubted], replace(copy, doubted=True))

    def listed(
        self, alias: bytes, run: CopyRun, mark: SnapshotRange, like: HeldCopy
    ) -> dict[tuple[bytes, bytes], HeldCopy]:
        """What a run of a snapshot lists within a range, by (alias, id)."""
        return {(alias, block): like for block in run.ids if mark.low <= block <= mark.high}

    def put(self, place: Place, ids: Sequence[bytes], copy: HeldCopy) -> None:
        """Stores the same of each block, or merges it into the resident copy."""
        table = self.places.setdefault(place, {})
        past, unverified = self.shadow.get(place), self.unverified.get(place)
        if not past and not unverified and table.keys().isdisjoint(ids):
            table.update(dict.fromkeys(ids, copy))
            return
        for block in ids:
            self._put(table, past or {}, unverified or frozenset(), block, copy)

    @staticmethod
    def _put(
        table: dict[bytes, HeldCopy],
        past: Mapping[bytes, int | None],
        unverified: Container[bytes],
        block: bytes,
        copy: HeldCopy,
    ) -> None:
        younger = (
            block in past
            and copy.provenance is not None
            and oldest(past[block], copy.provenance) != copy.provenance
        )
        if not copy.doubted and (younger or block in unverified):
            copy = replace(copy, doubted=True)
        have = table.get(block)
        table[block] = copy if have is None else _merged(have, copy)

    def outlives(self, place: Place, block: bytes, copy: HeldCopy) -> bool:
        """Whether a copy that wasn't computed here claims to be younger than one on another holder of the stream,
        of which it may have been made."""
        if not _derived(copy):
            return False

        def older(than: int | None) -> bool:
            return oldest(than, copy.provenance) != copy.provenance

        def beside(other: Place) -> bool:
            return other.alias == place.alias and other.holder != place.holder

        for other, table in self.places.items():
            have = table.get(block) if beside(other) else None
            if have is not None and (have.doubted or older(have.provenance)):
                return True
        return any(
            beside(other) and block in past and older(past[block]) for other, past in self.shadow.items()
        )

    def drop(self, place: Place, ids: Iterable[bytes]) -> None:
        """Ends copies; what isn't resident is a no-op."""
        table, past = self.places.get(place, {}), self.shadow.get(place)
        for block in ids:
            table.pop(block, None)
            if past:
                past.pop(block, None)

    def empty_holder(self, holder: str) -> None:
        for tables in (self.places, self.shadow, self.unverified):
            for place, content in tables.items():
                if place.holder == holder:
                    content.clear()

    def restate(self, place: Place, ids: Iterable[bytes], state: CopyState) -> None:
        table = self.places.get(place, {})
        like: tuple[HeldCopy, HeldCopy] | None = None
        for block in ids:
            have = table.get(block)
            if have is None or have.state is state:
                continue
            if like is None or like[0] is not have:
                like = have, replace(have, state=state)
            table[block] = like[1]

    def move(self, source: Place, target: Place, ids: Iterable[bytes]) -> None:
        """Moves resident copies with all their attributes."""
        table = self.places.get(source, {})
        moved = [(block, table[block]) for block in ids if block in table]
        self.drop(source, [block for block, _ in moved])
        for block, copy in moved:
            self.put(target, (block,), copy)

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
        """Makes one id range of a holder and group exactly `listed`, keyed (alias, id).

        A listed copy that was resident keeps its older provenance. Where nobody could watch it all the time
        (records are missing since: `torn`; or the engine's own were lost: `partial`), a younger claim makes
        it doubted: it may have gone and come back, or not. `doubtful`: the engine's own records were lost and
        the pool wasn't looked at, so that what was uncertain stays so.
        """
        low, high = bounds
        before: dict[tuple[bytes, bytes], HeldCopy] = {}
        for place, table in self.places.items():
            if place[:2] == (holder, group):
                for block in [b for b in table if low <= b <= high]:
                    before[place.alias, block] = table.pop(block)
        unwatched, known = torn or partial, dict[tuple[int, int], HeldCopy]()
        for (alias, block), said in listed.items():
            place, have = Place(holder, group, alias), before.get((alias, block))
            copy = said
            if have is not None:
                pair = id(have), id(said)  # few pairs differ: what came together shares one object
                if pair not in known:
                    known[pair] = _listed(have, said, unwatched=unwatched, doubtful=doubtful)
                copy = known[pair]
            if (have is None or unwatched) and self.outlives(place, block, copy):
                copy = replace(copy, doubted=True)
            self.put(place, (block,), copy)
        for place, past in self.shadow.items():
            if place[:2] == (holder, group):
                for block in [b for b in past if low <= b <= high]:
                    del past[block]

    def verify(self, place: Place) -> None:
        """A statement fitted an exact table: what isn't in it isn't there."""
        if place in self.unverified:
            self.unverified[place] &= self.places.get(place, {}).keys()

    def inventory(self, place: Place) -> tuple[int, bytes]:
        """Count and sum of ids mod 2^128 over all copies but invalid ones, as a `statement` gives them."""
        invalid = CopyState.INVALID
        ids = [block for block, copy in self.places.get(place, {}).items() if copy.state is not invalid]
        return len(ids), (sum(map(int.from_bytes, ids)) % MODULUS).to_bytes(16, "big")
