"""`kvledger retention set|list`: how long copies may stay, and how fast a deletion is to be proven."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated

import typer

from kvledger.command.listing import place_of, tell_rows
from kvledger.duration import HOUR_S, seconds_of
from kvledger.failure import CommandError, ExitCode, plain
from kvledger.settings import load_settings
from kvledger.wording import counted

if TYPE_CHECKING:
    from events.fold.registry import Registry

PRINCIPAL = "cli"
LEAST_S = 60
Json = Annotated[bool, typer.Option("--json", help="print one JSON document")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Retention: how long a tenant's copies may stay.")
    group.command("set")(set_policy)
    group.command("list")(list_policies)
    app.add_typer(group, name="retention")


def set_policy(
    tenant: Annotated[str | None, typer.Option(help="every domain of this tenant, later ones too")] = None,
    domain: Annotated[
        str | None, typer.Option(help="this domain alone; its policy goes before its tenant's")
    ] = None,
    retain_hours: Annotated[
        float | None, typer.Option(help="no copy stays longer; at least a minute (0.017)")
    ] = None,
    prove_within_hours: Annotated[
        float | None, typer.Option(min=0, help="deadline of deletion requests that name none")
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="take the policy away")] = False,
    as_json: Json = False,
) -> None:
    """Set a retention policy: the active controller then requests a deletion at once and once every period, and
    each is proven like any other. A deletion takes all that was admitted before it, so the cache of the domain
    begins anew with each period. A policy that isn't repeated here is replaced whole.

    Example: kvledger retention set --tenant acme --retain-hours 24 --prove-within-hours 4
    """
    from pydantic import ValidationError

    from events.ids import Role
    from events.model.control import PolicySet
    from kvledger.command.hold import unknown_place
    from kvledger.control import or_unavailable, write_once

    if none == (retain_hours is not None or prove_within_hours is not None):
        raise _usage("give --retain-hours, --prove-within-hours or both, or --none alone")
    retain_s = seconds_of("--retain-hours", retain_hours, "retention set", LEAST_S)
    prove_within_s = seconds_of("--prove-within-hours", prove_within_hours, "retention set")
    try:
        body = PolicySet(
            domain=domain,
            tenant=tenant,
            retain_s=retain_s,
            prove_within_s=prove_within_s,
        )
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        what = ".".join(str(part) for part in first["loc"])
        raise _usage(f"{what}: {plain(first['msg'])}" if what else plain(first["msg"])) from error
    settings = load_settings()
    warning = unkept(body.retain_s, settings.resets_per_hour)
    if warning:
        typer.echo(f"kvledger: warning: {warning}", err=True)
    done = asyncio.run(
        or_unavailable(
            lambda: write_once(
                settings,
                Role.CONTROL,
                body,
                principal=PRINCIPAL,
                check=lambda registry: unknown_place(registry, domain, tenant),
            )
        )
    )
    if as_json:
        document = {
            **body.model_dump(mode="json", exclude={"kind"}),
            "number": done.number,
            "warning": warning,
        }
        typer.echo(json.dumps(document))
    else:
        typer.echo(
            f"{tenant or domain}: {_shown(body.retain_s, body.prove_within_s)} (control record {done.number})"
        )


def list_policies(as_json: Json = False) -> None:
    """List the policies in force.

    Example: kvledger retention list --json
    """
    tell_rows(
        rows_of,
        lambda row: f"{place_of(row)}\t{_shown(row['retain_s'], row['prove_within_s'])}",
        "no retention policy is set; `kvledger retention set --help`",
        as_json=as_json,
    )


def rows_of(registry: Registry) -> list[dict[str, object]]:
    """Every policy that asks for something, tenants and domains by name."""
    return [
        {**policy.body.model_dump(mode="json", exclude={"kind"}), "number": policy.number}
        for _, policy in sorted(registry.policies.items())
        if policy.body.retain_s is not None or policy.body.prove_within_s is not None
    ]


def unkept(retain_s: int | None, resets_per_hour: int) -> str | None:
    """What to warn of where a period asks for more resets than an engine that offers nothing finer is given."""
    least_s = -(-HOUR_S // resets_per_hour)
    if retain_s is None or retain_s >= least_s:
        return None
    return (
        f"an engine that can only be reset is emptied {counted(resets_per_hour, 'time')} an hour for a tenant at most "
        f"(KVLEDGER_RESETS_PER_HOUR of its bridge), so it can't keep a period below {least_s} s; one with the agent can"
    )


def _shown(retain_s: object, prove_within_s: object) -> str:
    kept = "kept for ever" if retain_s is None else f"kept for {retain_s} s"
    proven = "no deadline" if prove_within_s is None else f"proven within {prove_within_s} s"
    return f"{kept}, {proven}"


def _usage(message: str) -> CommandError:
    return CommandError(message, advice="kvledger retention set --help", exit_code=ExitCode.USAGE)
