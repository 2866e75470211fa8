"""The index in PostgreSQL: `indexer.store.Store` with one transaction a batch and a term that fences."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from events.fold.digest import copy_line, digest_lines, stream_line, superseded
from events.fold.registry import Registry
from events.fold.state import StreamState, Usage
from events.fold.stranger import counts
from events.ids import StreamKey, Tier
from events.keyring import KeyRing
from indexer import copy_sql
from indexer.database import REFUSED, UNAVAILABLE, connect
from indexer.delta import Delta
from indexer.postgres_load import load_states
from indexer.postgres_write import Names, write_delta
from indexer.store import (
    Lease,
    LeaseLostError,
    Snapshot,
    StoreRefusedError,
    StoreUnavailableError,
    UsageRow,
)

REBUILD_NAME = "kvledger rebuild"
"""The application name of the session that switches the index."""
BLOCKED_AFTER_S = 2.0
"""How long a claim waits for the old owner's transaction before it ends that backend."""


class PostgresStore:
    """One connection, used by one task at a time; opened on first use and again after a failure.

    `keyring` is asked for the names of domains when an alias is first seen; `schema` holds the tables, the
    server's default if None.
    """

    def __init__(
        self,
        dsn: str,
        *,
        keyring: KeyRing | None = None,
        name: str = "kvledger indexer",
        schema: str | None = None,
    ) -> None:
        self._dsn = dsn
        self._schema = schema
        self._name = name
        self._keyring = KeyRing({}) if keyring is None else keyring
        self._connection: Any = None
        self._lock = asyncio.Lock()
        self._names: dict[int, dict[StreamKey, Names]] = {}

    async def close(self) -> None:
        """Ends the connection; the store may be used again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await connection.close(timeout=2)
            except UNAVAILABLE:
                connection.terminate()

    @asynccontextmanager
    async def _use(self) -> AsyncIterator[Any]:
        async with self._lock:
            try:
                if self._connection is None or self._connection.is_closed():
                    self._connection = await connect(self._dsn, name=self._name, schema=self._schema)
                yield self._connection
            except REFUSED as error:
                # Its text can hold values of tenants.
                raise StoreRefusedError(f"PostgreSQL: {type(error).__name__}") from error
            except UNAVAILABLE as error:
                connection, self._connection = self._connection, None
                if connection is not None:
                    connection.terminate()
                raise StoreUnavailableError(f"PostgreSQL: {type(error).__name__}") from error
            except asyncio.CancelledError:
                # Nobody knows what a cancelled statement left behind on its connection.
                connection, self._connection = self._connection, None
                if connection is not None:
                    connection.terminate()
                raise

    async def claim(self, topic: str, partition: int) -> Lease:
        self._names.pop(partition, None)
        async with self._use() as connection:
            await connection.execute(
                "INSERT INTO partition_progress (topic, partition) VALUES ($1, $2) ON CONFLICT DO NOTHING",
                topic,
                partition,
            )
            watch = asyncio.create_task(self._end_blocker(connection.get_server_pid()))
            try:
                async with connection.transaction():
                    await connection.execute("SET LOCAL lock_timeout = '30s'")
                    row = await connection.fetchrow(copy_sql.STANDS_AT + " FOR UPDATE", topic, partition)
                    watch.cancel()
                    await connection.execute(
                        "UPDATE partition_progress SET term = term + 1 WHERE topic = $1 AND partition = $2",
                        topic,
                        partition,
                    )
            finally:
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)
        return Lease(
            topic,
            partition,
            row["term"] + 1,
            row["next_offset"],
            row["log_id"],
            bytes(row["last_record_sha256"]),
            row["rebuild_until"],
        )

    async def _end_blocker(self, waiting: int) -> None:
        """The old owner may hang inside a transaction for good: whoever blocks the claim is ended, but not a
        rebuild, which switches in a moment and is ended by PostgreSQL if it hangs."""
        while True:
            await asyncio.sleep(BLOCKED_AFTER_S)
            connection = await connect(self._dsn, name=f"{self._name} claim")
            try:
                await connection.execute(
                    """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                       WHERE pid = ANY (pg_blocking_pids($1)) AND application_name IS DISTINCT FROM $2""",
                    waiting,
                    REBUILD_NAME,
                )
            finally:
                await connection.close(timeout=2)

    async def holds(self, lease: Lease) -> bool:
        async with self._use() as connection:
            row = await connection.fetchrow(copy_sql.STANDS_AT, lease.topic, lease.partition)
        return row is not None and row["term"] == lease.term

    async def load(self, lease: Lease) -> list[StreamState]:
        async with (
            self._use() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            await connection.execute(copy_sql.HOLD_TABLES)
            await self._check(connection, lease)
            states, self._names[lease.partition] = await load_states(connection, lease.partition)
            return states

    async def _check(self, connection: Any, lease: Lease) -> Any:
        row = await connection.fetchrow(copy_sql.STANDS_AT, lease.topic, lease.partition)
        if row is None or row["term"] != lease.term:
            raise LeaseLostError(lease.topic, lease.partition, lease.term)
        return row

    async def write(self, lease: Lease, delta: Delta) -> None:
        known = self._names.setdefault(lease.partition, {})
        async with self._use() as connection:
            async with connection.transaction():
                advanced = await connection.fetchval(
                    copy_sql.ADVANCE,
                    lease.topic,
                    lease.partition,
                    lease.term,
                    delta.first_offset,
                    delta.next_offset,
                    delta.last_record_sha256,
                )
                if advanced is None:
                    row = await self._check(connection, lease)
                    stands = (row["next_offset"], bytes(row["last_record_sha256"]))
                    if stands == (delta.next_offset, delta.last_record_sha256):
                        return
                    raise LeaseLostError(lease.topic, lease.partition, lease.term)
                learned = await write_delta(connection, lease, delta, known, self._keyring)
            known.update(learned)
            for stream in delta.forgotten:
                known.pop(stream, None)

    async def reset(self, lease: Lease, *, log_id: str, start: int, rebuild_until: int) -> Lease:
        self._names.pop(lease.partition, None)
        async with self._use() as connection, connection.transaction():
            done = await connection.fetchval(
                """UPDATE partition_progress SET next_offset = $4, log_id = $5, last_record_sha256 = '',
                   rebuild_until = $6, updated_at = now()
                   WHERE topic = $1 AND partition = $2 AND term = $3 RETURNING 1""",
                lease.topic,
                lease.partition,
                lease.term,
                start,
                log_id,
                rebuild_until,
            )
            if done is None:
                raise LeaseLostError(lease.topic, lease.partition, lease.term)
            for statement in copy_sql.EMPTY_PARTITION:
                await connection.execute(statement, lease.partition)
            for table in ("dead_record", "dead_record_pruned"):
                await connection.execute(
                    f"DELETE FROM {table} WHERE topic = $1 AND partition = $2",  # noqa: S608 - one of two
                    lease.topic,
                    lease.partition,
                )
        return replace(
            lease, next_offset=start, log_id=log_id, last_record_sha256=b"", rebuild_until=rebuild_until
        )

    async def digest(self, registry: Registry) -> str:
        async with (
            self._use() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            await connection.execute(copy_sql.HOLD_TABLES)
            return await read_digest(connection, registry)

    async def digest_at(self, registry: Registry, topic: str) -> tuple[str, dict[int, int]]:
        """(digest, next offset by partition of `topic`), both as of one moment."""
        async with (
            self._use() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            await connection.execute(copy_sql.HOLD_TABLES)
            rows = await connection.fetch(
                "SELECT partition, next_offset FROM partition_progress WHERE topic = $1", topic
            )
            digest = await read_digest(connection, registry)
            return digest, {row["partition"]: row["next_offset"] for row in rows}

    async def usage(self) -> dict[UsageRow, Usage]:
        async with self._use() as connection:
            rows = await connection.fetch(
                """SELECT s.worker, s.rank, s.epoch, u.alias, u.tier, u.blocks, u.bytes
                   FROM tenant_usage u JOIN stream s ON s.id = u.stream_id
                   WHERE u.blocks <> 0 OR u.bytes <> 0"""
            )
        return {
            (StreamKey(row["worker"], row["rank"], row["epoch"]), bytes(row["alias"]), Tier(row["tier"])): (
                Usage(row["blocks"], int(row["bytes"]))
            )
            for row in rows
        }

    async def snapshot(self, topic: str) -> Snapshot:
        async with (
            self._use() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            await connection.execute(copy_sql.HOLD_TABLES)
            return await read_snapshot(connection, topic)


async def read_digest(connection: Any, registry: Registry, partitions: Collection[int] | None = None) -> str:
    """`index_digest` over the rows that the connection's transaction sees, of some partitions if given."""
    lines: list[bytes] = []
    counted: dict[int, tuple[StreamKey, bool]] = {}
    for row in await connection.fetch("SELECT * FROM stream"):
        key = StreamKey(row["worker"], row["rank"], row["epoch"])
        if partitions is not None and row["partition"] not in partitions:
            continue
        if not counts(registry, key, row["partition"]):
            continue
        over = superseded(registry, key, row["epoch_no"])
        counted[row["id"]] = (key, over)
        if not over:
            lines.append(
                stream_line(key, row["epoch_no"], row["next_seq"], bytes(row["prev"]), row["status"])
            )
    async for stream_id, holder, durable, group, block, state in connection.cursor(
        copy_sql.DIGEST_COPIES, prefetch=5_000
    ):
        stream, over = counted.get(stream_id, (None, False))
        if stream is not None and (durable or not over):
            lines.append(copy_line(stream, holder, group, bytes(block), state))
    return digest_lines(lines)


async def read_snapshot(connection: Any, topic: str) -> Snapshot:
    """Everything of the index with its positions, as the connection's repeatable-read transaction sees it."""
    rows = await connection.fetch(
        "SELECT partition, next_offset, log_id, last_record_sha256 FROM partition_progress WHERE topic = $1",
        topic,
    )
    snapshot = Snapshot(next((row["log_id"] for row in rows if row["log_id"]), ""))
    for row in rows:
        snapshot.positions[row["partition"]] = row["next_offset"]
        if row["last_record_sha256"]:
            snapshot.last_sha256[row["partition"]] = bytes(row["last_record_sha256"])
        states, _ = await load_states(connection, row["partition"])
        snapshot.states.extend((row["partition"], state) for state in states)
    return snapshot
