"""Where copies were at an earlier position of the log: by replay up to it, or from the index's own history.

KvledgerError
└── PositionError     there is no such position in this log; the message says why
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from events.errors import KvledgerError
from events.fold.digest import superseded
from events.fold.registry import Registry
from events.fold.state import StreamState
from events.fold.stranger import foreign
from events.ids import StreamKey, Tier
from events.kafka.connection import KafkaConnection, LogTail, LogUnavailableError
from events.keyring import KeyRing
from events.token import Token
from events.topic import CONTROL, EVENTS
from indexer.copy_sql import HOLD_TABLES
from indexer.database import UNAVAILABLE, connect
from indexer.store import StoreUnavailableError


class PositionError(KvledgerError):
    """Ask for another time or token."""


@dataclass(frozen=True, slots=True)
class LogPosition:
    """Offsets of the next record; `starts` are the oldest that the log still holds."""

    events: dict[int, int]
    control: int
    starts: dict[int, int]

    @property
    def whole(self) -> bool:
        """Whether a replay up to here begins at the log's first record."""
        return not any(self.starts.values())


@dataclass(frozen=True, slots=True)
class Place:
    """`copy_state` is None from history, which knows when a copy was there, not how it stood."""

    worker: str
    rank: int
    epoch: str
    holder: str
    tier: Tier
    domain: str | None
    copy_state: str | None
    stream_status: str | None
    registered: bool
    blocks: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """None: any. `block` is a 16-byte id."""

    worker: str | None = None
    domain: str | None = None
    block: bytes | None = None


async def position_of_time(connection: KafkaConnection, partitions: int, at_ms: int) -> LogPosition:
    """Behind the last record that the broker stamped at or before `at_ms`. Raises PositionError for a time
    before the log's start, and LogUnavailableError."""
    found, starts, ends = await _offsets(connection, partitions, at_ms)
    control = (connection.topic(CONTROL), 0)
    if found[control] == 0:
        raise PositionError("the log begins later than that time")
    position = {where: ends[where] if at is None else at for where, at in found.items()}
    for where, at in position.items():
        if starts[where] > 0 and at <= starts[where]:
            raise PositionError(f"{where[0]}[{where[1]}] no longer holds records from before that time")
    return _position(connection, position, starts)


async def position_of_token(connection: KafkaConnection, registry: Registry, token: Token) -> LogPosition:
    """Raises PositionError for a token of another log, or beyond this one's end, and LogUnavailableError."""
    if token.log != registry.log:
        raise PositionError(f"the token is of log {token.log}, this is {registry.log}")
    if len(token.events) > registry.partitions:
        raise PositionError(
            f"the token names {len(token.events)} partitions, the log has {registry.partitions}"
        )
    _, starts, ends = await _offsets(connection, registry.partitions, 0)
    topic, control = connection.topic(EVENTS), connection.topic(CONTROL)
    position = {(topic, number): 0 for number in range(registry.partitions)}
    position.update({(topic, number): at for number, at in enumerate(token.events)})
    position[control, 0] = token.control
    for where, at in position.items():
        if at > ends[where]:
            raise PositionError(
                f"the token is beyond the log's end: {where[0]}[{where[1]}] ends at {ends[where]}"
            )
        if 0 < at < starts[where]:
            raise PositionError(f"the log no longer holds {where[0]}[{where[1]}] before {starts[where]}")
    return _position(connection, position, starts)


def _position(
    connection: KafkaConnection, at: Mapping[tuple[str, int], int], starts: Mapping[tuple[str, int], int]
) -> LogPosition:
    topic = connection.topic(EVENTS)
    return LogPosition(
        {number: offset for (name, number), offset in at.items() if name == topic},
        at[connection.topic(CONTROL), 0],
        {number: offset for (name, number), offset in starts.items() if name == topic},
    )


_Offsets = dict[tuple[str, int], int]


async def _offsets(
    connection: KafkaConnection, partitions: int, at_ms: int
) -> tuple[dict[tuple[str, int], int | None], _Offsets, _Offsets]:
    places = {(connection.topic(EVENTS), number): 0 for number in range(partitions)}
    tail = LogTail(connection, {**places, (connection.topic(CONTROL), 0): 0})
    await tail.start()
    try:
        return await tail.offsets_after(at_ms), await tail.beginning_offsets(), await tail.end_offsets()
    finally:
        await tail.stop()


async def registry_at(connection: KafkaConnection, registry: Registry, offset: int) -> Registry:
    """Folds `kv.control` before `offset` into the given, empty registry. Raises LogUnavailableError."""
    tail = LogTail(connection, {(connection.topic(CONTROL), 0): 0})
    try:
        await tail.start()
        while registry.next_offset < offset:
            for record in await tail.fetch(timeout_ms=500, max_records=2_000):
                if record.offset < offset:
                    registry.fold(record.offset, record.value, record.signature)
            if registry.next_offset < offset <= await tail.position(connection.topic(CONTROL), 0):
                raise LogUnavailableError(f"kv.control holds no record at {registry.next_offset}")
    except ValueError as error:
        raise LogUnavailableError(str(error)) from error
    finally:
        await tail.stop()
    return registry


