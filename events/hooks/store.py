"""Stores: which copies they add, what they prove of those already there, and the events to write. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from events.fold.state import older
from events.hooks.connector import Departures
from events.hooks.engine_event import BlockStored, EngineHash
from events.hooks.engine_identity import HashMap, Node
from events.hooks.holder_book import HolderBook
from events.hooks.inventory import Copy, Table
from events.hooks.translation import Draft, StoreRun
from events.ids import EvictReason, Lineage, Tier

_MAX_SESSION_CHARS = 200


class StoreReader:
    """Applies stores to the tables. `computes_all`: whatever appears on the GPU was computed there, as there
    is no connector that could have loaded it. `foreign`: domains in which anything else has appeared."""

    def __init__(self, holders: HolderBook, hashes: HashMap, *, computes_all: bool) -> None:
        self._holders = holders
        self._hashes = hashes
        self._computes_all = computes_all
        self.foreign: set[str] = set()

    def read(
        self,
        draft: Draft,
        table: Table,
        event: BlockStored,
        admitted_after: int | None,
        nodes: list[Node] | None,
    ) -> None:
        """One store into its table; `nodes` if its hashes were identified before."""
        if not event.hashes:
            return
        if event.medium is None:
            table.holder.unnamed = True
        if nodes is None:
            if event.aligned and event.block_size == table.size:
                nodes = self._hashes.identify(event)
            else:
                nodes = self._hashes.look_up(table.size, event.hashes)
        session = event.session
        if session is not None and len(session) > _MAX_SESSION_CHARS:
            session = None
        if self._computes_all and table.holder.tier is Tier.GPU:
            self._put(draft, table, nodes, admitted_after, Lineage.PREFILL, True, session)
            return
        for node in nodes:
            source = self._source(table, node)
            lineage = Lineage.ONLOAD if source and table.holder.tier is Tier.GPU else Lineage.UNKNOWN
            admitted, computed = source or (None, False)
            self._put(draft, table, [node], admitted, lineage, computed, session)

    def found(self, draft: Draft, table: Table, name: EngineHash) -> Node:
        """A hash that the engine holds and whose store nobody has heard of; its age is unknown."""
        (node,) = self._hashes.look_up(table.size, [name])
        lineage = Lineage.PREFILL if self._computes_all else Lineage.UNKNOWN
        self._put(draft, table, [node], None, lineage, self._computes_all, None)
        return node

    def _source(self, table: Table, node: Node) -> tuple[int | None, bool] | None:
        """Oldest admission of the copies of the same block in other tiers, of any of which this one may have been
        made, and whether all of them were computed here; None if there are none."""
        copies = [
            copy
            for other in self._holders.tables()
            if other.holder is not table.holder and other.size == table.size
            if (copy := other.find(node)) is not None
        ]
        if not copies:
            return None
        admitted = copies[0].admitted_after
        for copy in copies:
            admitted = older(admitted, copy.admitted_after)
        return admitted, all(copy.computed for copy in copies)

    def _put(
        self,
        draft: Draft,
        table: Table,
        nodes: Sequence[Node],
        admitted_after: int | None,
        lineage: Lineage,
        computed: bool,
        session: str | None,
    ) -> None:
        copies, hashes, holder = table.copies, self._hashes, table.holder
        run: StoreRun | None = None
        fresh: list[bytes] = []
        fresh_domain = ""
        sure = holder.departures is Departures.TOLD
        doubted: list[Node] = []
        for node in nodes:
            block = node.block
            copy = copies.get(block)
            told = copy is not None
            if copy is None and (not block or table.nameless):
                copy = self._find_nameless(table, Copy(node, admitted_after, lineage, computed))
                if not block:
                    run = None
                    continue
            admitted = admitted_after
            chain = node.chain
            assert chain is not None
            if not computed:
                self.foreign.add(chain.domain)
            if copy is None:
                copy = copies[block] = Copy(node, admitted_after, lineage, computed)
                holder.certain += 1
                hashes.use(node)
                if fresh and fresh_domain != chain.domain:
                    table.tally(fresh_domain).add(fresh)
                    fresh = []
                fresh_domain = chain.domain
                fresh.append(block)
            else:
                admitted = older(copy.admitted_after, admitted_after)
                unchanged = (copy.certain or (told and not sure)) and admitted == copy.admitted_after
                copy.admitted_after = admitted
                copy.computed = copy.computed and computed
                table.announce_again(copy, node, hashes)
                if unchanged:
                    if not sure:
                        table.doubt(copy)
                    run = None
                    continue
            if not sure:
                table.doubt(copy)
                doubted.append(node)
            parent = node.parent_block
            if run is not None and run.ids[-1] == parent and run.admitted_after == admitted:
                run.ids.append(block)
                continue
            if not chain.declared:
                draft.declare(chain.domain, chain.declaration)
                chain.declared = True
            run = draft.stored(
                chain.domain,
                holder.name,
                table.index,
                chain.number,
                block,
                parent,
                lineage,
                admitted,
                session,
            )
        if fresh:
            table.tally(fresh_domain).add(fresh)
            for watch in table.added:
                watch.add(fresh)
        for node in doubted:
            assert node.chain is not None
            domain = node.chain.domain
            draft.evicted(domain, holder.name, table.index, node.block, EvictReason.UNKNOWN, False)

    def _find_nameless(self, table: Table, landed: Copy) -> Copy | None:
        """Counts a hash without id; or, for one that has its id only now, ends the count and returns a copy
        made from it, so that its age and bound go on."""
        node = landed.node
        old = table.nameless.get(node.hash)
        if not node.block:
            if old is None:
                table.add_nameless(landed, self._hashes)
            else:
                old.admitted_after = older(old.admitted_after, landed.admitted_after)
                old.computed = old.computed and landed.computed
                table.announce_again(old, old.node, self._hashes)
            return None
        if old is None:
            return None
        table.end(old, self._hashes)
        assert node.chain is not None
        copy = Copy(node, old.admitted_after, old.lineage, old.computed)
        copy.bound, copy.certain = old.bound, False
        table.copies[node.block] = copy
        table.tally(node.chain.domain).add([node.block])
        for watch in table.added:
            watch.add([node.block])
        self._hashes.use(node)
        return copy
