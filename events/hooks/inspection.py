"""What the engine's own pool shows, against what its events have told: the pool is right. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from events.hooks.engine_event import EngineHash
from events.hooks.engine_identity import HashMap
from events.hooks.holder_book import HolderBook
from events.hooks.inventory import Copy, Table
from events.hooks.store import StoreReader
from events.hooks.translation import Draft
from events.ids import EvictReason, Tier

Resident = Mapping[int, Mapping[EngineHash, int]]
"""Copies in the GPU's pool by group and hash; what isn't named isn't there."""


class PoolReader:
    """Puts the GPU's tables right. What is held elsewhere, and whatever has no table, stays as it was."""

    def __init__(self, holders: HolderBook, hashes: HashMap, stores: StoreReader) -> None:
        self._holders = holders
        self._hashes = hashes
        self._stores = stores

    def doubtful(self) -> bool:
        """Whether the GPU's holder is partial, or a copy of it may be gone."""
        return any(
            holder.partial or holder.doubtful > 0
            for holder in self._holders.holders()
            if holder.tier is Tier.GPU
        )

    def read(self, draft: Draft, resident: Resident) -> None:
        """The whole pool, as of the last batch that was translated."""
        for holder in self._holders.holders():
            if holder.tier is not Tier.GPU:
                continue
            placed = all(group in holder.tables for group, names in resident.items() if names)
            for index, table in holder.tables.items():
                self._put_right(draft, table, dict(resident.get(index, {})))
            if holder.partial and placed:
                holder.partial = False
                draft.restated = True

    def _put_right(self, draft: Draft, table: Table, names: dict[EngineHash, int]) -> None:
        for copy in list(table.every_copy()):
            there = {node: names.pop(node.hash) for node in copy.nodes() if node.hash in names}
            if not there:
                self._end(draft, table, copy)
                continue
            for node in copy.nodes():
                if node not in there:
                    table.drop_twin(copy, node, self._hashes)
            copy.bound = sum(there.values())
            if not copy.certain:
                copy.certain = True
                table.holder.certain += 1
                draft.restated = True
        for name, count in names.items():
            # Its store was never heard of: without an id, unless the hash is remembered from before.
            node = self._stores.found(draft, table, name)
            copied = table.find(node)
            if copied is not None:
                copied.bound = count
            draft.restated = True

    def _end(self, draft: Draft, table: Table, copy: Copy) -> None:
        table.end(copy, self._hashes)
        node = copy.node
        if node.chain is not None:
            holder = table.holder.name
            draft.evicted(node.chain.domain, holder, table.index, node.block, EvictReason.UNKNOWN, True)
