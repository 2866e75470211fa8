"""One stream as its rows in the index have to be: the auditor's own fold, with tables that keep what was told.

A verdict needs every record number that was ever seen; rows need the last one only, so what is kept is bounded by
what the stream holds and not by its length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from auditor.content import Content, Landing
from auditor.fold import StreamFold
from auditor.record import StreamRecord
from auditor.residency import Place
from auditor.row_table import RowCopy, RowTables
from auditor.seen import SeenHashes
from events.ids import Inventory, StreamStatus
from events.model.part import (
    Ack,
    HolderDeclared,
    Opened,
    Refused,
    SnapshotBegin,
    SnapshotEnd,
    Statement,
    StreamEvent,
    UnknownEvents,
)

MAX_INTEGER = (1 << 63) - 1


class Answer(NamedTuple):
    """How the stream last answered a request, and in which record."""

    removed: int
    old_left: int
    orphans: int
    unassigned: int
    seq: int
    refused: str | None
    offset: int


def _content() -> Content:
    return Content(tables=RowTables())


@dataclass(slots=True)
class RowStream(StreamFold):
    """`offset` is that of the last record that belongs to the stream; `duplicates`, `unknown_events`, `answers`
    and `nonces` are as the index counts and keeps them."""

    content: Content = field(default_factory=_content)
    offset: int = 0
    told: Opened | None = None
    installed: tuple[int, bytes] = (-1, b"")
    duplicates: int = 0
    unknown_events: int = 0
    answers: dict[tuple[bytes, int], Answer] = field(default_factory=dict)
    nonces: dict[bytes, int] = field(default_factory=dict)
    declared_at: dict[tuple[bytes, int], int] = field(default_factory=dict)

    @property
    def rows(self) -> RowTables:
        tables = self.content.tables
        assert isinstance(tables, RowTables)
        return tables

    def apply(self, record: StreamRecord) -> list[Landing] | None:
        """Folds one record. Of repeated ones only the last is compared, as the index does: an older
        equivocation is for the verdict's fold to find."""
        header = record.header
        self.offset = record.offset
        self.rows.offset = record.offset
        if header.seq < self.next_seq:
            if header.seq == self.next_seq - 1 and self.prev and self.prev != record.header_sha256:
                self._fault(StreamStatus.QUARANTINED, "equivocation", header.seq, "two records", sticky=True)
            else:
                self.duplicates += 1
            self._forget()
            return None
        landed = super(RowStream, self).apply(record)
        self._forget()
        return landed

    def apply_unreadable(self, seq: int, reason: str) -> None:
        super(RowStream, self).apply_unreadable(seq, reason)
        self._forget()

    def _forget(self) -> None:
        """What only a verdict needs, and grows with the log."""
        self.seen = SeenHashes()
        self.faults.clear()
        self.divergences.clear()
        for unverified in self.rows.unverified.values():
            unverified.clear()

    def _events(self, record: StreamRecord) -> list[Landing]:
        self.installed = (record.header.control.offset, record.header.control.hash)
        known = set(self.declarations)
        landed = super(RowStream, self)._events(record)
        self._overflowed(record.header.seq)
        for key in self.declarations.keys() - known:
            self.declared_at[key] = record.offset
        for alias, events in record.parts.items():
            for event in events:
                if isinstance(event, Ack):
                    for one in event.requests:
                        self.answers[alias, one.request] = Answer(
                            one.removed, one.old_left, one.orphans, one.unassigned,
                            record.header.seq, None, record.offset,
                        )  # fmt: skip
                    if event.nonce is not None:
                        self.nonces[alias] = event.nonce
                elif isinstance(event, Refused):
                    self.answers[alias, event.request] = Answer(
                        0, 0, 0, 0, record.header.seq, event.reason, record.offset
                    )
        return landed

    def _stream_event(self, event: StreamEvent, seq: int, installed: int) -> None:
        super(RowStream, self)._stream_event(event, seq, installed)
        if isinstance(event, Opened | SnapshotBegin):
            self.told = event if isinstance(event, Opened) else event.opened
            self.rows.capacity = {
                name: holder.capacity_blocks for name, holder in self.content.declared_holders.items()
            }
        elif isinstance(event, UnknownEvents):
            self.unknown_events = min(self.unknown_events + event.count, MAX_INTEGER)

    def _end_snapshot(self, event: SnapshotEnd) -> None:
        self._overflowed(self.next_seq - 1)
        super(RowStream, self)._end_snapshot(event)

    def _compare(self, alias: bytes, event: Statement, seq: int) -> None:
        self._overflowed(seq)
        super(RowStream, self)._compare(alias, event, seq)

    def _overflowed(self, seq: int) -> None:
        """Copies that weren't kept: until a complete snapshot that fits."""
        if self.rows.overflow:
            self.rows.overflow = 0
            self._fault(StreamStatus.QUARANTINED, "over_capacity", seq, "more copies than may be held")

    def holder_of(self, name: str) -> HolderDeclared:
        return self.content.declared_holders[name]

    def inventory_of(self, name: str) -> str:
        """As the index writes it: partial by a loss has a word of its own."""
        view = self.holders[name]
        return "lost" if view.lost and view.inventory is Inventory.PARTIAL else view.inventory.value

    def copies(self) -> Iterator[tuple[Place, bytes, RowCopy]]:
        """Every copy that it holds."""
        for place, table in self.rows.places.items():
            for block, copy in table.items():
                assert isinstance(copy, RowCopy)
                yield place, block, copy

    def usage(self) -> dict[tuple[bytes, str], tuple[int, int]]:
        """(blocks, bytes) by (alias, tier)."""
        found: dict[tuple[bytes, str], tuple[int, int]] = {}
        for place, table in self.rows.places.items():
            sizes: dict[int, int] = {}
            total = 0
            for copy in table.values():
                size = sizes.get(copy.number)
                if size is None:
                    declared = self.declarations.get((place.alias, copy.number))
                    told = declared.block_bytes if declared is not None else ()
                    size = sizes[copy.number] = told[place.group] if place.group < len(told) else 0
                total += size
            key = (place.alias, self.holders[place.holder].tier.value)
            blocks, bytes_ = found.get(key, (0, 0))
            found[key] = (blocks + len(table), bytes_ + total)
        return found
