"""What is given up to keep a stream's memory within limits, and how that is said. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from events.hooks.domain_book import DomainBook
from events.hooks.engine_config import EngineConfig
from events.hooks.engine_identity import HashMap
from events.hooks.holder_book import HolderBook
from events.hooks.inventory import Copy, Holder, Table
from events.hooks.translation import Draft
from events.ids import EvictReason


@dataclass(slots=True)
class StreamBounds:
    """What was given up since the start, each time visibly in the log: copies `forgotten` (holder partial),
    prompts without an id as there were too many profiles, stores `unplaced` (tier or group unknown, or too
    many groups)."""

    forgotten: int = 0
    refused_profiles: int = 0
    unplaced: int = 0


class InventoryBound:
    """Looks at one stream's inventory after each batch; `given_up` counts."""

    def __init__(self, config: EngineConfig, holders: HolderBook, hashes: HashMap, book: DomainBook) -> None:
        self.given_up = StreamBounds()
        self._config = config
        self._holders = holders
        self._hashes = hashes
        self._book = book

    def keep(self, draft: Draft) -> None:
        """Keeps memory within limits, and says what is no longer known for that."""
        config = self._config
        for holder in self._holders.holders():
            if holder.doubtful > config.doubtful_kept:
                self._forget(draft, holder, drop_doubtful(holder, config.doubtful_kept // 2, self._hashes))
            limit = config.copies_limit(holder.tier)
            if holder.total > limit:
                self._forget(draft, holder, drop_oldest(holder, 3 * limit // 4, self._hashes))
        self._hashes.trim()
        if self._hashes.made > config.hashes_limit and self._hashes.census() > config.hashes_limit:
            self._forget_all(draft)
        if self._book.refused != self.given_up.refused_profiles:
            if not self.given_up.refused_profiles:
                draft.flag(f"more than {config.profiles_kept} profiles", 0)
            self.given_up.refused_profiles = self._book.refused

    def _forget(self, draft: Draft, holder: Holder, dropped: list[tuple[Table, Copy]]) -> None:
        self.given_up.forgotten += len(dropped)
        for table, copy in dropped:
            node = copy.node
            if node.chain is not None:
                draft.evicted(
                    node.chain.domain, holder.name, table.index, node.block, EvictReason.UNKNOWN, True
                )
        # The snapshot's end says that the holder is partial.
        draft.restated = True

    def _forget_all(self, draft: Draft) -> None:
        """Chains whose beginnings are long gone hold more than may be kept: no engine makes such."""
        for holder in self._holders.holders():
            held = [(table, copy) for table in holder.tables.values() for copy in table.every_copy()]
            self._forget(draft, holder, held)
            for table in holder.tables.values():
                table.clear(self._hashes)
            holder.partial = True
        self._hashes.clear()


def drop_oldest(holder: Holder, keep: int, hashes: HashMap) -> list[tuple[Table, Copy]]:
    """Forgets all but `keep` copies: those without id first, then those that may be gone, then the oldest
    others, of each group as many as its share. The holder is partial from now on."""
    dropped: list[tuple[Table, Copy]] = []

    def drop(choose: Callable[[Table, int], list[Copy]]) -> None:
        total = holder.total
        if total <= keep:
            return
        for table in holder.tables.values():
            share = -(-(total - keep) * len(table) // total)
            for copy in choose(table, min(share, holder.total - keep)):
                table.end(copy, hashes)
                dropped.append((table, copy))

    drop(lambda table, _: list(islice(table.nameless.values(), max(0, holder.total - keep))))
    drop(lambda table, _: [c for c in table.copies.values() if not c.certain][: max(0, holder.total - keep)])
    drop(lambda table, share: list(islice(table.copies.values(), max(0, share))))
    holder.partial = holder.partial or bool(dropped)
    return dropped


def drop_doubtful(holder: Holder, keep: int, hashes: HashMap) -> list[tuple[Table, Copy]]:
    """Forgets the oldest copies that may be gone, all but `keep`. As they may also still be there, the
    holder is partial from now on."""
    excess = holder.doubtful - keep
    dropped: list[tuple[Table, Copy]] = []
    for table in holder.tables.values():
        for copy in [copy for copy in table.every_copy() if not copy.certain][: excess - len(dropped)]:
            table.end(copy, hashes)
            dropped.append((table, copy))
    holder.partial = holder.partial or bool(dropped)
    return dropped
