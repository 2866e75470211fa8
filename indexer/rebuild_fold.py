"""Folding one partition from its first record in memory, with the history and the row ids of what comes out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from events.codec import BatchDecodeError, decode_batch
from events.fold.apply import apply_undecodable
from events.fold.change import Changes, CopiesPut
from events.fold.record import FOREIGN, fold_record
from events.fold.registry import Registry
from events.fold.state import CopyAttributes, StreamState
from events.ids import StreamKey
from events.kafka.connection import RawRecord
from indexer.applier import UNSTORABLE
from indexer.delta import CopyPlace
from indexer.postgres_write import Names
from indexer.projection import PartitionProjection
from indexer.stranger import StrangerCounts, StrangerLimits, Strangers

TIME_STEP_MS = 1_000
SUM_EVERY = 1_000
"""Records between two looks at what streams of nobody hold."""
LAST_MS = 253_402_300_799_000

SpanRow = tuple[int, int, bytes, int, int, int, str, int | None, datetime]
"""A row of `copy_span`, its columns in the table's order."""
CopyValues = tuple[int, int, bytes, bytes, int, int]
"""A row of `copy`, its columns in the table's order."""


class DeadRow(NamedTuple):
    offset: int
    reason: str
    found_at: datetime


@dataclass(slots=True)
class RowIds:
    """The next free id of each numbered table. Begin above what the index in force uses, so that an id
    never means two things to somebody who read it before the switch."""

    stream: int = 1
    holder: int = 1
    attribute: int = 1


@dataclass(slots=True)
class _Live:
    """(attribute id, begin) of each live copy; the tuple is shared by the copies that one record put."""

    places: dict[CopyPlace, dict[bytes, tuple[int, int]]] = field(default_factory=dict)


