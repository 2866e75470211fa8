"""`kvledger index`: `digest` compares the stored index with the fold of the log, at one position."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from kvledger.command.at import at
from kvledger.command.migrate import configured_database
from kvledger.command.rebuild import rebuild
from kvledger.failure import CommandError, ExitCode
from kvledger.settings import Settings, load_settings
from kvledger.wording import counted


def register(app: typer.Typer) -> None:
    """Adds the group."""
    group = typer.Typer(no_args_is_help=True, help="Look at the index in PostgreSQL.")
    group.callback()(_group)
    group.command("digest")(digest)
    group.command("rebuild")(rebuild)
    group.command("at")(at)
    group.command("status")(status)
    app.add_typer(group, name="index")


def _group() -> None:
    """Look at the index in PostgreSQL."""


def digest(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Compare PostgreSQL's digest with the fold of the log up to the same offsets; exit 1 if they differ.

    Example: kvledger index digest --json
    """
    found = asyncio.run(_digest(load_settings(), configured_database()))
    if as_json:
        typer.echo(json.dumps(found))
    else:
        typer.echo(f"index  {found['index']}\nlog    {found['log']}")
        for partition, offset in found["positions"].items():
            typer.echo(f"kv.events[{partition}] up to {offset}")
        typer.echo("equal" if found["equal"] else "DIFFERENT")
    if not found["equal"]:
        raise typer.Exit(ExitCode.FAILED)


async def _digest(settings: Settings, dsn: str) -> dict[str, Any]:
    from events.fold.digest import index_digest
    from events.topic import EVENTS
    from indexer.postgres_store import PostgresStore
    from indexer.replay import fold_log
    from indexer.store import StoreUnavailableError
    from kvledger.control import connection, or_unavailable, read_registry

    kafka = connection(settings)
    registry = await or_unavailable(lambda: read_registry(kafka))
    store = PostgresStore(dsn, name="kvledger index")
    try:
        stored, positions = await store.digest_at(registry, kafka.topic(EVENTS))
    except StoreUnavailableError as error:
        raise CommandError(
            str(error), advice="is the database up? `kvledger status`", exit_code=ExitCode.UNAVAILABLE
        ) from error
    finally:
        await store.close()
    states, starts = await or_unavailable(lambda: fold_log(kafka, positions, registry))
    folded = index_digest(states, registry)
    return {
        "equal": stored == folded,
        "index": stored,
        "log": folded,
        "positions": positions,
        "log_starts": starts,
        "streams": len(states),
        "copies": sum(state.copy_count() for state in states),
    }


def status(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Show how far each partition is, what the index holds, and what of it belongs to nobody registered.

    Example: kvledger index status --json
    """
    found = asyncio.run(_status(load_settings(), configured_database()))
    if as_json:
        typer.echo(json.dumps(found))
        return
    for number, one in found["partitions"].items():
        behind = "rebuilding" if one["rebuilding"] else f"{one['lag']} to go"
        typer.echo(f"partition {number}: {one['next_offset']} ({behind}), term {one['term']}")
    for kind, row in found["streams"].items():
        bound = f" (at most {found['unregistered_bound']} a partition)" if kind == "unregistered" else ""
        typer.echo(
            f"{kind:>12}: {counted(row['streams'], 'stream')}{bound}, {counted(row['blocks'], 'block')}"
        )
    typer.echo(f"dead records: {found['dead_records']}, {found['foreign_streams']} for streams of nobody")


async def _status(settings: Settings, dsn: str) -> dict[str, Any]:
    from events.kafka.partition_log import KafkaPartitionLog
    from events.topic import EVENTS
    from indexer.census import take_census
    from indexer.store import StoreUnavailableError
    from kvledger.control import connection, or_unavailable

    kafka = connection(settings)
    topic, log = kafka.topic(EVENTS), KafkaPartitionLog(kafka)
    try:
        census = await take_census(dsn, topic)
        found = asdict(census)
        for number, one in census.partitions.items():
            end = (await or_unavailable(lambda number=number: log.bounds(topic, number)))[1]  # type: ignore[misc]
            found["partitions"][number]["lag"] = end - one.next_offset
        return found
    except StoreUnavailableError as error:
        raise CommandError(
            str(error), advice="is the database up? `kvledger status`", exit_code=ExitCode.UNAVAILABLE
        ) from error
    finally:
        await log.close()
