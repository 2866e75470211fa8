"""`kvledger limit set|list`: how much of a tier each tenant may hold."""

from __future__ import annotations

import asyncio
import json
from enum import StrEnum
from typing import Annotated, TypeVar

import typer

from kvledger.failure import CommandError, ExitCode, plain
from kvledger.settings import load_settings

E = TypeVar("E", bound=StrEnum)
Json = Annotated[bool, typer.Option("--json", help="print one JSON document")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Limits: how much of a tier each tenant may hold.")
    group.command("set")(set_limit)
    group.command("list")(list_limits)
    app.add_typer(group, name="limit")


def set_limit(
    tenant: Annotated[str, typer.Option(help="who pays for the copies of the tenant's domains")],
    tier: Annotated[str, typer.Option(help="gpu, cpu, disk or remote")] = "gpu",
    unit: Annotated[str, typer.Option(help="blocks or bytes")] = "blocks",
    soft: Annotated[int | None, typer.Option(min=0, help="above it lookups say so")] = None,
    hard: Annotated[int | None, typer.Option(min=0, help="what must not be exceeded")] = None,
    none: Annotated[bool, typer.Option("--none", help="remove both bounds")] = False,
    as_json: Json = False,
) -> None:
    """Set a tenant's limits on one tier and unit; of --soft and --hard, one that isn't given is removed.

    Example: kvledger limit set --tenant acme --tier gpu --unit blocks --soft 800 --hard 1000
    """
    from pydantic import ValidationError

    from events.ids import Tier, Unit
    from events.model.control import LimitSet

    if none == (soft is not None or hard is not None):
        raise _usage("give --soft, --hard or both, or --none alone to remove them")
    chosen_tier, chosen_unit = _one_of(Tier, "--tier", tier), _one_of(Unit, "--unit", unit)
    try:
        body = LimitSet(tenant=tenant, tier=chosen_tier, unit=chosen_unit, soft=soft, hard=hard)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        what = ".".join(str(part) for part in first["loc"])
        raise _usage(f"{what}: {plain(first['msg'])}" if what else plain(first["msg"])) from error
    number = asyncio.run(_set(body))
    if as_json:
        typer.echo(json.dumps({**body.model_dump(mode="json", exclude={"kind"}), "number": number}))
    else:
        typer.echo(f"{tenant}: {_shown(soft, hard)} {unit} on {tier} (control record {number})")


def list_limits(as_json: Json = False) -> None:
    """List all limits in force.

    Example: kvledger limit list --json
    """
    rows = asyncio.run(_list())
    if as_json:
        typer.echo(json.dumps(rows))
        return
    if not rows:
        typer.echo("no limits are set; `kvledger limit set --help`")
    for row in rows:
        typer.echo(f"{row['tenant']}\t{row['tier']}\t{_shown(row['soft'], row['hard'])} {row['unit']}")


def _shown(soft: object, hard: object) -> str:
    return f"soft {'none' if soft is None else soft}, hard {'none' if hard is None else hard}"


def _one_of(kind: type[E], option: str, text: str) -> E:
    try:
        return kind(text)
    except ValueError as error:
        allowed = ", ".join(one.value for one in kind)
        raise _usage(f"{option} {text!r} is none of {allowed}") from error


def _usage(message: str) -> CommandError:
    return CommandError(message, advice="kvledger limit set --help", exit_code=ExitCode.USAGE)


async def _set(body: object) -> int:
    from events.ids import Role
    from events.model.control import LimitSet
    from kvledger.control import connection, control_writer, or_unavailable, read_registry

    assert isinstance(body, LimitSet)
    settings = load_settings()

    async def write() -> int:
        registry = await read_registry(connection(settings))
        async with control_writer(settings, registry, Role.CONTROL) as writer:
            return (await writer.append(body)).offset

    return await or_unavailable(write)


async def _list() -> list[dict[str, object]]:
    from kvledger.control import connection, or_unavailable, read_registry

    settings = load_settings()
    registry = await or_unavailable(lambda: read_registry(connection(settings)))
    return [
        limit.model_dump(mode="json", exclude={"kind"})
        for _, limit in sorted(registry.limits.items())
        if limit.soft is not None or limit.hard is not None
    ]
