"""What an engine rank holds, as far as its events tell: copies by holder and attention group. Pure.

An engine announces stores and removals of physical blocks, and may announce a hit again without a new block.
So the number of announced stores minus removals is an upper bound of a copy's physical blocks, never the
number itself; a store proves that there is at least one, a removal that there is one less. A copy is certain
from a store on until a removal that leaves the bound above 0; at 0 it is gone for certain.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from events.chain import MODULUS
from events.hooks.connector import Departures
from events.hooks.domain_book import Chain
from events.hooks.engine_event import EngineHash
from events.hooks.engine_identity import HashMap, Node
from events.ids import Inventory, Lineage, Tier
from events.model.part import Group, HolderDeclared


class Copy:
    """One block (or one hash without id) in one table. `bound`: at most so many physical blocks; `twins`:
    other engine hashes of the same block that lie here too; `computed`: this engine computed it in this
    life, or copied it from one that it did."""

    __slots__ = ("admitted_after", "bound", "certain", "computed", "lineage", "node", "twins")

    def __init__(self, node: Node, admitted_after: int | None, lineage: Lineage, computed: bool) -> None:
        self.node = node
        self.admitted_after = admitted_after
        self.lineage = lineage
        self.bound = 1
        self.certain = True
        self.computed = computed
        self.twins: dict[EngineHash, Node] | None = None

    def nodes(self) -> list[Node]:
        """All its engine hashes."""
        return [self.node] if self.twins is None else [self.node, *self.twins.values()]


class Tally:
    """Count and sum of ids (`events.chain.Checksum`), many at a time."""

    __slots__ = ("count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0

    def add(self, ids: list[bytes]) -> None:
        self.count += len(ids)
        self.total += sum(map(int.from_bytes, ids))

    def take(self, block: bytes) -> None:
        self.count -= 1
        self.total -= int.from_bytes(block)

    @property
    def checksum(self) -> bytes:
        self.total %= MODULUS
        return self.total.to_bytes(16, "big")


class Holder:
    """One tier of this rank. `certain` counts copies that surely fill a physical block, over all groups;
    `told` is what the log was last told of orphans and unassigned. `departures`: while removals aren't told
    here, a store leaves a copy that may be gone at any time, so it is never certain. `unnamed`: some of its
    stores named no medium, so a removal that names another tier may have meant a copy here."""

    __slots__ = (
        "capacity",
        "certain",
        "departures",
        "durable_id",
        "name",
        "orphans",
        "partial",
        "tables",
        "tier",
        "told",
        "unassigned",
        "unnamed",
    )

    def __init__(
        self,
        tier: Tier,
        capacity: int | None,
        durable_id: str | None,
        departures: Departures = Departures.TOLD,
    ) -> None:
        self.name = tier.value
        self.departures = departures
        self.unnamed = False
        self.tier = tier
        self.capacity = capacity
        self.durable_id = durable_id
        self.tables: dict[int, Table] = {}
        self.partial = False
        self.certain = 0
        self.orphans = 0
        self.unassigned = 0
        self.told = (0, 0)

    @property
    def counts(self) -> tuple[int, int]:
        """(orphans, unassigned)."""
        return self.orphans, self.unassigned

    @property
    def inventory(self) -> Inventory:
        """What is known of the whole content."""
        if self.partial:
            return Inventory.PARTIAL
        filled = any(table.copies or table.nameless for table in self.tables.values())
        return Inventory.KNOWN if filled else Inventory.EMPTY

    @property
    def total(self) -> int:
        """Copies, with and without id."""
        return sum(map(len, self.tables.values()))

    @property
    def doubtful(self) -> int:
        """Copies that may be gone."""
        return self.total - self.certain

    def declaration(self, inventory: Inventory) -> HolderDeclared:
        return HolderDeclared(
            name=self.name,
            tier=self.tier,
            capacity_blocks=self.capacity,
            durable_id=self.durable_id,
            groups=tuple(self.tables[index].group for index in sorted(self.tables)),
            inventory=inventory,
        )


WATCHED_KEPT = 1 << 18


class Watch:
    """Ids that a table got while a snapshot of it is written. `overrun`: more than can be kept, so that the
    snapshot isn't whole."""

    __slots__ = ("ids", "overrun")

    def __init__(self) -> None:
        self.ids: list[bytes] = []
        self.overrun = False

    def add(self, ids: list[bytes]) -> None:
        if len(self.ids) + len(ids) > WATCHED_KEPT:
            self.overrun = True
        else:
            self.ids.extend(ids)