class PartitionRebuild:
    """One partition's fold. `fold` records in the order of the log, then read the rows.

    `spans` is appended to and is for the caller to take and empty. `refused` are the offsets of records that
    the indexer passed without their content because PostgreSQL couldn't hold it: they are passed here too.
    With a `registry`, streams of nobody are bounded as the indexer bounds them; before a record is folded it
    must have been read up to an end that kv.control had after the record was received.
    """

    def __init__(
        self,
        partition: int,
        start: int,
        ids: RowIds,
        refused: frozenset[int] = frozenset(),
        registry: Registry | None = None,
    ) -> None:
        self._strangers = (
            None if registry is None else Strangers(registry, StrangerLimits(), StrangerCounts())
        )
        self.projection = PartitionProjection(partition, start, strangers=self._strangers)
        self.names: dict[StreamKey, Names] = {}
        self.spans: list[SpanRow] = []
        self.dead: list[DeadRow] = []
        self.times: list[tuple[int, datetime]] = []
        self.records = 0
        self.block_operations = 0
        self._ids = ids
        self._refused = refused
        self._live: dict[StreamKey, _Live] = {}
        self._marked_ms = -TIME_STEP_MS
        self._last_ms = 0
        self._last: RawRecord | None = None

    @property
    def states(self) -> list[StreamState]:
        return list(self.projection.streams.values())

    @property
    def last_record(self) -> RawRecord | None:
        """The newest record folded; its hash is part of the position."""
        return self._last

    def fold(self, record: RawRecord) -> None:
        """Offsets may jump: aborted transactions leave none, and the reader doesn't skip."""
        if 0 < record.timestamp_ms < LAST_MS:
            self._last_ms = record.timestamp_ms
            if self._last_ms - self._marked_ms >= TIME_STEP_MS:
                self._marked_ms = self._last_ms
                self.times.append((record.offset + 1, _moment(self._last_ms)))
        changes: Changes | None
        dead: str | None
        if record.offset in self._refused:
            changes, dead = self._refuse(record)
        else:
            changes, dead = fold_record(self.projection.streams, record.value, self.projection.admit)
        if dead is not None and (dead != FOREIGN or self._strangers is None or self._strangers.bury):
            self.dead.append(DeadRow(record.offset, dead, _moment(self._last_ms)))
        if changes is not None:
            self._note(record.offset, changes)
            self._let_go()
        self.records += 1
        self._last = record
        self.projection.next_offset = record.offset + 1

    def _let_go(self) -> None:
        strangers = self._strangers
        if strangers is None or not strangers.held:
            return
        # What they hold is summed now and then only: one record brings little.
        if len(strangers.held) > strangers.limits.max_streams or self.records % SUM_EVERY == 0:
            self._drop(self.projection.let_go())

    def _drop(self, streams: Iterable[StreamKey]) -> None:
        for stream in streams:
            self._live.pop(stream, None)
            holders = set(self.names.pop(stream).holders.values())
            # What was written of its history already names no stream, and ages out.
            self.spans = [span for span in self.spans if span[0] not in holders]

    def _refuse(self, record: RawRecord) -> tuple[Changes | None, str]:
        try:
            batch = decode_batch(record.value)
        except BatchDecodeError:
            return None, UNSTORABLE
        state = self.projection.streams.get(batch.header.stream)
        return (None if state is None else apply_undecodable(state, batch.header.seq, UNSTORABLE)), UNSTORABLE

    def _note(self, offset: int, changes: Changes) -> None:
        state = self.projection.streams[changes.stream]
        names = self._names(state)
        self.block_operations += changes.block_operations
        if not changes.copies:
            return
        live = self._live.setdefault(changes.stream, _Live()).places
        ended_at = _moment(self._last_ms)
        for change in changes.copies:
            place = (change.holder, change.group)
            table = live.setdefault(place, {})
            if isinstance(change, CopiesPut):
                attribute = self._attribute(names, change.attributes)
                if table.keys().isdisjoint(change.ids):
                    table.update(dict.fromkeys(change.ids, (attribute, offset)))
                    continue
                for block in change.ids:
                    have = table.get(block)
                    table[block] = (attribute, offset if have is None else have[1])
                continue
            holder = self._holder(names, change.holder)
            group, reason, request = change.group, change.reason, change.request
            for block in change.ids:
                attribute, since = table.pop(block)
                self.spans.append((holder, group, block, attribute, since, offset, reason, request, ended_at))

    def _names(self, state: StreamState) -> Names:
        names = self.names.get(state.key)
        if names is None:
            names = self.names[state.key] = Names(self._ids.stream)
            self._ids.stream += 1
        if len(names.holders) < len(state.holders):
            for holder in state.holders:
                self._holder(names, holder)
        return names

    def _holder(self, names: Names, holder: str) -> int:
        found = names.holders.get(holder)
        if found is None:
            found = names.holders[holder] = self._ids.holder
            self._ids.holder += 1
        return found

    def _attribute(self, names: Names, attributes: CopyAttributes) -> int:
        found = names.attributes.get(attributes)
        if found is None:
            found = names.attributes[attributes] = self._ids.attribute
            self._ids.attribute += 1
        return found

    def prune(self, registry: Registry) -> None:
        """Ends what the indexer would end of superseded streams; call it when all is folded."""
        while (delta := self.projection.prune(registry)) is not None:
            self._drop(delta.forgotten)
            for stream, changed in delta.streams.items():
                names, live = self.names[stream], self._live[stream].places
                for (holder, group), copies in changed.copies.items():
                    for block, end in copies.ended.items():
                        attribute, since = live[holder, group].pop(block)
                        self.spans.append(
                            (
                                self._holder(names, holder),
                                group,
                                block,
                                attribute,
                                since,
                                end.to,
                                end.reason,
                                end.request,
                                _moment(self._last_ms),
                            )
                        )

    def copies(self) -> Iterator[CopyValues]:
        """Rows of the live copies, in no order."""
        for state in self.projection.streams.values():
            names, live = self.names[state.key], self._live.get(state.key, _Live()).places
            for (holder, group), table in state.copies.items():
                begun = live.get((holder, group), {})
                holder_id = self._holder(names, holder) if table else 0
                for block, (parent, _) in table.items():
                    attribute, since = begun[block]
                    yield holder_id, group, block, parent, attribute, since

    def forget_rows(self) -> None:
        """Once the rows are written nobody needs more than the states."""
        self._live.clear()
        self.names.clear()
        self.spans, self.dead, self.times = [], [], []


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1_000, UTC)


def span_columns() -> list[str]:
    """Columns of `SpanRow`."""
    return [
        "holder_id",
        "group_index",
        "block",
        "attribute_id",
        "from_offset",
        "to_offset",
        "reason",
        "request",
        "ended_at",
    ]


def copy_columns() -> list[str]:
    """Columns of `CopyValues`."""
    return ["holder_id", "group_index", "block", "parent", "attribute_id", "since_offset"]


def attribute_rows(names: Names) -> list[dict[str, Any]]:
    """Rows of `copy_attribute` with their ids."""
    from indexer.row import attribute_row

    return [
        {"id": number, "stream_id": names.stream_id, **attribute_row(attributes)}
        for attributes, number in names.attributes.items()
    ]
