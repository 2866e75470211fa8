"""Folds `kv.access` into `access_batch` and `access_log`, each batch of records with its offset in one transaction.

One process at a time is active, as with the control projection. Records are unsigned: who may write to the topic can
tell what it likes, which only the broker's access list prevents.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from events.codec import decode_access
from events.errors import DecodeError
from events.kafka.connection import KafkaConnection, LogTail, LogUnavailableError, RawRecord
from events.topic import ACCESS
from indexer import control_sql
from indexer.bulk import encode
from indexer.control_row import moment
from indexer.database import REFUSED, UNAVAILABLE, connect
from indexer.row import Row
from indexer.store import LeaseLostError, StoreUnavailableError

log = logging.getLogger(__name__)
ADVISORY_LOCK = 0x6B766C65
RETRY_S = 1.0
TAKE = 200

ADVANCE = """
UPDATE partition_progress SET next_offset = $3, updated_at = now()
WHERE topic = $1 AND partition = 0 AND term = $2 RETURNING next_offset
"""
# A batch that was told twice is known by its begin.
BATCH = """
INSERT INTO access_batch (replica, from_at, to_at, lost, logged_at)
SELECT replica, from_at, to_at, lost, logged_at FROM jsonb_populate_record(NULL::access_batch, $1::jsonb)
ON CONFLICT (replica, from_at) DO NOTHING RETURNING 1
"""
ENTRIES = """
INSERT INTO access_log (logged_at, replica, from_at, to_at, principal, domain, lookups, matched_blocks)
SELECT b.logged_at, b.replica, b.from_at, b.to_at, e.principal, e.domain, e.lookups, e.matched_blocks
FROM jsonb_populate_record(NULL::access_batch, $1::jsonb) b,
     jsonb_to_recordset($2::jsonb) AS e(principal text, domain text, lookups int8, matched_blocks int8)
"""


class AccessProjection:
    """`run` it in every indexer process."""

    def __init__(self, dsn: str, connection: KafkaConnection) -> None:
        self._dsn, self._kafka = dsn, connection
        self._topic = connection.topic(ACCESS)

    async def run(self) -> None:
        """Until cancelled; store or broker away: tries again."""
        while True:
            try:
                await self._lead()
            except (LogUnavailableError, StoreUnavailableError, LeaseLostError) as error:
                log.warning("access projection waits: %s", error)
            except UNAVAILABLE as error:
                log.warning("access projection waits: PostgreSQL: %s", type(error).__name__)
            await asyncio.sleep(RETRY_S)

    async def _lead(self) -> None:
        connection = await connect(self._dsn, name="kvledger access projection")
        try:
            while not await connection.fetchval(  # noqa: ASYNC110 - the lock is elsewhere
                "SELECT pg_try_advisory_lock($1)", ADVISORY_LOCK
            ):
                await asyncio.sleep(RETRY_S)
            await self._follow(connection)
        finally:
            connection.terminate()

    async def _follow(self, connection: Any) -> None:
        term, offset = await connection.fetchrow(control_sql.CLAIM, self._topic)
        tail = LogTail(self._kafka, {(self._topic, 0): 0})
        await tail.start()
        try:
            start, end = await tail.bounds(self._topic, 0)
            # What retention took is gone. Another log, or one that was cut, is read from its start: told twice is once.
            tail.seek(self._topic, 0, start if offset > end else max(start, offset))
            while True:
                records = await tail.fetch(timeout_ms=1_000, max_records=TAKE)
                if records:
                    await self._write(connection, term, records)
        finally:
            await tail.stop()

    async def _write(self, connection: Any, term: int, records: Sequence[RawRecord]) -> None:
        async with connection.transaction():
            if await connection.fetchval(ADVANCE, self._topic, term, records[-1].offset + 1) is None:
                raise LeaseLostError(self._topic, 0, term)
            for record in records:
                await self._batch(connection, record)

    async def _batch(self, connection: Any, record: RawRecord) -> None:
        try:
            batch = decode_access(record.value)
        except DecodeError:
            log.warning("kv.access %d can't be read", record.offset, extra={"action": "access_ignored"})
            return
        row: Row = {
            "replica": batch.replica,
            "from_at": moment(batch.from_ms),
            "to_at": moment(batch.to_ms),
            "lost": batch.lost,
            "logged_at": moment(record.timestamp_ms),
        }
        entries = [entry.model_dump(mode="json") for entry in batch.entries]
        try:
            async with connection.transaction():
                # One row each, as `encode` makes arrays.
                one = encode([row])[1:-1]
                if await connection.fetchval(BATCH, one) is not None and entries:
                    await connection.execute(ENTRIES, one, encode(entries))
        except REFUSED as error:
            log.error(
                "kv.access %d can't be stored: %s",
                record.offset,
                type(error).__name__,
                extra={"action": "row_unstorable"},
            )
