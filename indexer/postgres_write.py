"""One delta as bulk statements inside a transaction that the store has opened and fenced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from events.fold.state import CopyAttributes
from events.ids import StreamKey
from events.keyring import KeyRing
from indexer import copy_sql
from indexer.bulk import encode, upsert
from indexer.delta import Delta, EndedCopy, StreamDelta
from indexer.row import (
    SCALARS,
    Row,
    attribute_row,
    attributes_of,
    holder_row,
    profile_row,
    standing_row,
    stream_row,
    usage_row,
)
from indexer.store import Lease

STREAM_KEY = ("partition", "worker", "rank", "epoch")
STREAM_COLUMNS = (*STREAM_KEY, *SCALARS, "unknown_events", "nonces", "transfers", "snapshot")
STREAM = upsert(
    "stream", STREAM_COLUMNS, key=STREAM_KEY, returning=("id", "worker", "rank", "epoch"), touch="updated_at"
)
HOLDER_COLUMNS = (
    "stream_id",
    "name",
    "tier",
    "capacity_blocks",
    "durable_id",
    "groups",
    "inventory",
    "orphans",
    "unassigned",
)
HOLDER = upsert("holder", HOLDER_COLUMNS, key=("stream_id", "name"), returning=("id", "stream_id", "name"))
PROFILE = upsert(
    "profile",
    (
        "stream_id",
        "alias",
        "number",
        "profile_id",
        "content",
        "layout",
        "block_bytes",
        "missing",
        "retired",
    ),
    key=("stream_id", "alias", "number"),
)
ALIAS = upsert("stream_alias", ("stream_id", "alias", "domain"), key=("stream_id", "alias"), keep=True)
ATTRIBUTE_COLUMNS = ("stream_id", *CopyAttributes._fields)
ATTRIBUTE = upsert(
    "copy_attribute", ATTRIBUTE_COLUMNS, key=ATTRIBUTE_COLUMNS, returning=("id", *ATTRIBUTE_COLUMNS)
)
USAGE = upsert(
    "tenant_usage", ("stream_id", "alias", "tier", "blocks", "bytes"), key=("stream_id", "alias", "tier")
)
STANDING = upsert(
    "deletion_ack",
    ("stream_id", "alias", "request", "removed", "old_left", "orphans", "unassigned", "seq", "refused"),
    key=("stream_id", "alias", "request"),
    touch="updated_at",
)
DEAD = upsert(
    "dead_record",
    ("topic", "partition", "offset", "reason"),
    key=("topic", "partition", "offset"),
    keep=True,
)


@dataclass(slots=True)
class Names:
    """Row ids of one stream, remembered from committed transactions only."""

    stream_id: int
    holders: dict[str, int] = field(default_factory=dict)
    attributes: dict[CopyAttributes, int] = field(default_factory=dict)
    aliases: set[bytes] = field(default_factory=set)


async def write_delta(
    connection: Any, lease: Lease, delta: Delta, known: Mapping[StreamKey, Names], keyring: KeyRing
) -> dict[StreamKey, Names]:
    """Writes everything but the position; returns the streams' row ids, true once the caller commits."""
    await _forget(connection, lease, delta)
    names = await _streams(connection, lease, delta, known)
    await _holders(connection, delta, names)
    await _aliases(connection, delta, names, keyring)
    await _attributes(connection, delta, names)
    await _copies(connection, delta, names)
    await _small(connection, lease, delta, names)
    return names


async def _run(connection: Any, sql: str, rows: Iterable[Mapping[str, Any]]) -> list[Any]:
    rows = list(rows)
    return list(await connection.fetch(sql, encode(rows))) if rows else []


async def _forget(connection: Any, lease: Lease, delta: Delta) -> None:
    if not delta.forgotten:
        return
    await connection.execute(
        copy_sql.FORGET_STREAMS,
        lease.partition,
        [stream.worker for stream in delta.forgotten],
        [stream.rank for stream in delta.forgotten],
        [stream.epoch for stream in delta.forgotten],
    )


async def _streams(
    connection: Any, lease: Lease, delta: Delta, known: Mapping[StreamKey, Names]
) -> dict[StreamKey, Names]:
    names: dict[StreamKey, Names] = {}
    rows = [stream_row(stream.state, lease.partition) for stream in delta.streams.values()]
    for row in await _run(connection, STREAM, rows):
        key = StreamKey(row["worker"], row["rank"], row["epoch"])
        have = known.get(key)
        if have is not None and have.stream_id == row["id"]:
            names[key] = Names(have.stream_id, dict(have.holders), have.attributes, set(have.aliases))
        else:
            names[key] = Names(row["id"])
    return names


async def _holders(connection: Any, delta: Delta, names: dict[StreamKey, Names]) -> None:
    rows: list[Row] = []
    by_id = {name.stream_id: name for name in names.values()}
    for key, stream in delta.streams.items():
        mine = names[key]
        wanted = stream.holders | {holder for holder, _ in stream.copies if holder not in mine.holders}
        rows.extend(
            {"stream_id": mine.stream_id, **holder_row(stream.state.holders[name])} for name in sorted(wanted)
        )
    for row in await _run(connection, HOLDER, rows):
        by_id[row["stream_id"]].holders[row["name"]] = row["id"]