class Table:
    """Copies of one holder and group: `copies` by block id, `nameless` (orphans, unassigned) by engine hash.

    `added` holds one watch for each snapshot that is being written. `sized`: a shorter
    block is a last one that isn't full, not another size.
    """

    __slots__ = ("added", "by_domain", "copies", "group", "holder", "index", "nameless", "size", "sized")

    def __init__(self, holder: Holder, group: Group) -> None:
        self.holder = holder
        self.group = group
        self.index = group.index
        self.size = group.block_tokens
        self.sized = False
        self.copies: dict[bytes, Copy] = {}
        self.nameless: dict[EngineHash, Copy] = {}
        self.by_domain: dict[str, Tally] = {}
        self.added: list[Watch] = []

    def __len__(self) -> int:
        return len(self.copies) + len(self.nameless)

    def __bool__(self) -> bool:
        return True

    def tally(self, domain: str) -> Tally:
        found = self.by_domain.get(domain)
        if found is None:
            found = self.by_domain[domain] = Tally()
        return found

    def find(self, node: Node) -> Copy | None:
        """The copy that this hash names here. A hash may have been counted before it got its id."""
        if node.block:
            copy = self.copies.get(node.block)
            if copy is not None or not self.nameless:
                return copy
        return self.nameless.get(node.hash)

    def announce_again(self, copy: Copy, node: Node, hashes: HashMap) -> None:
        """One more store of a copy: perhaps one more physical block, as far as the pool has room for it."""
        if copy.node is not node and (copy.twins is None or node.hash not in copy.twins):
            self._add_twin(copy, node, hashes)
        if not copy.certain:
            copy.certain = True
            self.holder.certain += 1
        copy.bound = self.bounded(copy.bound + 1)

    def bounded(self, bound: int) -> int:
        """At most what the pool has beside the other copies that surely fill a block. A pool that surely
        holds more than its capacity has another one: no bound then."""
        capacity, certain = self.holder.capacity, self.holder.certain
        return bound if capacity is None or certain > capacity else min(bound, capacity - certain + 1)

    def remove_one(self, copy: Copy, hashes: HashMap) -> bool:
        """One physical block less; True if that was the last for certain, and the copy is out."""
        copy.bound -= 1
        if copy.bound > 0:
            self.doubt(copy)
            return False
        self.end(copy, hashes)
        return True

    def doubt(self, copy: Copy) -> None:
        if copy.certain:
            copy.certain = False
            self.holder.certain -= 1

    def end(self, copy: Copy, hashes: HashMap) -> None:
        """Take a copy out, all its hashes with it."""
        if copy.certain:
            self.holder.certain -= 1
        node = copy.node
        if node.block and self.copies.get(node.block) is copy:
            del self.copies[node.block]
            assert node.chain is not None
            self.by_domain[node.chain.domain].take(node.block)
        else:
            del self.nameless[node.hash]
            self._count_nameless(node, -1)
        if copy.twins is None:
            hashes.release(node, self.size)
            return
        for one in copy.nodes():
            hashes.release(one, self.size)

    def drop_twin(self, copy: Copy, node: Node, hashes: HashMap) -> bool:
        """Take one of a copy's several hashes away; False if it is the only one left."""
        twins = copy.twins
        if not twins:
            return False
        if copy.node.hash == node.hash:
            copy.node = twins.pop(next(iter(twins)))
        elif twins.pop(node.hash, None) is None:
            return True
        hashes.release(node, self.size)
        return True

    def add_nameless(self, copy: Copy, hashes: HashMap) -> None:
        """A hash without id is counted, in every deletion's scope and never answered."""
        node = copy.node
        self.nameless[node.hash] = copy
        self.holder.certain += 1
        self._count_nameless(node, 1)
        hashes.use(node)

    def clear(self, hashes: HashMap) -> None:
        """Forget all copies: the whole holder was emptied."""
        for copy in self.nameless.values():
            self._count_nameless(copy.node, -1)
        for copies in (self.copies, self.nameless):
            for copy in copies.values():
                self.holder.certain -= copy.certain
                for node in copy.nodes():
                    hashes.release(node, self.size)
            copies.clear()
        for domain in self.by_domain:
            self.by_domain[domain] = Tally()

    def unname(self, gone: Callable[[Chain], bool], hashes: HashMap) -> list[tuple[str, bytes]]:
        """The copies of these chains become `unassigned` ones, one for each of their hashes; returns which
        copies (domain, block) there were. The caller has their hashes unnamed next."""
        ended: list[tuple[str, bytes]] = []
        for copy in list(self.copies.values()):
            chain = copy.node.chain
            if chain is None or not gone(chain):
                continue
            ended.append((chain.domain, copy.node.block))
            for node in copy.nodes():
                self._count_copy_again(copy, node, hashes)
            self.end(copy, hashes)
        return ended

    def forget_domains(self, domains: Collection[str]) -> None:
        """They are never stated again; nothing of them is held any more."""
        for domain in domains:
            self.by_domain.pop(domain, None)

    def every_copy(self) -> Iterator[Copy]:
        yield from self.copies.values()
        yield from self.nameless.values()

    def _count_copy_again(self, copy: Copy, node: Node, hashes: HashMap) -> None:
        """Of several hashes nobody knows which one fills a block."""
        if node.hash in self.nameless:
            return
        again = Copy(node, copy.admitted_after, copy.lineage, copy.computed)
        again.bound, again.certain = copy.bound, copy.certain and copy.twins is None
        self.holder.certain += again.certain
        self.holder.unassigned += 1
        self.nameless[node.hash] = again
        hashes.use(node)

    def _count_nameless(self, node: Node, sign: int) -> None:
        if node.unassigned:
            self.holder.unassigned += sign
        else:
            self.holder.orphans += sign

    def _add_twin(self, copy: Copy, node: Node, hashes: HashMap) -> None:
        if copy.twins is None:
            copy.twins = {}
        copy.twins[node.hash] = node
        hashes.use(node)
