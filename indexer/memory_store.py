"""The index in memory: the same contract as `PostgresStore`, for tests, rebuilds and people without a database."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from dataclasses import dataclass, field, replace

from events.fold.digest import copy_line, digest_lines, stream_line, superseded
from events.fold.registry import Registry
from events.fold.state import StreamState, Usage
from events.fold.stranger import counts
from events.ids import StreamKey, Tier
from indexer.delta import Delta, LiveCopy, StreamDelta
from indexer.row import (
    Row,
    add_copies,
    build_state,
    holder_row,
    profile_row,
    standing_row,
    stream_row,
    usage_row,
)
from indexer.store import Lease, LeaseLostError, Snapshot, UsageRow


@dataclass(slots=True)
class CopyHistory:
    """A span of a copy that ended."""

    stream: StreamKey
    holder: str
    group: int
    block: bytes
    since: int
    to: int
    reason: str
    request: int | None


@dataclass(slots=True)
class _StreamRows:
    row: Row
    holders: dict[str, Row] = field(default_factory=dict)
    profiles: dict[tuple[bytes, int], Row] = field(default_factory=dict)
    standings: dict[tuple[bytes, int], Row] = field(default_factory=dict)
    usage: dict[tuple[bytes, Tier], Row] = field(default_factory=dict)
    copies: dict[tuple[str, int], dict[bytes, LiveCopy]] = field(default_factory=dict)


@dataclass(slots=True)
class _PartitionRows:
    lease: Lease
    streams: dict[StreamKey, _StreamRows] = field(default_factory=dict)
    history: list[CopyHistory] = field(default_factory=list)
    dead: dict[int, str] = field(default_factory=dict)


class MemoryStore:
    """`indexer.store.Store` in one process' memory; atomic because nothing in a write awaits."""

    def __init__(self) -> None:
        self._partitions: dict[tuple[str, int], _PartitionRows] = {}

    async def claim(self, topic: str, partition: int) -> Lease:
        await asyncio.sleep(0)
        rows = self._partitions.get((topic, partition))
        if rows is None:
            lease = Lease(topic, partition, 1, 0, "", b"")
            self._partitions[topic, partition] = _PartitionRows(lease)
            return lease
        rows.lease = replace(rows.lease, term=rows.lease.term + 1)
        return rows.lease

    async def holds(self, lease: Lease) -> bool:
        await asyncio.sleep(0)
        rows = self._partitions.get((lease.topic, lease.partition))
        return rows is not None and rows.lease.term == lease.term

    async def load(self, lease: Lease) -> list[StreamState]:
        await asyncio.sleep(0)
        return [_state(rows) for rows in self._mine(lease).streams.values()]

    async def write(self, lease: Lease, delta: Delta) -> None:
        await asyncio.sleep(0)
        rows = self._mine(lease)
        stored = rows.lease
        if stored.next_offset != delta.first_offset:
            if (stored.next_offset, stored.last_record_sha256) == (
                delta.next_offset,
                delta.last_record_sha256,
            ):
                return
            raise LeaseLostError(lease.topic, lease.partition, lease.term)
        for key in delta.forgotten:
            rows.streams.pop(key, None)
            rows.history = [span for span in rows.history if span.stream != key]
        for key, stream_delta in delta.streams.items():
            _apply(rows, key, stream_delta, lease.partition)
        for letter in delta.dead:
            rows.dead[letter.offset] = letter.reason
        rows.lease = replace(
            stored, next_offset=delta.next_offset, last_record_sha256=delta.last_record_sha256
        )

    async def reset(self, lease: Lease, *, log_id: str, start: int, rebuild_until: int) -> Lease:
        await asyncio.sleep(0)
        self._mine(lease)
        fresh = Lease(lease.topic, lease.partition, lease.term, start, log_id, b"", rebuild_until)
        self._partitions[lease.topic, lease.partition] = _PartitionRows(fresh)
        return fresh

    async def digest(self, registry: Registry) -> str:
        await asyncio.sleep(0)
        lines: list[bytes] = []
        for (_, number), partition in self._partitions.items():
            for key, rows in partition.streams.items():
                if not counts(registry, key, number):
                    continue
                row = rows.row
                over = superseded(registry, key, row["epoch_no"])
                if not over:
                    lines.append(
                        stream_line(key, row["epoch_no"], row["next_seq"], row["prev"], row["status"])
                    )
                for (holder, group), table in rows.copies.items():
                    if over and rows.holders[holder]["durable_id"] is None:
                        continue
                    lines.extend(
                        copy_line(key, holder, group, block, copy.attributes.state)
                        for block, copy in table.items()
                    )
        return digest_lines(lines)

    async def usage(self) -> dict[UsageRow, Usage]:
        await asyncio.sleep(0)
        return {
            (key, alias, tier): Usage(row["blocks"], row["bytes"])
            for partition in self._partitions.values()
            for key, rows in partition.streams.items()
            for (alias, tier), row in rows.usage.items()
            if row["blocks"] or row["bytes"]
        }

    async def snapshot(self, topic: str) -> Snapshot:
        await asyncio.sleep(0)
        snapshot = Snapshot("")
        for (name, number), partition in self._partitions.items():
            if name == topic:
                snapshot.log_id = partition.lease.log_id
                snapshot.positions[number] = partition.lease.next_offset
                if partition.lease.last_record_sha256:
                    snapshot.last_sha256[number] = partition.lease.last_record_sha256
                snapshot.states.extend((number, _state(rows)) for rows in partition.streams.values())
        return snapshot

    def history(self) -> list[CopyHistory]:
        """Every span of a copy that ended, in the order of writing."""
        return [span for partition in self._partitions.values() for span in partition.history]

    def dead(self) -> dict[tuple[str, int, int], str]:
        """(topic, partition, offset) of each dead record, with its reason."""
        return {
            (*place, offset): reason
            for place, partition in self._partitions.items()
            for offset, reason in partition.dead.items()
        }

    def _mine(self, lease: Lease) -> _PartitionRows:
        rows = self._partitions.get((lease.topic, lease.partition))
        if rows is None or rows.lease.term != lease.term:
            raise LeaseLostError(lease.topic, lease.partition, lease.term)
        return rows


