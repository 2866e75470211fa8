"""One stream as a reader sees it: its fold, its bits in the prefix index, and how fresh it is known to be."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from events.chain import MODULUS
from events.fold.change import Changes, CopiesPut
from events.fold.registry import Registry
from events.fold.staleness import BeaconBook
from events.fold.state import Copy, GroupState, HolderGroup, ProfileState, StreamState
from events.ids import Alarm, Basis, CopyState, GroupKind, Inventory, StreamKey, Tier
from events.keyring import DomainKeys
from events.model.signal import Load, RankPulse
from events.scope import covers_domain
from router_client.index import PrefixIndex
from router_client.veil import OpenOrders

TIERS = (Tier.GPU, Tier.CPU, Tier.DISK, Tier.REMOTE)
BASES = (Basis.ENGINE, Basis.PUBLISHED, Basis.UNCONFIRMED)
"""Strongest first."""
MAX_PENDING = 512
"""Pulses kept while their `next_seq` isn't applied; above, every second one is forgotten, the oldest first."""
MAX_UNREAD = 16
"""Newest pulses kept whose beacon isn't read back yet. Older ones echo what a truncated log no longer has."""


@dataclass(slots=True)
class Link:
    """Another stream's word on a durable holder that this one can reach. `tables`: the owner's copies by group,
    as its fold keeps them."""

    owner: StreamView
    state: StreamState
    holder: str
    tables: dict[int, dict[bytes, Copy]]

    @property
    def inventory(self) -> Inventory:
        return self.state.holders[self.holder].inventory

    def same(self, other: Link | None) -> bool:
        """Whether both lead to the same copies, in the same groups: a holder's groups may be declared later."""
        return (
            other is not None
            and self.state is other.state
            and self.holder == other.holder
            and self.tables.keys() == other.tables.keys()
            and all(table is other.tables[number] for number, table in self.tables.items())
        )


@dataclass(slots=True)
class Layout:
    """Bits of a stream: one per group and cumulative level. Level k is all holders of the first k+1 tiers
    present; a copy on a tier counts for its level and all above.

    A holder whose blocks of a group have another size than those of the group's lowest tier isn't credited:
    their ids don't meet.
    """

    tiers: list[Tier]
    groups: list[GroupState]
    bits: dict[tuple[int, int], int]
    bits_of: dict[HolderGroup, int]
    sources: dict[int, list[HolderGroup]]
    all_bits: int
    block_sizes: tuple[int, ...]
    levels: tuple[int, int, int, int]
    """By tier (gpu, cpu, disk, remote) the level that answers for it, -1 where there is none yet: a tier that
    the stream lacks adds nothing to the ones below it."""
    plain: bool
    """Whether one full-attention group is all there is."""

    def all_bits_of(self, group: int) -> list[int]:
        """The group's bits, one per cumulative level."""
        return [bit for (number, _), bit in self.bits.items() if number == group]


def holders_signature(state: StreamState) -> tuple[object, ...]:
    """What a layout is made from; an equal signature means an equal layout."""
    return tuple(
        (name, holder.tier, tuple(sorted((g.index, g.kind, g.block_tokens, g.window) for g in groups)))
        for name, holder in sorted(state.holders.items())
        for groups in (holder.groups.values(),)
    )


def make_layout(state: StreamState, index: PrefixIndex, credited: Collection[str] | None = None) -> Layout:
    """Takes a bit from the index for every group and level of the stream's holders, or of some of them."""
    ordered = sorted(
        (holder for holder in state.holders.values() if credited is None or holder.name in credited),
        key=lambda holder: (TIERS.index(holder.tier), holder.name),
    )
    tiers = sorted({holder.tier for holder in ordered}, key=TIERS.index)
    groups: dict[int, GroupState] = {}
    for holder in ordered:
        for group in holder.groups.values():
            groups.setdefault(group.index, group)
    bits = {(number, level): index.new_bit() for number in sorted(groups) for level in range(len(tiers))}
    bits_of: dict[HolderGroup, int] = {}
    sources: dict[int, list[HolderGroup]] = {bit: [] for bit in bits.values()}
    for holder in ordered:
        for number, group in holder.groups.items():
            if group.block_tokens != groups[number].block_tokens:
                continue
            where = (holder.name, number)
            for level in range(tiers.index(holder.tier), len(tiers)):
                bit = bits[number, level]
                bits_of[where] = bits_of.get(where, 0) | bit
                sources[bit].append(where)
    ordered_groups = [groups[number] for number in sorted(groups)]
    level, levels = -1, []
    for tier in TIERS:
        level += tier in tiers
        levels.append(level)
    return Layout(
        tiers,
        ordered_groups,
        bits,
        bits_of,
        sources,
        sum(sources),
        tuple(sorted({group.block_tokens for group in ordered_groups})),
        (levels[0], levels[1], levels[2], levels[3]),
        len(ordered_groups) == 1 and ordered_groups[0].kind is GroupKind.FULL,
    )


