"""`kvledger index at`: where copies were at an earlier time or position."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvledger.failure import CommandError, ExitCode
from kvledger.settings import Settings, load_settings

if TYPE_CHECKING:
    from indexer.time_travel import LogPosition, Wanted


class Source(StrEnum):
    """Where the answer comes from."""

    AUTO = "auto"
    REPLAY = "replay"
    HISTORY = "history"


def at(
    time: Annotated[str | None, typer.Option("--time", help="ISO 8601; without a zone it is UTC.")] = None,
    token: Annotated[
        str | None, typer.Option("--token", help="A token that a lookup or command gave.")
    ] = None,
    worker: Annotated[str | None, typer.Option(help="Only this worker.")] = None,
    domain: Annotated[str | None, typer.Option(help="Only this domain.")] = None,
    block: Annotated[str | None, typer.Option(help="Only copies of this block id, 32 hex digits.")] = None,
    source: Annotated[
        Source,
        typer.Option("--from", help="replay folds the log up to there; history asks the index's own rows."),
    ] = Source.AUTO,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show where copies were at a time or a token's position: worker, rank, tier, domain, count.

    Times are those the broker stamped on the records, never a writer's. Replays the log; where the log no
    longer begins at its first record, asks the index's history.

    Example: kvledger index at --time 2026-11-30T01:00:00Z --worker gpu-0
    """
    if (time is None) == (token is None):
        raise CommandError("give one of --time and --token", exit_code=ExitCode.USAGE)
    found = asyncio.run(
        _at(load_settings(), None if time is None else parse_time(time), token, _wanted(worker, domain, block), source)
    )  # fmt: skip
    if as_json:
        typer.echo(json.dumps(found))
        return
    typer.echo(f"as of {', '.join(f'{p}@{o}' for p, o in found['events'].items())} of kv.events, "
               f"{found['control']} of kv.control, from {found['source']}")  # fmt: skip
    for place in found["places"]:
        name = place["domain"] or "(unnamed)"
        state = "".join(f" {place[key]}" for key in ("copy_state", "stream_status") if place[key])
        typer.echo(
            f"{place['worker']}/{place['rank']} {place['epoch']} {place['tier']} {place['holder']} "
            f"{name} {place['blocks']}{state}"
        )
    if not found["whole"] and found["source"] == "replay":
        typer.echo("the log's head is gone: what was stored before it is missing until a snapshot", err=True)


def parse_time(text: str) -> int:
    """Milliseconds; raises CommandError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise CommandError(
            f"{text} is no time", advice="write 2026-11-30T01:00:00Z", exit_code=ExitCode.USAGE
        ) from error
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return int(aware.timestamp() * 1_000)


def _wanted(worker: str | None, domain: str | None, block: str | None) -> Wanted:
    from indexer.time_travel import Wanted

    try:
        raw = None if block is None else bytes.fromhex(block)
    except ValueError:
        raw = b""
    if raw is not None and len(raw) != 16:
        raise CommandError("a block id is 32 hex digits", exit_code=ExitCode.USAGE)
    return Wanted(worker, domain, raw)


async def _at(
    settings: Settings, at_ms: int | None, token: str | None, wanted: Wanted, source: Source
) -> dict[str, Any]:
    from events.fold.registry import Registry
    from events.signing import verify
    from events.token import Token, TokenError
    from indexer.replay import fold_log
    from indexer.time_travel import PositionError, places_of, position_of_time, position_of_token, registry_at
    from kvledger.command.rebuild import ring_of
    from kvledger.control import connection, or_unavailable, read_registry, require_log

    log = connection(settings)
    now = await or_unavailable(lambda: read_registry(log))
    require_log(now)
    try:
        position = await or_unavailable(
            lambda: (
                position_of_time(log, now.partitions, at_ms)
                if at_ms is not None
                else position_of_token(log, now, Token.decode(token or ""))
            )
        )
    except (PositionError, TokenError) as error:
        raise CommandError(str(error), exit_code=ExitCode.USAGE) from error
    registry = await or_unavailable(lambda: registry_at(log, Registry(verify), position.control))
    keyring = ring_of(settings)
    places = None
    if source is Source.HISTORY or (source is Source.AUTO and not position.whole):
        places = await _from_history(settings, registry, position, wanted)
        if places is None and source is Source.HISTORY:
            raise CommandError(
                "the index's history doesn't reach that position",
                advice="leave out --from, to replay the log",
            )
    how = "replay" if places is None else "history"
    if places is None:
        states, _ = await or_unavailable(lambda: fold_log(log, position.events))
        places = places_of(states, registry, keyring, wanted)
    return {
        "source": how,
        "whole": position.whole,
        "events": position.events,
        "control": position.control,
        "log": now.log,
        "token": Token(now.log, tuple(position.events.values()), position.control).encode(),
        "blocks": sum(place.blocks for place in places),
        "places": [asdict(place) for place in places],
    }


async def _from_history(settings: Settings, registry: Any, position: LogPosition, wanted: Wanted) -> Any:
    from events.topic import EVENTS
    from indexer.store import StoreUnavailableError
    from indexer.time_travel import places_from_history
    from kvledger.command.rebuild import ring_of
    from kvledger.control import connection

    url = settings.database_url
    if url is None:
        return None
    try:
        return await places_from_history(
            url.get_secret_value(), connection(settings).topic(EVENTS), registry, ring_of(settings), position,
            wanted,
        )  # fmt: skip
    except StoreUnavailableError as error:
        raise CommandError(
            str(error), advice="is the database up? `kvledger status`", exit_code=ExitCode.UNAVAILABLE
        ) from error
