"""A stream's whole inventory in records, while it goes on changing. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from events.hooks.domain_book import DomainBook
from events.hooks.engine_identity import HashMap
from events.hooks.engine_port import RestatementOverrunError
from events.hooks.holder_book import HolderBook
from events.hooks.inventory import Table, Watch
from events.hooks.translation import Draft, Translation
from events.ids import ROOT_PARENT, CopyState, EvictReason, Lineage
from events.model.part import (
    CopyRun,
    DomainEvent,
    HolderInventory,
    Opened,
    Orphans,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotPart,
    SnapshotRange,
)

COPIES_PER_RECORD = 4_096
"""On average; ids are uniformly distributed, so no range has many more."""
_PREFIXES = 1 << 16


def snapshot_records(
    name: str,
    holders: HolderBook,
    book: DomainBook,
    hashes: HashMap,
    opened: Callable[[], Opened],
    *,
    of_pool: bool = False,
) -> Iterator[Translation]:
    """Begin (profiles, orphans), every range of every holder and group, end. Lazy: each record is as of the
    moment it is taken. `of_pool`: the engine's own pool was looked at, and nothing was lost since."""
    yield _begin(name, holders, book, hashes, opened, of_pool=of_pool)
    for table in list(holders.tables()):
        yield from _ranges(name, table)
    inventories = tuple(
        HolderInventory(holder=holder.name, inventory=holder.inventory) for holder in holders.holders()
    )
    yield Translation([SnapshotEnd(snapshot=name, inventories=inventories)], {})


def _begin(
    name: str,
    holders: HolderBook,
    book: DomainBook,
    hashes: HashMap,
    opened: Callable[[], Opened],
    *,
    of_pool: bool,
) -> Translation:
    draft = Draft()
    for chain in book.chains():
        chain.declared = True
        draft.declare(chain.domain, chain.declaration)
    source: Literal["pool"] | None = "pool" if of_pool else None
    draft.stream_events.append(SnapshotBegin(snapshot=name, opened=opened(), source=source))
    holders.changed = False
    for table in holders.tables():
        _end_impossible(draft, table, hashes)
    for holder in holders.holders():
        holder.told = holder.counts
        draft.stream_events.append(
            Orphans(holder=holder.name, orphans=holder.orphans, unassigned=holder.unassigned)
        )
    return draft.finish()


def _end_impossible(draft: Draft, table: Table, hashes: HashMap) -> None:
    """Where the copies that are certain fill the whole pool, there is no room for an uncertain one."""
    holder = table.holder
    if holder.capacity is None or holder.certain != holder.capacity:
        return
    for copy in [copy for copy in table.every_copy() if not copy.certain]:
        table.end(copy, hashes)
        chain = copy.node.chain
        if chain is not None:
            draft.evicted(chain.domain, holder.name, table.index, copy.node.block, EvictReason.UNKNOWN, True)


def _ranges(name: str, table: Table) -> Iterator[Translation]:
    count = min(_PREFIXES, 1 + len(table.copies) // COPIES_PER_RECORD)
    buckets: list[list[bytes]] = [[] for _ in range(count)]
    for block in table.copies:
        buckets[_bucket(block, count)].append(block)
    watch = Watch()
    table.added.append(watch)
    try:
        for index in range(count):
            if watch.overrun:
                raise RestatementOverrunError(name)
            for block in watch.ids:
                buckets[_bucket(block, count)].append(block)
            watch.ids.clear()
            low = -(-index * _PREFIXES // count)
            high = -(-(index + 1) * _PREFIXES // count) - 1
            mark = SnapshotRange(
                snapshot=name,
                holder=table.holder.name,
                group=table.index,
                low=low.to_bytes(2, "big") + bytes(14),
                high=high.to_bytes(2, "big") + b"\xff" * 14,
            )
            yield Translation([mark], _parts(table, buckets[index]))
            buckets[index] = []
    finally:
        table.added = [other for other in table.added if other is not watch]


def _bucket(block: bytes, count: int) -> int:
    return int.from_bytes(block[:2]) * count // _PREFIXES


def _parts(table: Table, blocks: list[bytes]) -> dict[str, list[DomainEvent]]:
    """The named copies that are still there, by domain, in runs of equal attributes."""
    runs: dict[str, dict[tuple[int, bool, Lineage, int | None], tuple[list[bytes], list[bytes]]]] = {}
    for block in dict.fromkeys(blocks):
        copy = table.copies.get(block)
        if copy is None:
            continue
        chain = copy.node.chain
        assert chain is not None
        attributes = (chain.number, copy.certain, copy.lineage, copy.admitted_after)
        ids, parents = runs.setdefault(chain.domain, {}).setdefault(attributes, ([], []))
        ids.append(block)
        parents.append(copy.node.parent_block or ROOT_PARENT)
    return {
        domain: [
            SnapshotPart(
                runs=tuple(
                    CopyRun(
                        profile=number,
                        state=CopyState.COMMITTED if certain else CopyState.UNCERTAIN,
                        lineage=lineage,
                        admitted_after=admitted_after,
                        ids=tuple(ids),
                        parents=tuple(parents),
                    )
                    for (number, certain, lineage, admitted_after), (ids, parents) in by_attributes.items()
                )
            )
        ]
        for domain, by_attributes in runs.items()
    }
