"""`kvledger domain add|list|salt`: the sets within which blocks may be shared."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated

import typer

from kvledger.failure import CommandError, ExitCode
from kvledger.settings import load_settings

if TYPE_CHECKING:
    from kvledger.settings import Settings

Json = Annotated[bool, typer.Option("--json", help="print one JSON document")]
DomainName = Annotated[str, typer.Argument(help="for example acme, or acme/alice for one subject of acme")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Domains: the sets within which blocks may be shared.")
    group.command("add")(add)
    group.command("list")(list_domains)
    group.command("salt")(salt)
    app.add_typer(group, name="domain")


def add(
    domain: DomainName,
    tenant: Annotated[
        str | None, typer.Option(help="owner, who pays; default: the name's first part")
    ] = None,
    shared: Annotated[bool, typer.Option(help="other tenants may be admitted")] = False,
    as_json: Json = False,
) -> None:
    """Create a domain: a secret in the key ring and a signed record in the log. Repeating it changes nothing.

    Example: kvledger domain add acme --tenant acme
    """
    _check_name(domain)
    owner = tenant or domain.split("/")[0]
    _check_name(owner)
    number = asyncio.run(_add(domain, owner, shared))
    document = {"domain": domain, "tenant": owner, "shared": shared, "number": number}
    if as_json:
        typer.echo(json.dumps(document))
    elif number is None:
        typer.echo(f"{domain} exists")
    else:
        typer.echo(f"{domain} belongs to tenant {owner} (control record {number})")


def list_domains(as_json: Json = False) -> None:
    """List the log's domains, their owners, and whether this machine's key ring has their keys.

    Example: kvledger domain list --json
    """
    rows = asyncio.run(_list())
    if as_json:
        typer.echo(json.dumps(rows))
        return
    if not rows:
        typer.echo("no domains yet; `kvledger domain add --help`")
        return
    for line in table(rows):
        typer.echo(line)


def table(rows: list[dict[str, object]]) -> list[str]:
    """One line a domain below a header, in columns of equal width."""
    cells = [("DOMAIN", "TENANT", "KEYS HERE")]
    cells += [(str(row["domain"]), str(row["tenant"]), "yes" if row["keys"] else "no") for row in rows]
    first, second = (max(len(cell[column]) for cell in cells) for column in (0, 1))
    return [f"{domain:<{first}}  {tenant:<{second}}  {keys}" for domain, tenant, keys in cells]


def salt(
    domain: DomainName,
    as_json: Json = False,
) -> None:
    """Print the cache_salt that a gateway sends with a domain's requests. It is a bearer secret.

    Example: kvledger domain salt acme
    """
    from events.identity import make_salt
    from kvledger.keyfile import load_ring

    settings = load_settings()
    try:
        keys = load_ring(settings.home)[domain]
    except KeyError as error:
        raise CommandError(
            f"the key ring has no domain {domain}", advice=f"kvledger domain add {domain}"
        ) from error
    made = make_salt(keys.salt_key, domain)
    typer.echo(json.dumps({"domain": domain, "cache_salt": made}) if as_json else made)


def _check_name(name: str) -> None:
    from pydantic import TypeAdapter, ValidationError

    from events.model.field import Name

    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError as error:
        raise CommandError(
            f"{name!r} can't name a domain or tenant",
            advice="letters, digits and . _ : @ / + - only, at most 200",
            exit_code=ExitCode.USAGE,
        ) from error


async def ensure_domain(settings: Settings, domain: str) -> None:
    """Makes a domain that this machine's key ring lacks, as `kvledger domain add` would. Raises CommandError."""
    from kvledger.keyfile import RING, load_ring

    _check_name(domain)
    if (settings.home / RING).exists() and domain in load_ring(settings.home):
        return
    await _add(domain, domain.split("/", maxsplit=1)[0], False)


async def _add(domain: str, tenant: str, shared: bool) -> int | None:
    from events.ids import Role
    from events.model.control import DomainCreated
    from kvledger.control import connection, control_writer, or_unavailable, read_registry, require_log
    from kvledger.keyfile import ensure_domain_secret

    settings = load_settings()

    async def write() -> int | None:
        registry = await read_registry(connection(settings))
        log = require_log(registry)
        known = registry.domains.get(domain)
        if known is not None:
            if known.tenant != tenant:
                raise CommandError(f"{domain} belongs to tenant {known.tenant}")
            return None
        ensure_domain_secret(settings.home, domain)
        async with control_writer(settings, log, Role.CONTROL) as writer:
            done = await writer.append(DomainCreated(domain=domain, tenant=tenant, shared=shared))
        return done.offset

    return await or_unavailable(write)


async def _list() -> list[dict[str, object]]:
    from kvledger.control import connection, or_unavailable, read_registry
    from kvledger.keyfile import load_ring

    settings = load_settings()
    registry = await or_unavailable(lambda: read_registry(connection(settings)))
    ring = load_ring(settings.home)
    return [
        {
            "domain": domain.name,
            "tenant": domain.tenant,
            "shared": domain.shared,
            "admitted": sorted(domain.admitted),
            "keys": domain.name in ring,
        }
        for domain in registry.domains.values()
    ]
