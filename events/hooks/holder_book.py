"""Holders and attention groups of one engine rank: told beforehand, or learned from the events. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from events.hooks.connector import departures
from events.hooks.engine_config import EngineConfig
from events.hooks.engine_event import BlockRemoved, BlockStored, EngineTier
from events.hooks.inventory import Holder, Table
from events.ids import GroupKind, Inventory, Tier
from events.model.part import Group, HolderDeclared

TIERS = {
    EngineTier.GPU: Tier.GPU,
    EngineTier.CPU: Tier.CPU,
    EngineTier.DISK: Tier.DISK,
    EngineTier.REMOTE: Tier.REMOTE,
}
MAX_GROUP = 1_023
MAX_SEEN = 4_096


def tier_of(event: BlockStored | BlockRemoved) -> Tier | None:
    """The tier that an event speaks of; an engine that names no medium has one tier only. None: unknown."""
    if event.tier is EngineTier.UNKNOWN:
        return Tier.GPU if event.medium is None else None
    return TIERS[event.tier]


class HolderBook:
    """Tables by tier and group; a table is made when its group is first heard of."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._holders: dict[Tier, Holder] = {}
        self._seen: dict[tuple[Tier, int | None, int, str | None, int | None], Table] = {}
        self._told: dict[tuple[Tier, int], Group] = {}
        self.changed = False
        self.redeclared = False
        self.reset()

    def reset(self) -> None:
        """A new engine life: empty holders, and what the configuration says of their groups."""
        self._holders.clear()
        self._seen.clear()
        self.changed = False
        gpu = self.holder(Tier.GPU)
        groups = self._config.groups
        if not groups and self._config.content.block_tokens is not None:
            groups = (Group(index=0, kind=GroupKind.FULL, block_tokens=self._config.content.block_tokens),)
        for group in groups:
            table = gpu.tables[group.index] = Table(gpu, group)
            table.sized = self._config.short_last_blocks
        for tier in self._config.durable_ids:
            self.holder(tier)
        self.changed = False

    def holder(self, tier: Tier) -> Holder:
        """The tier's holder, made on first use; what a durable one holds at that time isn't known."""
        found = self._holders.get(tier)
        if found is None:
            durable = self._config.durable_ids.get(tier)
            config = self._config
            told = departures(config.engine, config.connectors, tier)
            found = Holder(tier, config.capacity_blocks.get(tier), durable, told)
            # Whatever the stream has lost so far may have been about this holder.
            found.partial = durable is not None or any(one.partial for one in self._holders.values())
            self._holders[tier] = found
            self.changed = True
        return found

    def holders(self) -> list[Holder]:
        return list(self._holders.values())

    def tables(self) -> Iterator[Table]:
        """All tables in a fixed order."""
        for holder in self._holders.values():
            for index in sorted(holder.tables):
                yield holder.tables[index]

    def find(self, tier: Tier, group: int | None) -> Table | None:
        holder = self._holders.get(tier)
        return None if holder is None else holder.tables.get(group or 0)

    def new_epoch(self) -> None:
        """Another stream begins: what it declares may be anything."""
        self._told.clear()
        self.changed = self.redeclared = False

    def table_of(self, event: BlockStored) -> Table | None:
        """The table that a store goes to; None if the event doesn't say enough (tier, block size).

        `changed` is set if the log doesn't know this table, or not like this; `redeclared` if the stream has
        declared it otherwise, which no record of the same epoch can take back.
        """
        tier = tier_of(event)
        if tier is None:
            return None
        key = (tier, event.group, event.block_size, event.spec_kind, event.window)
        table = self._seen.get(key)
        if table is None:
            table = self._learn(tier, event)
            if table is not None:
                if len(self._seen) >= MAX_SEEN:
                    self._seen.clear()
                self._seen[key] = table
        elif event.block_size and event.block_size != table.size and not _short_last(event, table):
            return None
        return table

    def declarations(self, *, opening: bool) -> tuple[HolderDeclared, ...]:
        """For `opened`. When opening, what is already held is still to be told: partial until then."""
        declared: list[HolderDeclared] = []
        for holder in self._holders.values():
            inventory = holder.inventory
            if opening and inventory is not Inventory.EMPTY:
                inventory = Inventory.PARTIAL
            declared.append(holder.declaration(inventory))
            self._told.update({(holder.tier, table.index): table.group for table in holder.tables.values()})
        return tuple(declared)

    def _learn(self, tier: Tier, event: BlockStored) -> Table | None:
        index = event.group or 0
        if index > MAX_GROUP:
            return None
        beside = self.find(Tier.GPU, index)
        size = event.block_size or (beside.size if beside else self._config.content.block_tokens)
        if not size:
            return None
        holder = self.holder(tier)
        table = holder.tables.get(index)
        if table is not None and _short_last(event, table):
            return table
        group = _group(index, size, event)
        if table is None:
            if len(holder.tables) >= self._config.groups_kept:
                return None
            table = holder.tables[index] = Table(holder, group)
            self.changed = True
        elif (
            event.block_size and (event.spec_kind is not None or table.size != size) and table.group != group
        ):
            if table.size != size and (table.copies or table.nameless):
                return None
            table.group, table.size = group, size
            self.changed = True
            self.redeclared |= self._told.get((tier, index), group) != group
        if tier is not Tier.GPU or self._config.short_last_blocks:
            table.sized = table.sized or event.block_size == table.size
        return table


def _short_last(event: BlockStored, table: Table) -> bool:
    """Whether this is one last block that isn't full. It is held, and no lookup can name it: an orphan."""
    return table.sized and len(event.hashes) == 1 and 0 < event.block_size < table.size


def _group(index: int, size: int, event: BlockStored) -> Group:
    return group_of(index, size, event.spec_kind, event.window)


def group_of(index: int, size: int, kind: str | None, window: int | None) -> Group:
    """A group in the log's words. An unknown kind counts as full attention, which needs all blocks: never too
    good an answer."""
    match kind:
        case "sliding_window" if window:
            return Group(index=index, kind=GroupKind.SLIDING_WINDOW, block_tokens=size, window=window)
        case "mamba":
            return Group(index=index, kind=GroupKind.RECURRENT, block_tokens=size)
        case _:
            return Group(index=index, kind=GroupKind.FULL, block_tokens=size)
