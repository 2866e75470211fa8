"""`kvledger hold place|release|list`: legal holds, under which deletion requests wait visibly."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated

import typer

from kvledger.command.listing import place_of, tell_rows
from kvledger.failure import CommandError, ExitCode, plain
from kvledger.settings import load_settings

if TYPE_CHECKING:
    from events.fold.registry import Registry

PRINCIPAL = "cli"
Json = Annotated[bool, typer.Option("--json", help="print one JSON document")]
HoldName = Annotated[str, typer.Argument(help="name of the hold, for example case-2031")]
Key = Annotated[str | None, typer.Option(help="repeat a request safely")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True, help="Legal holds: while one stands, deletion requests wait and say so."
    )
    group.command("place")(place)
    group.command("release")(release)
    group.command("list")(list_holds)
    app.add_typer(group, name="hold")


def place(
    hold: HoldName,
    reason: Annotated[str, typer.Option(help="why, for people; it is kept in the log")],
    tenant: Annotated[str | None, typer.Option(help="every domain of this tenant, later ones too")] = None,
    domain: Annotated[str | None, typer.Option(help="this domain alone")] = None,
    idempotency_key: Key = None,
    as_json: Json = False,
) -> None:
    """Place a legal hold. Hooks carry out no deletion request that reaches what is held; requests are still taken,
    wait, and go on by themselves when the hold is released. What engines evict for want of room is not held.

    Example: kvledger hold place case-2031 --tenant acme --reason "litigation, see ticket 88"
    """
    from pydantic import ValidationError

    from events.ids import Role
    from events.model.control import HoldSet
    from kvledger.control import or_unavailable, write_once

    try:
        body = HoldSet(hold=hold, domain=domain, tenant=tenant, reason=reason)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        what = ".".join(str(part) for part in first["loc"])
        raise _usage(f"{what}: {plain(first['msg'])}" if what else plain(first["msg"])) from error

    def check(registry: Registry) -> None:
        unknown_place(registry, domain, tenant)
        if hold in registry.holds:
            raise CommandError(
                f"there is a hold {hold} already (control record {registry.holds[hold].number})",
                advice="give the other one a name of its own",
            )

    settings = load_settings()
    done = asyncio.run(
        or_unavailable(
            lambda: write_once(
                settings, Role.CONTROL, body, principal=PRINCIPAL, key=idempotency_key, check=check
            )
        )
    )
    _say(hold, done.number, as_json, f"hold {hold} stands (control record {done.number})")


def release(hold: HoldName, idempotency_key: Key = None, as_json: Json = False) -> None:
    """Release a legal hold. Whatever waited for it goes on by itself, unless another hold stands on it.

    Example: kvledger hold release case-2031
    """
    from events.ids import Role
    from events.model.control import HoldReleased
    from kvledger.control import or_unavailable, write_once

    def check(registry: Registry) -> None:
        if hold not in registry.holds:
            names = ", ".join(sorted(registry.holds)[:10]) or "none"
            raise CommandError(
                f"no hold {hold} stands: it was released already, or never placed; standing: {names}",
                advice="kvledger hold list",
                exit_code=ExitCode.USAGE,
            )

    body, settings = HoldReleased(hold=hold), load_settings()
    done = asyncio.run(
        or_unavailable(
            lambda: write_once(
                settings, Role.CONTROL, body, principal=PRINCIPAL, key=idempotency_key, check=check
            )
        )
    )
    _say(hold, done.number, as_json, f"hold {hold} is released (control record {done.number})")


def list_holds(as_json: Json = False) -> None:
    """List the holds that stand, who placed them and when, and which deletion requests wait for them.

    Example: kvledger hold list --json
    """
    tell_rows(
        rows_of,
        lambda row: f"{row['hold']}\t{place_of(row)}\tby {row['placed_by']}\t{row['reason']}",
        "no legal hold stands; `kvledger hold place --help`",
        as_json=as_json,
    )


def rows_of(registry: Registry) -> list[dict[str, object]]:
    """Every hold that stands, oldest first. `placed_ms` is the writer's wall clock."""
    return [
        {
            "hold": name,
            "domain": hold.body.domain,
            "tenant": hold.body.tenant,
            "reason": hold.body.reason,
            "placed_by": hold.header.key_scope or hold.header.signer,
            "placed_ms": hold.header.written_ms,
            "number": hold.number,
        }
        for name, hold in registry.holds.items()
    ]


def unknown_place(registry: Registry, domain: str | None, tenant: str | None) -> None:
    """Raises CommandError for a domain or tenant that the log doesn't know: it would stand on nothing."""
    tenants = {known.tenant for known in registry.domains.values()}
    kind, name, known = ("domain", domain, set(registry.domains)) if domain else ("tenant", tenant, tenants)
    if name not in known:
        raise CommandError(
            f"there is no {kind} {name}",
            advice=f"the log has {', '.join(sorted(known)[:10]) or 'none'}; kvledger domain list",
            exit_code=ExitCode.USAGE,
        )


def _say(hold: str, number: int, as_json: bool, line: str) -> None:
    typer.echo(json.dumps({"hold": hold, "number": number}) if as_json else line)


def _usage(message: str) -> CommandError:
    return CommandError(message, advice="kvledger hold place --help", exit_code=ExitCode.USAGE)
