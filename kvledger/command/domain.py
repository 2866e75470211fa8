"""`kvledger domain add|list|salt|bind|whose`: the sets within which blocks may be shared."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvledger.failure import CommandError, ExitCode
from kvledger.settings import load_settings

if TYPE_CHECKING:
    from kvledger.settings import Settings

Json = Annotated[bool, typer.Option("--json", help="print one JSON document")]
MAX_SALT = 4_096
SaltFile = Annotated[
    Path | None, typer.Option(help="file that holds the salt; without it standard input is read")
]
DomainName = Annotated[str, typer.Argument(help="for example acme, or acme/alice for one subject of acme")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Domains: the sets within which blocks may be shared.")
    group.command("add")(add)
    group.command("list")(list_domains)
    group.command("salt")(salt)
    group.command("bind")(bind)
    group.command("whose")(whose)
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


def bind(
    domain: DomainName,
    salt_file: SaltFile = None,
    as_json: Json = False,
) -> None:
    """Let a cache_salt that a gateway already sends name a domain. Only its keyed hash is written to the log.

    The salt is read from a file or from standard input, never from the command line, where others could see
    it. Repeating it changes nothing. A salt names one domain only, and a bearer of it reads that domain.

    Example: kvledger domain bind acme --salt-file acme.salt
    """
    _check_name(domain)
    number = asyncio.run(_bind(domain, read_salt(salt_file)))
    if as_json:
        typer.echo(json.dumps({"domain": domain, "number": number}))
    elif number is None:
        typer.echo(f"{domain} has that salt already")
    else:
        typer.echo(f"the salt names {domain} from now on (control record {number})")


def whose(
    salt_file: SaltFile = None,
    as_json: Json = False,
) -> None:
    """Say which domain a cache_salt names, as hooks with this key ring read it. Exit 1 if none: the blocks of
    such requests are unassigned and never returned to anybody.

    Example: kvledger domain whose --salt-file acme.salt
    """
    domain = asyncio.run(_whose(read_salt(salt_file)))
    if as_json:
        typer.echo(json.dumps({"domain": domain}))
    else:
        typer.echo(domain or "nobody's: its blocks are unassigned")
    if domain is None:
        raise typer.Exit(ExitCode.FAILED)


def read_salt(path: Path | None) -> str:
    """A salt from a file or standard input, without the line's end. Raises CommandError; never shows the salt."""
    try:
        text = sys.stdin.read(MAX_SALT + 2) if path is None else path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(
            f"the salt can't be read ({type(error).__name__})", exit_code=ExitCode.USAGE
        ) from error
    found = text.rstrip("\r\n")
    if not found or len(found) > MAX_SALT or "\n" in found:
        raise CommandError(
            f"a salt is one line of 1 to {MAX_SALT} characters",
            advice="give it with --salt-file, or on standard input",
            exit_code=ExitCode.USAGE,
        )
    return found


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
        require_log(registry)
        known = registry.domains.get(domain)
        if known is not None:
            if known.tenant != tenant:
                raise CommandError(f"{domain} belongs to tenant {known.tenant}")
            return None
        ensure_domain_secret(settings.home, domain)
        async with control_writer(settings, registry, Role.CONTROL) as writer:
            done = await writer.append(DomainCreated(domain=domain, tenant=tenant, shared=shared))
        return done.offset

    return await or_unavailable(write)


async def _bind(domain: str, salt: str) -> int | None:
    from events.identity import SALT_PREFIX, bound_salt_hmac
    from events.ids import Role
    from events.model.control import SaltBound
    from kvledger.control import connection, control_writer, or_unavailable, read_registry, require_log
    from kvledger.keyfile import load_ring

    settings = load_settings()
    ring = load_ring(settings.home)

    async def write() -> int | None:
        registry = await read_registry(connection(settings))
        require_log(registry)
        if domain not in registry.domains or domain not in ring:
            raise CommandError(
                f"there is no domain {domain}, or its keys are not here",
                advice=f"kvledger domain add {domain}",
            )
        if salt.startswith(SALT_PREFIX):
            raise CommandError(
                f"a salt that begins with {SALT_PREFIX} is kvledger's own and names its domain by itself",
                advice=f"kvledger domain salt {domain} makes the one of {domain}",
                exit_code=ExitCode.USAGE,
            )
        known = ring.domain_of_bound(registry.bound_salts, salt)
        if known == domain:
            return None
        if known is not None:
            raise CommandError(f"that salt names {known} already", advice="give the gateway another one")
        body = SaltBound(domain=domain, salt_hmac=bound_salt_hmac(ring[domain].salt_key, salt))
        async with control_writer(settings, registry, Role.CONTROL) as writer:
            return (await writer.append(body)).offset

    return await or_unavailable(write)


async def _whose(salt: str) -> str | None:
    from kvledger.control import connection, or_unavailable, read_registry
    from kvledger.keyfile import load_ring

    settings = load_settings()
    ring = load_ring(settings.home)
    own = ring.domain_of_salt(salt)
    if own is not None:
        return own
    registry = await or_unavailable(lambda: read_registry(connection(settings)))
    return ring.domain_of_bound(registry.bound_salts, salt)


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