def places_of(
    states: Iterable[StreamState], registry: Registry, keyring: KeyRing, wanted: Wanted
) -> list[Place]:
    """Counts of a replayed fold; volatile copies of superseded streams are left out, as in the digest,
    and so are streams that are provably nobody's."""
    by_key = {state.key: state for state in states}
    tally: Counter[tuple[StreamKey, str, bytes, str]] = Counter()
    for state in by_key.values():
        if wanted.worker not in (None, state.key.worker):
            continue
        if foreign(registry, state.key, state.epoch_no):
            continue
        gone = superseded(registry, state.key, state.epoch_no)
        for (holder, _), table in state.copies.items():
            if gone and state.holders[holder].durable_id is None:
                continue
            found = table.values() if wanted.block is None else filter(None, (table.get(wanted.block),))
            for _, attributes in found:
                tally[state.key, holder, attributes.alias, attributes.state.value] += 1
    places = []
    for (key, holder, alias, copy_state), blocks in tally.items():
        state = by_key[key]
        domain = keyring.domain_of_alias(alias, key.worker, key.rank, state.epoch_no)
        places.append(
            Place(
                key.worker,
                key.rank,
                key.epoch,
                holder,
                state.holders[holder].tier,
                domain,
                copy_state,
                state.status.value,
                key in registry.registrations,
                blocks,
            )
        )
    return _kept(places, wanted)


def _kept(places: Iterable[Place], wanted: Wanted) -> list[Place]:
    kept = [place for place in places if wanted.domain in (None, place.domain)]
    return sorted(
        kept, key=lambda p: (p.worker, p.rank, p.epoch, p.holder, p.domain or "", p.copy_state or "")
    )


HISTORY = """
SELECT s.worker, s.rank, s.epoch, s.epoch_no, h.name AS holder, h.tier, h.durable_id, t.alias,
       count(*) AS blocks
FROM (
    SELECT holder_id, attribute_id, block, since_offset AS from_offset, NULL::int8 AS to_offset FROM copy
    UNION ALL SELECT holder_id, attribute_id, block, from_offset, to_offset FROM copy_span
) x
JOIN copy_attribute t ON t.id = x.attribute_id
JOIN holder h ON h.id = x.holder_id
JOIN stream s ON s.id = h.stream_id
JOIN unnest($1::int4[], $2::int8[]) AS p(number, position) ON p.number = s.partition
WHERE x.from_offset < p.position AND (x.to_offset IS NULL OR x.to_offset >= p.position)
AND ($3::text IS NULL OR s.worker = $3) AND ($4::bytea IS NULL OR x.block = $4)
GROUP BY s.id, h.id, t.alias
"""
COVERED = """
SELECT p.number FROM unnest($2::int4[], $3::int8[]) AS p(number, position)
LEFT JOIN partition_progress g ON g.topic = $1 AND g.partition = p.number
WHERE p.position > 0 AND (g.next_offset IS NULL OR g.log_id <> $4 OR g.next_offset < p.position
    OR p.position < (SELECT min(next_offset) FROM partition_time t WHERE t.partition = p.number))
"""


async def places_from_history(
    dsn: str, topic: str, registry: Registry, keyring: KeyRing, position: LogPosition, wanted: Wanted
) -> list[Place] | None:
    """The same from rows of the index and its history; None if they don't reach the position, forward or
    back. Raises StoreUnavailableError."""
    numbers, offsets = list(position.events), list(position.events.values())
    connection: Any = None
    try:
        connection = await connect(dsn, name="kvledger index at")
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            await connection.execute(HOLD_TABLES)
            if await connection.fetch(COVERED, topic, numbers, offsets, registry.log):
                return None
            rows = await connection.fetch(HISTORY, numbers, offsets, wanted.worker, wanted.block)
    except UNAVAILABLE as error:
        raise StoreUnavailableError(f"PostgreSQL: {type(error).__name__}") from error
    finally:
        if connection is not None:
            connection.terminate()
    places = []
    for row in rows:
        key = StreamKey(row["worker"], row["rank"], row["epoch"])
        if foreign(registry, key, row["epoch_no"]):
            continue
        if superseded(registry, key, row["epoch_no"]) and row["durable_id"] is None:
            continue
        domain = keyring.domain_of_alias(bytes(row["alias"]), key.worker, key.rank, row["epoch_no"])
        places.append(
            Place(
                key.worker,
                key.rank,
                key.epoch,
                row["holder"],
                Tier(row["tier"]),
                domain,
                None,
                None,
                key in registry.registrations,
                row["blocks"],
            )
        )
    return _kept(places, wanted)
