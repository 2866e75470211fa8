"""`kvledger holder enrol|encrypted|list`: which worker's word counts for a store that outlives its engine."""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import TYPE_CHECKING, Annotated

import typer

from kvledger.command import storage_key
from kvledger.failure import CommandError, ExitCode, plain
from kvledger.settings import load_settings

if TYPE_CHECKING:
    from events.fold.registry import Registry
    from events.model.control import HolderEnrolled

DURABLE_TIERS = ("disk", "remote")
KEY_SCOPE = "holder-enrol"
Json = Annotated[bool, typer.Option("--json", help="print one JSON document")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True, help="Durable stores (disks, shared stores): who owns them, and enrolling them."
    )
    group.command("enrol")(enrol)
    group.command("encrypted")(storage_key.encrypted)
    group.command("list")(list_holders)
    app.add_typer(group, name="holder")


def enrol(
    durable_id: Annotated[str, typer.Argument(help="the store's name, as its hooks declare it")],
    tier: Annotated[str, typer.Option(help="disk or remote")],
    owner: Annotated[str, typer.Option(help="the worker whose stream says what the store holds")],
    idempotency_key: Annotated[str | None, typer.Option(help="repeat a request safely")] = None,
    as_json: Json = False,
) -> None:
    """Name the worker that owns a durable store: what its stream says of the store is credited to every worker
    that reaches it. Without an owner nobody is credited. Another owner is taken only once every rank of the
    old one is fenced or its engine's end attested.

    Example: kvledger holder enrol w0-disk --tier disk --owner w0
    """
    from pydantic import ValidationError

    from events.ids import CANARY_WORKER, Tier
    from events.model.control import HolderEnrolled

    if tier not in DURABLE_TIERS:
        raise _usage(f"--tier {tier!r} is none of {', '.join(DURABLE_TIERS)}: only these outlive an engine")
    if owner == CANARY_WORKER:
        raise _usage(f"--owner {owner} is the name of kvledger's own canary, which holds nothing")
    try:
        body = HolderEnrolled(durable_id=durable_id, tier=Tier(tier), owner=owner)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        raise _usage(f"{'.'.join(str(part) for part in first['loc'])}: {plain(first['msg'])}") from error
    document = asyncio.run(_enrol(body, idempotency_key or secrets.token_hex(16)))
    if as_json:
        typer.echo(json.dumps(document))
        return
    typer.echo(f"{durable_id} ({tier}) belongs to {owner} (control record {document['number']})")
    typer.echo(f"token: {document['token']}")
    if document["owner_state"] == "never seen":
        typer.echo(
            f"{owner} has never registered: nothing is credited until it does and declares {durable_id}"
        )


def list_holders(as_json: Json = False) -> None:
    """List all enrolled durable stores, their owners, and whether these stand.

    Example: kvledger holder list --json
    """
    rows = asyncio.run(_list())
    if as_json:
        typer.echo(json.dumps(rows))
        return
    if not rows:
        typer.echo("no durable store is enrolled; `kvledger holder enrol --help`")
    for row in rows:
        state = "destroyed" if row["destroyed"] else f"its owner {row['owner_state']}"
        typer.echo(f"{row['durable_id']}\t{row['tier']}\t{row['owner']}\t{state}")


def refusal(registry: Registry, body: HolderEnrolled) -> CommandError | None:
    """Why the registry would not obey the enrolment, or why it would lead to nothing; None if it is good."""
    known = registry.durable_owners.get(body.durable_id)
    if body.durable_id in registry.destroyed:
        return CommandError(
            f"{body.durable_id} is destroyed, so nothing in it counts ever again",
            advice="give the new store a durable id of its own",
        )
    if known is not None and known.owner != body.owner and registry.stands(known.owner):
        return CommandError(
            f"{body.durable_id} belongs to {known.owner}, which still stands (owner_stands)",
            advice=f"fence every rank of {known.owner} or have its engine's end attested, then enrol again",
        )
    return None


def owner_state(registry: Registry, worker: str) -> str:
    """`stands`, `is gone` (fenced, or its end attested) or `never seen`."""
    if registry.stands(worker):
        return "stands"
    return "is gone" if any(name == worker for name, _ in registry.current) else "never seen"


def rows_of(registry: Registry) -> list[dict[str, object]]:
    """Every enrolled store by its durable id."""
    return [
        {
            "durable_id": name,
            "tier": enrolled.tier.value,
            "owner": enrolled.owner,
            "owner_state": owner_state(registry, enrolled.owner),
            "destroyed": name in registry.destroyed,
        }
        for name, enrolled in sorted(registry.durable_owners.items())
    ]


def _usage(message: str) -> CommandError:
    return CommandError(message, advice="kvledger holder enrol --help", exit_code=ExitCode.USAGE)


async def _enrol(body: HolderEnrolled, key: str) -> dict[str, object]:
    from events.ids import Role
    from events.token import Token
    from kvledger.control import (
        connection,
        control_writer,
        or_unavailable,
        read_registry,
        require_log,
    )

    settings = load_settings()

    async def write() -> dict[str, object]:
        at = connection(settings)
        registry = await read_registry(at)
        log = require_log(registry)
        number = registry.idempotency.get((KEY_SCOPE, key))
        repeated = number is not None
        if number is None:
            why = refusal(registry, body)
            if why is not None:
                raise why
            async with control_writer(settings, registry, Role.ENROLMENT) as writer:
                done = await writer.append(body, idempotency_key=key, key_scope=KEY_SCOPE)
            number = done.offset
            registry = await read_registry(at)
        if registry.durable_owners.get(body.durable_id) != body:
            # Somebody wrote in between, or the key stood for something else.
            raise refusal(registry, body) or CommandError(
                f"control record {number} was not obeyed, or is about another store",
                advice="kvledger holder list shows what stands; use another --idempotency-key",
            )
        return {
            **body.model_dump(mode="json", exclude={"kind"}),
            "owner_state": owner_state(registry, body.owner),
            "number": number,
            "token": Token(log, control=number + 1).encode(),
            "idempotency_key": key,
            "repeated": repeated,
        }

    return await or_unavailable(write)


async def _list() -> list[dict[str, object]]:
    from kvledger.control import connection, or_unavailable, read_registry

    settings = load_settings()
    return rows_of(await or_unavailable(lambda: read_registry(connection(settings))))
