"""Removals: one physical block less at the engine's word, or all of a hash's blocks at ours. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from events.hooks.connector import Departures
from events.hooks.engine_event import BlockRemoved, EngineHash
from events.hooks.engine_identity import HashMap, Node
from events.hooks.holder_book import HolderBook, tier_of
from events.hooks.inventory import Table
from events.hooks.translation import Draft
from events.ids import EvictReason, Tier

Gone = dict[tuple[str, str, int], list[bytes]]
"""Ids by (domain, holder, group)."""


class RemovalReader:
    """Applies removals to the tables; `unknown` counts those of what isn't held, which are no-ops."""

    def __init__(self, holders: HolderBook, hashes: HashMap) -> None:
        self.unknown = 0
        self._holders = holders
        self._hashes = hashes

    def read(self, draft: Draft, event: BlockRemoved) -> bool:
        """One physical block of each hash is gone; False if the event's tier is unknown."""
        tier = tier_of(event)
        if tier is None:
            return False
        table = self._holders.find(tier, event.group)
        if table is None:
            self._unknown(draft, event.hashes, tier, event.group)
            return True
        if event.hashes and table.holder.departures is Departures.UNKNOWN:
            table.holder.departures = Departures.TOLD
        reason = EvictReason.CAPACITY if tier is Tier.GPU else EvictReason.UNKNOWN
        nodes, copies, nameless = self._hashes.of_size(table.size), table.copies, table.nameless
        for name in event.hashes:
            node = nodes.get(name)
            copy = None if node is None else copies.get(node.block) or nameless.get(name)
            if copy is None:
                self._unknown(draft, (name,), tier, event.group)
                continue
            gone = table.remove_one(copy, self._hashes)
            chain = copy.node.chain
            if chain is not None:
                block = copy.node.block
                draft.evicted(chain.domain, table.holder.name, table.index, block, reason, gone)
        return True

    def _unknown(self, draft: Draft, hashes: Sequence[EngineHash], tier: Tier, group: int | None) -> None:
        """Nothing of the kind is held there. What was stored without a medium may be what is meant: then it
        is in doubt."""
        self.unknown += len(hashes)
        table = self._holders.find(Tier.GPU, group)
        if tier is Tier.GPU or table is None or not table.holder.unnamed:
            return
        nodes = self._hashes.of_size(table.size)
        for name in hashes:
            node = nodes.get(name)
            copy = None if node is None else table.find(node)
            if copy is not None and copy.certain:
                table.doubt(copy)
                chain = copy.node.chain
                if chain is not None:
                    block = copy.node.block
                    reason = EvictReason.UNKNOWN
                    draft.evicted(chain.domain, table.holder.name, table.index, block, reason, False)

    def take_out(self, hashes: Iterable[EngineHash], tier: Tier) -> Gone:
        """All physical blocks of these hashes are gone from the tier; returns the copies that ended."""
        gone: Gone = {}
        for name in hashes:
            for size, node in self._hashes.find_all(name):
                for table in self._holders.tables():
                    if table.holder.tier is tier and table.size == size:
                        self._take_out_of(table, node, gone)
        return gone

    def _take_out_of(self, table: Table, node: Node, gone: Gone) -> None:
        copy = table.find(node)
        if copy is None or (copy.twins is not None and table.drop_twin(copy, node, self._hashes)):
            return
        table.end(copy, self._hashes)
        if copy.node.chain is not None:
            where = (copy.node.chain.domain, table.holder.name, table.index)
            gone.setdefault(where, []).append(copy.node.block)
