"""What an audit of the index asks PostgreSQL, as literal SQL: the auditor shares the tables, no code of who
writes them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from sqlalchemy import Table

from indexer.tables import (
    Base,
    Checkpoint,
    Copy,
    CopyAttribute,
    DeadRecord,
    DeletionAck,
    DeletionRequest,
    Domain,
    Holder,
    PartitionProgress,
    Profile,
    QuotaChange,
    QuotaLimit,
    Registration,
    Stream,
    StreamAlias,
    TenantQuota,
    TenantUsage,
    Verdict,
)

PREFETCH = 5_000


async def rows(connection: Any, sql: str, *arguments: Any) -> AsyncIterator[Any]:
    """Through a server-side cursor, inside a transaction: whoever drops each as he has compared it needs no memory
    for the index."""
    async for row in connection.cursor(sql, *arguments, prefetch=PREFETCH):
        yield row


def _table(model: type[Base]) -> Table:
    table = model.__table__
    assert isinstance(table, Table)
    return table


def _name(model: type[Base]) -> str:
    return _table(model).name


def _columns(model: type[Base], alias: str = "t") -> str:
    return ", ".join(f'{alias}."{column.name}"' for column in _table(model).columns)


READ = (
    Stream, Holder, Profile, CopyAttribute, StreamAlias, TenantUsage, DeletionAck, Copy, DeadRecord,
    PartitionProgress, Domain, Registration, DeletionRequest, QuotaLimit, TenantQuota, QuotaChange, Verdict, Checkpoint,
)  # fmt: skip

# Before the first query of the snapshot: a rebuild must not put other tables in their place below it.
HOLD = f"LOCK TABLE {', '.join(_name(model) for model in READ)} IN ACCESS SHARE MODE"

PROGRESS = f"SELECT {_columns(PartitionProgress)} FROM {_name(PartitionProgress)} t"  # noqa: S608
UNSTORABLE = (
    f'SELECT t."partition", t."offset" FROM {_name(DeadRecord)} t '  # noqa: S608
    "WHERE t.topic = $1 AND t.reason = 'unstorable'"
)
STREAMS = f'SELECT {_columns(Stream)} FROM {_name(Stream)} t WHERE t."partition" = ANY ($1::int4[])'  # noqa: S608


def of_streams(model: type[Base]) -> str:
    """Rows that hang on streams, those of one stream together."""
    return (
        f"SELECT {_columns(model)} FROM {_name(model)} t "  # noqa: S608
        "WHERE t.stream_id = ANY ($1::int8[]) ORDER BY t.stream_id"
    )


def whole(model: type[Base]) -> str:
    return f"SELECT {_columns(model)} FROM {_name(model)} t"  # noqa: S608


COPIES = f"""
SELECT t.holder_id, t.group_index, t.block, t.parent, t.attribute_id, t.since_offset FROM {_name(Copy)} t
WHERE t.holder_id = ANY ($1::int8[])
"""  # noqa: S608
BLOCKS = f"""
SELECT t.block, a.alias FROM {_name(Copy)} t JOIN {_name(CopyAttribute)} a ON a.id = t.attribute_id
WHERE t.holder_id = $1 AND t.group_index = $2
"""  # noqa: S608

# The holders that copies name, one step of the primary key each.
ADRIFT = f"""
WITH RECURSIVE step AS (
    (SELECT t.holder_id FROM {_name(Copy)} t ORDER BY t.holder_id LIMIT 1)
    UNION ALL
    SELECT (SELECT t.holder_id FROM {_name(Copy)} t WHERE t.holder_id > step.holder_id ORDER BY t.holder_id LIMIT 1)
    FROM step WHERE step.holder_id IS NOT NULL
)
SELECT step.holder_id FROM step
WHERE step.holder_id IS NOT NULL AND NOT EXISTS (SELECT FROM {_name(Holder)} h WHERE h.id = step.holder_id)
"""  # noqa: S608