def _apply(partition: _PartitionRows, key: StreamKey, delta: StreamDelta, number: int) -> None:
    state = delta.state
    row = stream_row(state, number)
    rows = partition.streams.setdefault(key, _StreamRows(row))
    rows.row = row
    rows.holders.update({name: holder_row(state.holders[name]) for name in delta.holders})
    rows.profiles.update({which: profile_row(state.profiles[which]) for which in delta.profiles})
    rows.standings.update({which: standing_row(*which, state.standings[which]) for which in delta.standings})
    rows.usage.update({which: usage_row(*which, state.usage[which]) for which in delta.usage})
    for place, copies in delta.copies.items():
        table = rows.copies.setdefault(place, {})
        for block, end in copies.ended.items():
            had = table.pop(block, None) or end.put
            if had is not None:
                partition.history.append(
                    CopyHistory(key, *place, block, had.since, end.to, end.reason, end.request)
                )
        for passing in copies.passing:
            partition.history.append(
                CopyHistory(
                    key,
                    *place,
                    passing.block,
                    passing.copy.since,
                    passing.to,
                    passing.reason,
                    passing.request,
                )
            )
        for block, copy in copies.live.items():
            had = table.get(block)
            table[block] = copy if had is None else copy._replace(since=had.since)


def _state(rows: _StreamRows) -> StreamState:
    state = build_state(
        deepcopy(rows.row),
        holders=deepcopy(list(rows.holders.values())),
        profiles=deepcopy(list(rows.profiles.values())),
        standings=rows.standings.values(),
        usage=rows.usage.values(),
    )
    add_copies(
        state,
        (
            (holder, group, block, copy.parent, copy.attributes)
            for (holder, group), table in rows.copies.items()
            for block, copy in table.items()
        ),
    )
    return state