async def _aliases(connection: Any, delta: Delta, names: dict[StreamKey, Names], keyring: KeyRing) -> None:
    rows: list[Row] = []
    for key, stream in delta.streams.items():
        mine = names[key]
        seen = {alias for alias, _ in stream.usage | stream.profiles | stream.standings} - mine.aliases
        if seen:
            domains = keyring.aliases(key.worker, key.rank, stream.state.epoch_no)
            rows.extend(
                {"stream_id": mine.stream_id, "alias": alias, "domain": domains.get(alias)}
                for alias in sorted(seen)
            )
            mine.aliases |= seen
    await _run(connection, ALIAS, rows)


def _attributes_used(stream: StreamDelta) -> set[CopyAttributes]:
    used: set[CopyAttributes] = set()
    for copies in stream.copies.values():
        used.update({copy.attributes for copy in copies.live.values()})
        used.update({end.put.attributes for end in copies.ended.values() if end.put is not None})
        used.update({passing.copy.attributes for passing in copies.passing})
    return used


async def _attributes(connection: Any, delta: Delta, names: dict[StreamKey, Names]) -> None:
    rows: list[Row] = []
    by_id = {name.stream_id: name for name in names.values()}
    for key, stream in delta.streams.items():
        mine = names[key]
        new = [attributes for attributes in _attributes_used(stream) if attributes not in mine.attributes]
        if new:
            mine.attributes = dict(mine.attributes)
            rows.extend({"stream_id": mine.stream_id, **attribute_row(attributes)} for attributes in new)
    for row in await _run(connection, ATTRIBUTE, rows):
        by_id[row["stream_id"]].attributes[attributes_of(row)] = row["id"]


@dataclass(slots=True)
class _Columns:
    """Column-wise rows for `unnest`."""

    width: int
    columns: list[list[Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.columns = [[] for _ in range(self.width)]

    def add(self, *values: Any) -> None:
        for column, value in zip(self.columns, values, strict=True):
            column.append(value)

    def __bool__(self) -> bool:
        return bool(self.columns[0])


def _block(item: tuple[bytes, object]) -> bytes:
    return item[0]


async def _copies(connection: Any, delta: Delta, names: dict[StreamKey, Names]) -> None:
    ended, taken, spans = _Columns(6), _Columns(3), _Columns(8)
    put: list[list[Any]] = [[] for _ in range(6)]
    begun: dict[tuple[int, int, bytes], tuple[EndedCopy, int]] = {}
    for key, stream in sorted(delta.streams.items(), key=lambda item: names[item[0]].stream_id):
        mine = names[key]
        ids = mine.attributes
        for (holder, group), copies in stream.copies.items():
            holder_id = mine.holders[holder]
            # In key order: neighbours in the index are written together.
            for block, end in sorted(copies.ended.items(), key=_block):
                if end.put is None:
                    ended.add(holder_id, group, block, end.to, end.reason, end.request)
                else:
                    taken.add(holder_id, group, block)
                    begun[holder_id, group, block] = (end, ids[end.put.attributes])
            for block, copy, to, reason, request in copies.passing:
                spans.add(holder_id, group, block, ids[copy.attributes], copy.since, to, reason, request)
            live = sorted(copies.live.items(), key=_block)
            put[0].extend([holder_id] * len(live))
            put[1].extend([group] * len(live))
            put[2].extend([block for block, _ in live])
            put[3].extend([copy.parent for _, copy in live])
            put[4].extend([ids[copy.attributes] for _, copy in live])
            put[5].extend([copy.since for _, copy in live])
    if ended:
        await connection.execute(copy_sql.END, *ended.columns)
    if taken:
        since = {
            (row["holder_id"], row["group_index"], bytes(row["block"])): row["since_offset"]
            for row in await connection.fetch(copy_sql.TAKE, *taken.columns)
        }
        for place, (end, attribute_id) in begun.items():
            assert end.put is not None
            first = since.get(place, end.put.since)
            spans.add(*place, attribute_id, first, end.to, end.reason, end.request)
    if put[0]:
        await connection.execute(copy_sql.PUT, *put)
    if spans:
        await connection.execute(copy_sql.SPANS, *spans.columns)


async def _small(connection: Any, lease: Lease, delta: Delta, names: dict[StreamKey, Names]) -> None:
    profiles: list[Row] = []
    usage: list[Row] = []
    standings: list[Row] = []
    for key, stream in delta.streams.items():
        own, state = {"stream_id": names[key].stream_id}, stream.state
        profiles.extend({**own, **profile_row(state.profiles[which])} for which in stream.profiles)
        usage.extend({**own, **usage_row(*which, state.usage[which])} for which in stream.usage)
        standings.extend(
            {**own, **standing_row(*which, state.standings[which])} for which in stream.standings
        )
    await _run(connection, PROFILE, profiles)
    await _run(connection, USAGE, usage)
    await _run(connection, STANDING, standings)
    dead = [
        {
            "topic": lease.topic,
            "partition": lease.partition,
            "offset": letter.offset,
            "reason": letter.reason,
        }
        for letter in delta.dead
    ]
    await _run(connection, DEAD, dead)
    if 0 < delta.appended_ms < 253_402_300_800_000:
        await connection.execute(
            copy_sql.MARK_TIME, lease.partition, delta.next_offset, delta.appended_ms / 1_000
        )
