"""Bulk SQL for given columns: one statement a table and batch, rows passed as one JSON array.

For the small tables only; copies go through arrays (`indexer.copy_sql`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from indexer.database import REFUSED

log = logging.getLogger(__name__)


def upsert(
    table: str,
    columns: Sequence[str],
    *,
    key: Collection[str],
    returning: Sequence[str] = (),
    keep: bool = False,
    touch: str | None = None,
) -> str:
    """INSERT … ON CONFLICT (key) DO UPDATE of all other `columns`; `$1` is what `encode` makes. PostgreSQL
    knows the columns' types: nothing here needs `indexer.tables`, which is slow to import.

    `keep`: an existing row stays as it is (and isn't returned). `touch`: a time column set to now.
    """
    names = ", ".join(_quote(name) for name in columns)
    changed = [f"{_quote(name)} = excluded.{_quote(name)}" for name in columns if name not in key]
    if touch is not None:
        changed.append(f"{_quote(touch)} = now()")
    if not changed and not keep:
        first = _quote(next(iter(key)))
        changed.append(f"{first} = excluded.{first}")
    conflict = ", ".join(_quote(name) for name in key)
    action = "NOTHING" if keep else "UPDATE SET " + ", ".join(changed)
    sql = (
        f"INSERT INTO {_quote(table)} ({names}) "  # noqa: S608 - names of our own tables
        f"SELECT {names} FROM jsonb_populate_recordset(NULL::{_quote(table)}, $1::jsonb) "
        f"ON CONFLICT ({conflict}) DO {action}"
    )
    if returning:
        sql += " RETURNING " + ", ".join(_quote(name) for name in returning)
    return sql


def _quote(name: str) -> str:
    return f'"{name}"'


def encode(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows as one JSON array; bytes in PostgreSQL's hex form. PostgreSQL has no NUL in text: it becomes
    U+FFFD, so that nobody's record can make a transaction fail."""
    text = json.dumps(list(rows), default=_plain)
    if "\\u0000" in text:
        text = json.dumps(_without_nul(json.loads(text)))
    return text


def _plain(value: object) -> str:
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _without_nul(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    if isinstance(value, list):
        return [_without_nul(item) for item in value]
    if isinstance(value, dict):
        return {_without_nul(name): _without_nul(item) for name, item in value.items()}
    return value


async def insert(connection: Any, sql: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Runs a statement of `upsert` inside the caller's transaction. Rows that PostgreSQL can't hold are left out
    and reported, found by halving: one of them must not stop all others."""
    try:
        async with connection.transaction():
            await connection.execute(sql, encode(rows))
    except REFUSED as error:
        if len(rows) == 1:
            log.error("a row can't be stored: %s", type(error).__name__, extra={"action": "row_unstorable"})
            return
        half = len(rows) // 2
        await insert(connection, sql, rows[:half])
        await insert(connection, sql, rows[half:])
