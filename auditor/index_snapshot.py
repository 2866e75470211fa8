"""The index's side of an audit: the connection, and the positions that it claims at one moment."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import asyncpg

from auditor import row_sql
from events.errors import KvledgerError
from events.kafka.connection import KafkaConnection
from events.topic import AUDIT, CONTROL, EVENTS, QUOTA, Topic

CONNECT_TIMEOUT_S = 5.0
STATEMENT_TIMEOUT_S = 120.0
UNAVAILABLE: tuple[type[BaseException], ...] = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
"""What says that PostgreSQL doesn't answer, or refuses."""


class IndexUnavailableError(KvledgerError):
    """PostgreSQL doesn't answer, or refuses: start it, migrate it, or correct the address; then audit again."""


@dataclass(slots=True)
class Claimed:
    """What `partition_progress` and `dead_record` say at one moment; `offsets` as far as the log goes."""

    rows: dict[tuple[Topic, int], Any]
    unstorable: dict[int, set[int]]

    def offsets(self, topic: Topic) -> dict[int, int]:
        return {number: row["next_offset"] for (of, number), row in self.rows.items() if of is topic}


async def connect(dsn: str) -> Any:
    """A connection that gives up rather than hold the index. Raises one of `UNAVAILABLE`."""
    connection = await asyncpg.connect(
        dsn,
        timeout=CONNECT_TIMEOUT_S,
        command_timeout=STATEMENT_TIMEOUT_S + 30,
        server_settings={
            "application_name": "kvledger audit index",
            "lock_timeout": "10s",
            "statement_timeout": f"{STATEMENT_TIMEOUT_S:.0f}s",
            "idle_in_transaction_session_timeout": f"{STATEMENT_TIMEOUT_S:.0f}s",
        },
    )
    await connection.set_type_codec("jsonb", encoder=str, decoder=json.loads, schema="pg_catalog")
    return connection


async def look(connection: Any, kafka: KafkaConnection) -> Claimed:
    """What the index claims of the topics of this log. Raises one of `UNAVAILABLE`."""
    topics = {kafka.topic(topic): topic for topic in (EVENTS, CONTROL, AUDIT, QUOTA)}
    claimed = Claimed({}, defaultdict(set))
    for row in await connection.fetch(row_sql.PROGRESS):
        if row["topic"] in topics:
            claimed.rows[topics[row["topic"]], row["partition"]] = row
    for partition, offset in await connection.fetch(row_sql.UNSTORABLE, kafka.topic(EVENTS)):
        claimed.unstorable[partition].add(offset)
    return claimed
