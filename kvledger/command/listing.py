"""What stands in the control log, as a list: one line each, or one JSON document."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from kvledger.settings import load_settings

if TYPE_CHECKING:
    from events.fold.registry import Registry

Row = dict[str, object]


def tell_rows(
    rows_of: Callable[[Registry], list[Row]], line: Callable[[Row], str], nothing: str, *, as_json: bool
) -> None:
    """`line` of each row of the log's registry as it is now, `nothing` if there is none. Raises CommandError if the
    log can't be read."""
    from kvledger.control import connection, or_unavailable, read_registry

    settings = load_settings()
    rows = rows_of(asyncio.run(or_unavailable(lambda: read_registry(connection(settings)))))
    if as_json:
        typer.echo(json.dumps(rows))
        return
    if not rows:
        typer.echo(nothing)
    for row in rows:
        typer.echo(line(row))


def place_of(row: Row) -> str:
    """What a row that names a tenant or a domain is about."""
    return f"tenant {row['tenant']}" if row["tenant"] else f"domain {row['domain']}"
