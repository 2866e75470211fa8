"""`EngineStream`: one engine rank's events in the log's words, and the inventory that they leave. Pure.

No clock, no I/O; tokens and salts are dropped once a block has its id. An engine's hash leads to a block id
as long as a copy of it exists, and for a bounded number of hashes after that (`engine_identity.HashMap`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace

from events.hooks.deletion_scope import ScopedCopy, copies_in_scope, is_old, standings
from events.hooks.domain_book import BoundSalts, DomainBook
from events.hooks.engine_config import EngineConfig
from events.hooks.engine_event import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineBatch,
    EngineHash,
    MalformedEvent,
    UnknownEvent,
)
from events.hooks.engine_identity import HashMap, Node
from events.hooks.holder_book import TIERS, HolderBook, tier_of
from events.hooks.inspection import PoolReader, Resident
from events.hooks.inventory_bound import InventoryBound, StreamBounds
from events.hooks.inventory_snapshot import snapshot_records
from events.hooks.inventory_statement import pulse_checksums, statements
from events.hooks.removal import RemovalReader
from events.hooks.store import StoreReader
from events.hooks.translation import Draft, Translation, invalidated
from events.ids import Capability, EvictReason, InvalidateReason, Tier
from events.keyring import KeyRing
from events.model.control import Scope
from events.model.part import (
    Cleared,
    EngineLoss,
    Opened,
    Orphans,
    ProfileRetired,
    RequestStanding,
    SnapshotBegin,
    Statement,
)
from events.model.signal import PulseChecksum


def _no_bound_salts() -> Mapping[bytes, str]:
    return {}


class EngineStream:
    """State of one (worker, rank). Call `open` first, then `translate` for every batch in the engine's order.

    What a method returns has already happened here: each result must be written, in the order of the calls,
    or the stream be restated by `snapshot`; one that is `epoch_due` must not be written, but another epoch be
    opened and restated. Not thread-safe.
    """

    def __init__(
        self,
        worker: str,
        rank: int,
        keyring: KeyRing,
        config: EngineConfig,
        *,
        bound_salts: BoundSalts = _no_bound_salts,
    ) -> None:
        self.worker = worker
        self.rank = rank
        self.engine_life = ""
        self._config = config
        self._book = DomainBook(keyring, config, bound_salts)
        self._hashes = HashMap(self._book, config.hashes_remembered)
        self._holders = HolderBook(config)
        self._removals = RemovalReader(self._holders, self._hashes)
        self._stores = StoreReader(self._holders, self._hashes, computes_all=not config.connectors)
        self._pool = PoolReader(self._holders, self._hashes, self._stores)
        self._bound = InventoryBound(config, self._holders, self._hashes, self._book)
        self._of_pool = False
        self._restatements = 0

    def open(self, engine_life: str, *, from_birth: bool = True) -> Opened:
        """Record 0 of an epoch.

        Another engine life than before: everything held is forgotten. The same: the inventory is kept, and
        a `snapshot` must follow. `from_birth` False: the events before the first to be translated are not
        to be had, so nobody knows what the engine holds.
        """
        if engine_life != self.engine_life:
            if self.engine_life:
                self._hashes.clear()
                self._book.clear()
                self._holders.reset()
            self._of_pool = False
            self.engine_life = engine_life
            if not from_birth:
                for holder in self._holders.holders():
                    holder.partial = True
        self._book.keep(self._hashes.chains())
        self._book.declare_again()
        self._holders.new_epoch()
        for holder in self._holders.holders():
            holder.told = (0, 0)
        return self._opened(opening=True)

    def learn(self, batches: Iterable[EngineBatch]) -> None:
        """Hear of holders and groups before `open`, so that record 0 declares them. Changes nothing else."""
        for batch in batches:
            for event in batch.events:
                if isinstance(event, BlockStored):
                    self._holders.table_of(event)

    def translate(self, batch: EngineBatch, admitted_after: int | None) -> Translation:
        """The meaning of one engine batch; `admitted_after` is the newest control offset installed when its
        blocks were admitted, None if nobody knows."""
        draft = Draft()
        conflicts = self._hashes.conflicts
        identified = self._identify_first(batch)
        for index, event in enumerate(batch.events):
            match event:
                case BlockStored():
                    self._stored(draft, event, admitted_after, identified.get(index))
                    if self._hashes.conflicts != conflicts:
                        conflicts = self._hashes.conflicts
                        self._unreadable(draft, batch, "conflicting block hashes", 0, loses=True)
                case BlockRemoved():
                    if not self._removals.read(draft, event):
                        medium = (event.medium or "")[:40]
                        draft.flag(f"removed: medium {medium!a}", 8 * len(event.hashes))
                case AllBlocksCleared():
                    self._cleared(draft, event)
                case UnknownEvent():
                    self._unreadable(draft, batch, event.kind, event.length, loses=False)
                case MalformedEvent():
                    what = f"malformed {event.kind}: {event.reason}"
                    self._unreadable(draft, batch, what, 0, loses=event.kind != "batch")
        self._bound.keep(draft)
        self._tell(draft)
        return draft.finish()

    def lost(self, first: int, last: int | None) -> EngineLoss:
        """The engine's records `first`…`last` can't be had: all that is held becomes uncertain, all holders
        partial. Write the result before anything that is translated later."""
        self._of_pool = False
        for holder in self._holders.holders():
            holder.partial = True
        for table in self._holders.tables():
            for copy in table.every_copy():
                table.doubt(copy)
        return EngineLoss(first_missing=first, last_missing=last)

    def whole(self) -> None:
        """Nothing of this engine life was translated yet, and all of it will be, from its first record on:
        the volatile holders are empty, not partial. Another `open` of the same life must follow."""
        for holder in self._holders.holders():
            holder.partial = holder.durable_id is not None

    def removed(
        self,
        hashes: Iterable[EngineHash],
        request: int | None,
        *,
        reason: InvalidateReason = InvalidateReason.DELETION,
        tier: Tier = Tier.GPU,
    ) -> Translation:
        """Every physical block of these hashes was taken out of the tier on order. Unknown ones are no-ops,
        and so is what the engine itself says of it later. Orphans go silently, their counts are told."""
        draft = Draft()
        gone = self._removals.take_out(hashes, tier)
        self._hashes.trim()
        self._tell(draft)
        translation = draft.finish()
        for (domain, holder, group), ids in gone.items():
            translation.parts.setdefault(domain, []).extend(invalidated(holder, group, ids, reason, request))
        return translation

    def doubtful(self) -> bool:
        """Whether an inspection of the engine's pool would teach something: its inventory is partial, or a copy
        may be gone."""
        return self._pool.doubtful()

    def inspected(self, resident: Resident) -> Translation:
        """The engine's pool was looked at after the last batch that was translated, and before any later one:
        nothing of the GPU is uncertain or partial afterwards, and what it doesn't hold is gone. A snapshot is
        due if that has changed anything else."""
        draft = Draft()
        self._pool.read(draft, resident)
        self._of_pool = True
        self._hashes.trim()
        self._tell(draft)
        return draft.finish()

    def reachable_by(self, removal: Capability, *, admission_known: bool) -> bool:
        """Another way to the engine than was declared: told by the next `open`, which must follow if True."""
        config = replace(self._config, removal=removal, admission_known=admission_known)
        changed, self._config = config != self._config, config
        return changed

    def snapshot(self, name: str) -> Iterator[Translation]:
        """The whole inventory, a record at a time, each as of the moment it is taken: write it before the
        next `translate`. One at a time; an abandoned one costs nothing."""
        return snapshot_records(
            name, self._holders, self._book, self._hashes, self._opened, of_pool=self._of_pool
        )

    def in_scope(self, scope: Scope, domains: Iterable[str]) -> tuple[ScopedCopy, ...]:
        """All copies that the scope reaches in `domains` (those that it covers), and all without id."""
        return tuple(copies_in_scope(self._holders.tables(), scope, domains))

    def old(
        self, request: int, scope: Scope, domains: Iterable[str], *, barrier: bool = False
    ) -> Iterator[ScopedCopy]:
        """Lazily, those of `in_scope` that are from before the request; see `deletion_scope.is_old`. Stop
        reading before anything else is called."""
        for copy in copies_in_scope(self._holders.tables(), scope, domains):
            if is_old(copy.admitted_after, request, computed=copy.computed, barrier=barrier):
                yield copy

    def standing(
        self,
        request: int,
        scope: Scope,
        domains: Sequence[str],
        removed: Mapping[str, int],
        *,
        barrier: bool = False,
    ) -> dict[str, RequestStanding]:
        """How an installed request stands by what is held now, by domain."""
        return standings(request, self.old(request, scope, domains, barrier=barrier), domains, removed)

    def foreign_landings(self) -> Set[str]:
        """Domains in which copies landed, since the last call, that may not have been computed here."""
        landed, self._stores.foreign = self._stores.foreign, set()
        return landed

    def checksums(self) -> tuple[PulseChecksum, ...]:
        """Inventory of each holder and group over all domains."""
        return pulse_checksums(self._holders.tables())

    def statements(self) -> dict[str, list[Statement]]:
        """Inventory of each holder and group by domain; one that has become empty is stated once more."""
        return statements(self._holders.tables())

    def orphan_counts(self) -> tuple[int, int]:
        """(orphans, unassigned) over all holders."""
        holders = self._holders.holders()
        return sum(holder.orphans for holder in holders), sum(holder.unassigned for holder in holders)

    def inventory_known(self) -> bool:
        """Whether no holder is partial."""
        return not any(holder.partial for holder in self._holders.holders())

    def durable_known(self) -> bool:
        """Whether no durable holder is partial."""
        return not any(holder.partial for holder in self._holders.holders() if holder.durable_id is not None)

    def retire(self) -> Translation | None:
        """Domains whose keys have left the ring can't be named much longer: their copies are still held, but
        count as `unassigned` from now on. What a reader is told under the names that they still have; None
        if no domain has left."""
        gone = self._book.retire()
        if not gone:
            return None
        draft = Draft()
        for table in self._holders.tables():
            for domain, block in table.unname(lambda chain: chain.domain in gone, self._hashes):
                draft.evicted(domain, table.holder.name, table.index, block, EvictReason.UNKNOWN, True)
            table.forget_domains(gone)
        self._hashes.unname(lambda chain: chain.domain in gone)
        self._tell(draft)
        return draft.finish()

    def retire_profiles(self, adapter: str | None = None) -> Translation | None:
        """An adapter was loaded again under its name, or, with None, the model's weights were changed in
        place: no engine says so on its event socket, so whoever does it must call this before anything is
        computed with the new ones. The profiles are retired, which voids their copies for readers; here they
        are still held, as `unassigned`. What is stored from now on is of new profiles. None: there were none.
        """
        gone = self._book.drop(adapter)
        if not gone:
            return None
        draft = Draft()
        for table in self._holders.tables():
            table.unname(gone.__contains__, self._hashes)
        self._hashes.unname(gone.__contains__)
        self._tell(draft)
        translation = draft.finish()
        for chain in gone:
            if chain.declared:
                retired = ProfileRetired(profile=chain.number)
                translation.parts.setdefault(chain.domain, []).append(retired)
        return translation

    @property
    def bounds(self) -> StreamBounds:
        """What was given up for want of room, or had no place."""
        return self._bound.given_up

    @property
    def removed_unknown(self) -> int:
        """Removals so far of what wasn't held; each changed nothing."""
        return self._removals.unknown

    @property
    def hash_count(self) -> int:
        """Engine hashes remembered now."""
        return len(self._hashes)

    def _opened(self, *, opening: bool = False) -> Opened:
        config = self._config
        return Opened(
            engine_life=self.engine_life,
            engine=config.engine,
            engine_version=config.engine_version,
            hash_algorithm=config.hash_algorithm,
            hash_seed=config.hash_seed,
            removal=config.removal,
            admission_known=config.admission_known,
            connectors=config.connectors,
            holders=self._holders.declarations(opening=opening),
        )

    def _identify_first(self, batch: EngineBatch) -> dict[int, list[Node]]:
        """Where hashes come without their own tokens (sliding windows), those of the whole chain may stand
        later in the same batch: read these first."""
        stores = [(at, event) for at, event in enumerate(batch.events) if isinstance(event, BlockStored)]
        if all(event.aligned for _, event in stores):
            return {}
        return {
            at: self._hashes.identify(event)
            for at, event in stores
            if event.aligned and event.hashes and tier_of(event) is not None
        }

    def _stored(
        self, draft: Draft, event: BlockStored, admitted_after: int | None, nodes: list[Node] | None
    ) -> None:
        table = self._holders.table_of(event)
        if table is None:
            medium = (event.medium or "")[:40]
            self.bounds.unplaced += max(1, len(event.hashes))
            draft.flag(f"stored: medium {medium!a}, group {event.group}", len(event.tokens))
            for holder in self._holders.holders():
                if holder.tier is tier_of(event) and not holder.partial:
                    # It holds what has no place here; the snapshot's end says so.
                    holder.partial = draft.restated = True
        else:
            self._stores.read(draft, table, event, admitted_after, nodes)

    def _cleared(self, draft: Draft, event: AllBlocksCleared) -> None:
        """A clear empties the tiers that it is about and says nothing of others: what those held may be gone."""
        emptied: list[str] = []
        others = False
        tiers = {TIERS[tier] for tier in event.tiers}
        for holder in self._holders.holders():
            if holder.tier in tiers:
                for table in holder.tables.values():
                    table.clear(self._hashes)
                holder.partial = False
                holder.told = (0, 0)
                draft.take_back(holder.name)
                emptied.append(holder.name)
            else:
                holder.partial = others = True
                for table in holder.tables.values():
                    for copy in table.every_copy():
                        table.doubt(copy)
        if others:
            draft.doubt_stored(self._holds)
        draft.stream_events.append(Cleared(holders=tuple(emptied), unknown_scope=others))

    def _unreadable(self, draft: Draft, batch: EngineBatch, kind: str, length: int, *, loses: bool) -> None:
        draft.flag(kind, length)
        if loses:
            draft.stream_events.append(self.lost(batch.engine_seq, batch.engine_seq))
            draft.doubt_stored(self._holds)

    def _holds(self, holder: str, group: int, block: bytes) -> bool:
        return any(
            block in table.copies
            for table in self._holders.tables()
            if table.holder.name == holder and table.index == group
        )

    def _tell(self, draft: Draft) -> None:
        """Counts that changed; and the holders and groups again, if the log doesn't know them all."""
        for holder in self._holders.holders():
            if holder.counts != holder.told:
                holder.told = holder.counts
                draft.stream_events.append(
                    Orphans(holder=holder.name, orphans=holder.orphans, unassigned=holder.unassigned)
                )
        if self._holders.changed:
            self._holders.changed = False
            self._restatements += 1
            name = f"{self.engine_life}.groups{self._restatements}"[:200]
            draft.epoch_due = self._holders.redeclared
            draft.stream_events.insert(0, SnapshotBegin(snapshot=name, opened=self._opened()))
            draft.restated = True