@dataclass(slots=True)
class StreamView:
    """`as_of_ns` by basis: when this reader began its newest own beacon at or before one that the stream
    echoed at a point that is applied in `state`. It never goes back while the state is followed; whoever puts
    another state in its place calls `start_over`, as an age of the one says nothing of the other.

    `shed`: its copies went over this reader's memory bound, it is not followed. `divergent`: its own pulse
    names another inventory or another last record than the fold has. `forked`: it obeys another `kv.control`
    than this reader; compared for its records up to `compared_offset`.
    """

    state: StreamState
    partition: int
    index: PrefixIndex
    layout: Layout | None = None
    signature: tuple[object, ...] = ()
    as_of_ns: dict[Basis, int] = field(default_factory=dict)
    met_ns: int = 0
    """Since when this reader follows it: nobody is silent who had no time to speak."""
    pulse_ns: int | None = None
    announced_seq: int | None = None
    load: Load | None = None
    alarm: Alarm | None = None
    divergent: bool = False
    shed: bool = False
    pending: deque[RankPulse] = field(default_factory=deque)
    """Pulses that say more than is applied, or echo a beacon that this reader hasn't read back yet."""
    by_domain: dict[str, tuple[ProfileState, ...]] = field(default_factory=dict)
    aliases: dict[str, bytes] = field(default_factory=dict)
    opened: dict[str, OpenOrders] = field(default_factory=dict)
    forked: bool = False
    compared_offset: int = -1
    copy_count: int = 0
    owned: frozenset[str] = frozenset()
    """Durable holders that this stream's worker owns: they are credited like any other."""
    links: dict[str, Link] = field(default_factory=dict)
    """Durable holders of another owner whose stream vouches for them. One that is in neither isn't credited."""
    lent: dict[HolderGroup, list[tuple[StreamView, HolderGroup]]] = field(default_factory=dict)
    """Who else is credited with this stream's copies, under which of its own names."""

    @property
    def key(self) -> StreamKey:
        return self.state.key

    def silent(self, now_ns: int, after_ns: int) -> bool:
        """Whether this reader has had no pulse of it for longer than `after_ns`."""
        return now_ns - max(self.met_ns, self.pulse_ns or 0) > after_ns

    @property
    def partial(self) -> bool:
        """Whether any holder may hold more than is known, or than the index could take, so that absence can't
        be claimed."""
        for name, holder in self.state.holders.items():
            if holder.durable_id is None or name in self.owned:
                inventory = holder.inventory
            else:
                link = self.links.get(name)
                inventory = link.inventory if link else Inventory.PARTIAL
            if inventory is Inventory.PARTIAL:
                return True
        refused = self.index.refused.bits
        return bool(refused) and self.layout is not None and bool(refused & self.layout.all_bits)

    @property
    def durable(self) -> bool:
        """Whether the stream declares a holder that outlives its epoch, or did so while others used it."""
        return bool(self.lent) or any(h.durable_id is not None for h in self.state.holders.values())

    def table(self, where: HolderGroup) -> Mapping[bytes, Copy]:
        """The copies that count for a holder and group: its own, or its owner's."""
        link = self.links.get(where[0])
        return self.state.copies.get(where, {}) if link is None else link.tables.get(where[1], {})

    def _counts(self, where: HolderGroup, copy: Copy | None) -> bool:
        link = self.links.get(where[0])
        return (self.state if link is None else link.state).credited(copy)

    def relink(self, owned: frozenset[str], links: dict[str, Link]) -> None:
        """Other owners, or other streams of theirs: what is credited for durable holders is made anew."""
        if (
            owned == self.owned
            and links.keys() == self.links.keys()
            and all(link.same(self.links[name]) for name, link in links.items())
        ):
            return
        indexed = self.layout is not None
        self.unindex()
        self.owned, self.links = owned, links
        if indexed:
            self.reindex()

    def alias(self, keys: DomainKeys) -> bytes:
        """The domain's name in this stream; remembered."""
        known = self.aliases.get(keys.domain)
        if known is None:
            known = keys.alias(self.key.worker, self.key.rank, self.state.epoch_no)
            self.aliases[keys.domain] = known
        return known

    def profiles(self, keys: DomainKeys) -> tuple[ProfileState, ...]:
        """Exact profiles declared in the domain and not retired."""
        known = self.by_domain.get(keys.domain)
        if known is None:
            name = self.alias(keys)
            known = tuple(
                p
                for p in self.state.profiles.values()
                if p.alias == name and not p.retired and p.content.approximate is None
            )
            self.by_domain[keys.domain] = known
        return known

    def open_orders(self, keys: DomainKeys) -> OpenOrders:
        """The domain's orders that aren't discharged here, as far as they were looked at."""
        known = self.opened.get(keys.domain)
        if known is None:
            known = self.opened[keys.domain] = OpenOrders(self.alias(keys))
        return known

    def stood(self, changed: set[tuple[bytes, int]], registry: Registry) -> None:
        """The stream acknowledged or refused orders; `state` has its words already."""
        for domain, opened in self.opened.items():
            for name, number in changed:
                order = registry.deletions.get(number)
                if name != opened.alias or order is None:
                    continue
                standing = self.state.standings.get((name, number))
                if standing is not None and standing.discharged:
                    opened.numbers.discard(number)
                elif covers_domain(order.scope, domain, registry.owner(domain)):
                    opened.numbers.add(number)
                opened.veil = None

    def compare_control(self, registry: Registry) -> bool:
        """Whether the stream obeys another `kv.control` than this reader read: then nothing it says about
        orders counts, for good, as running hashes never meet again."""
        offset = self.state.control_offset
        if offset != self.compared_offset and offset < registry.next_offset:
            self.compared_offset = offset
            self.forked = self.forked or registry.contradicts(offset, self.state.control_hash)
        return self.forked

    def take(self, changes: Changes) -> None:
        """Follows one record's changes in the index. `state` has them already."""
        if changes.profiles:
            self.by_domain.clear()
        for change in changes.copies:
            where = (change.holder, change.group)
            if change.holder in self.links:
                continue
            if (
                isinstance(change, CopiesPut)
                and change.attributes.state is CopyState.COMMITTED
                and self.state.exact(change.attributes)
            ):
                self._store(where, change.ids, change.parents)
                for borrower, place in self.lent.get(where, ()):
                    borrower._store(place, change.ids, change.parents)
            else:
                self._evict(where, change.ids)
                for borrower, place in self.lent.get(where, ()):
                    borrower._evict(place, change.ids)
        if changes.holders:
            signature = holders_signature(self.state)
            if signature != self.signature:
                self.signature = signature
                self.reindex()
        self.copy_count = self.state.copy_count()

    def restore(self) -> None:
        """Indexes a stream that was folded without: from a snapshot, or before it was registered."""
        self.signature = holders_signature(self.state)
        self.by_domain.clear()
        self.reindex()

    def start_over(self, state: StreamState) -> None:
        """Another state takes the place of this one. What was said of the former one goes with it: the new one
        may be folded from an older place of the log. The stream's last word on how far it is stays."""
        self.unindex()
        self.state, self.signature, self.copy_count = state, (), 0
        self.as_of_ns.clear()
        self.divergent = False
        self.pending.clear()
        self.by_domain.clear()
        self.opened.clear()

    def reindex(self) -> None:
        """Takes all bits back and stores everything anew under fresh ones."""
        self.unindex()
        self.layout = make_layout(
            self.state,
            self.index,
            [
                name
                for name, holder in self.state.holders.items()
                if holder.durable_id is None or name in self.owned or name in self.links
            ],
        )
        for where in self.layout.bits_of:
            held = [(b, copy[0]) for b, copy in self.table(where).items() if self._counts(where, copy)]
            self._store(where, [block for block, _ in held], [parent for _, parent in held])
        self.copy_count = self.state.copy_count()

    def unindex(self) -> None:
        """The stream is credited with nothing any more; its bits return to the index."""
        layout, self.layout = self.layout, None
        if layout is None:
            return
        for where, bits in layout.bits_of.items():
            self.index.release(bits, list(self.table(where)))

    def _store(self, where: HolderGroup, ids: Sequence[bytes], parents: Sequence[bytes]) -> None:
        bits = self.layout.bits_of.get(where, 0) if self.layout else 0
        if bits:
            self.index.store(bits, ids, parents)

    def _evict(self, where: HolderGroup, ids: Sequence[bytes]) -> None:
        layout = self.layout
        if layout is None or where not in layout.bits_of:
            return
        if all(len(sources) == 1 for sources in layout.sources.values()):
            self.index.evict(layout.bits_of[where], ids)
            return
        for bit, sources in layout.sources.items():
            if where in sources:
                others = [(other, self.table(other)) for other in sources if other != where]
                gone = [b for b in ids if not any(self._counts(o, table.get(b)) for o, table in others)]
                self.index.evict(bit, gone)

    def heard(self, rank: RankPulse, now_ns: int) -> None:
        """A pulse of this stream arrived; it counts once what it announces is applied (`settle`)."""
        self.pulse_ns, self.announced_seq = now_ns, rank.next_seq
        self.load, self.alarm = rank.load, rank.alarm
        if len(self.pending) >= MAX_PENDING:
            self.pending = deque(list(self.pending)[1::2])
        self.pending.append(rank)
        # In order of what they announce, so that one that announces too much holds nobody up.
        at = len(self.pending) - 1
        while at > 0 and self.pending[at - 1].next_seq > rank.next_seq:
            self.pending[at], self.pending[at - 1] = self.pending[at - 1], self.pending[at]
            at -= 1

    def settle(self, book: BeaconBook, newest_signal: int) -> int | None:
        """Lets every pulse count that can: its `next_seq` is applied, and the beacon it echoes was read back
        here. Returns the new instant that answers are as of, if there is one."""
        found: int | None = None
        exact: RankPulse | None = None
        unread: list[RankPulse] = []
        while self.pending and self.pending[0].next_seq <= self.state.next_seq:
            rank = self.pending.popleft()
            echo = rank.echo
            if rank.next_seq == self.state.next_seq:
                exact = rank
            if echo is not None and echo.offset > newest_signal:
                unread.append(rank)
                continue
            begun = book.begun_at(echo.offset, echo.nonce) if echo is not None else None
            if begun is not None and begun > self.as_of_ns.get(rank.basis, -1):
                self.as_of_ns[rank.basis] = found = begun
        self.pending.extendleft(reversed(unread[-MAX_UNREAD:]))
        if exact is not None:
            self.divergent = exact.next_seq > 0 and self._diverges(exact)
        return found

    def fresh(self, weakest: Basis) -> tuple[int | None, Basis]:
        """(instant the stream is known as of, basis of that) going by words at least as strong as asked."""
        best: int | None = None
        basis = weakest
        for candidate in BASES[: BASES.index(weakest) + 1]:
            at = self.as_of_ns.get(candidate)
            if at is not None and (best is None or at > best):
                best, basis = at, candidate
        return best, basis

    def _diverges(self, rank: RankPulse) -> bool:
        """Whether the pulse, taken at exactly the record applied last, contradicts the fold."""
        if self.state.prev and rank.prev != self.state.prev:
            return True
        if not self.state.whole:
            return False
        for stated in rank.checksums:
            count, total = 0, 0
            for (_, holder, group), checksum in self.state.checksums.items():
                if (holder, group) == (stated.holder, stated.group):
                    count, total = count + checksum.count, total + checksum.total
            value = (total % MODULUS).to_bytes(16, "big")
            if (count, value) != (stated.count, stated.checksum):
                return True
        return False
