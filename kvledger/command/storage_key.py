"""`kvledger holder encrypted`, `kvledger key rings`, `kvledger attest key-destroyed`: under which keys a durable store
keeps its blocks, where these keys are, and that they are gone."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from kvledger.failure import CommandError, ExitCode, plain
from kvledger.settings import load_settings

if TYPE_CHECKING:
    from events.fold.registry import Registry
    from events.fold.registry_state import StorageKey
    from events.keyring import KeyRing
    from events.model.control import HolderEncrypted, KeyDestroyed, KeyListed, RingNamed

M = TypeVar("M")
PRINCIPAL = "operator"
NOBODYS = "(no domain)"
KEY_HEX = re.compile(r"[0-9a-f]{64}")
Json = Annotated[bool, typer.Option("--json", help="print one JSON document")]
KeyName = Annotated[
    str, typer.Argument(help="the key's name in its ring or secret manager; the log has a hash of it")
]


def encrypted(
    durable_id: Annotated[str, typer.Argument(help="the store's name, as its hooks declare it")],
    key: Annotated[
        str | None, typer.Option(help="the key's name in its ring; the log has a hash of it")
    ] = None,
    domain: Annotated[list[str] | None, typer.Option(help="whose blocks lie under it; repeatable")] = None,
    every_domain: Annotated[
        bool, typer.Option("--every-domain", help="those of every domain in this machine's key ring")
    ] = False,
    rest: Annotated[
        bool, typer.Option("--rest", help="and what belongs to no domain: orphans, unassigned blocks")
    ] = False,
    unencrypted: Annotated[
        bool, typer.Option("--unencrypted", help="some of it lies there without a key, for good")
    ] = False,
    as_json: Json = False,
) -> None:
    """Declare under which key all lies that a durable store ever held of a domain. Do it before anything is stored so:
    a key that is declared later comes on top of those before. Without --key, show what is declared.

    Once every key is destroyed in every ring that held it, the store needs no answer of its owner any more. Needs the
    enrolment key, and the domains' secrets.

    Example: kvledger holder encrypted w0-disk --every-domain --rest --key w0-disk-2031
    """
    if key is None and not unencrypted:
        if domain or every_domain or rest:
            raise _usage("holder", "give --key, or --unencrypted")
        rows = asyncio.run(_declared(durable_id))
        if as_json:
            typer.echo(json.dumps(rows))
        for row in rows if not as_json else ():
            typer.echo(f"{row['domain']}\t{row['key'] or 'unencrypted'}\tcontrol record {row['number']}")
        if not rows and not as_json:
            typer.echo(f"nobody has declared under which keys {durable_id} keeps its blocks")
        return
    if key is not None and unencrypted:
        raise _usage("holder", "give --key or --unencrypted, not both")
    if not (domain or every_domain or rest):
        raise _usage("holder", "say whose blocks: --domain, --every-domain, --rest")
    rows = asyncio.run(_declare(durable_id, key, domain or [], every=every_domain, rest=rest))
    if as_json:
        typer.echo(json.dumps(rows))
        return
    for row in rows:
        under = f"under key {row['key']}" if row["key"] else "unencrypted"
        typer.echo(f"{durable_id}: {row['domain']} lies {under} (control record {row['number']})")


def rings(
    key: Annotated[
        str | None, typer.Argument(help="the key's name in its ring; without it all are shown")
    ] = None,
    ring: Annotated[
        list[str] | None,
        typer.Option(help="NAME, or NAME=PUBLICKEY of who alone may attest its destruction; repeatable"),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the rings (files, secret managers, HSMs, backups) that hold a storage key, besides those listed before; all
    of them have to be named before a destruction counts. A ring that is listed again holds the key again, whatever was
    attested. Without --ring, show where keys are. Needs the control key.

    Example: kvledger key rings w0-disk-2031 --ring vault-eu --ring backup-safe
    """
    from events.ids import Role
    from events.keyring import storage_key_id
    from kvledger.control import connection, or_unavailable, read_registry, write_once

    settings = load_settings()
    if not ring:
        registry = asyncio.run(or_unavailable(lambda: read_registry(connection(settings))))
        rows = rows_of(registry, None if key is None else storage_key_id(key))
        if as_json:
            typer.echo(json.dumps(rows))
        for row in rows if not as_json else ():
            typer.echo("\t".join(str(row[name]) for name in ("key", "ring", "attester", "state")))
        if not rows and not as_json:
            typer.echo("no ring is listed; `kvledger key rings --help`")
        return
    if key is None:
        raise _usage("key", "name the key that these rings hold")
    body = listing(key, ring)
    done = asyncio.run(or_unavailable(lambda: write_once(settings, Role.CONTROL, body, principal=PRINCIPAL)))
    names = [one.ring for one in body.rings]
    if as_json:
        typer.echo(json.dumps({"key": body.key.hex(), "rings": names, "number": done.number}))
    else:
        typer.echo(f"key {body.key.hex()} is in rings {', '.join(names)} (control record {done.number})")


def key_destroyed(
    key: KeyName,
    ring: Annotated[str, typer.Option(help="the ring that it is gone from, as `key rings` lists it")],
    evidence: Annotated[str, typer.Option(help="what it rests on, for people; it is kept in the log")],
    as_json: Json = False,
) -> None:
    """State that a storage key is gone from a ring, with every copy of it that was made from there. Once it is gone
    from every ring listed, what lies under it in a durable store counts as gone.

    Example: kvledger attest key-destroyed w0-disk-2031 --ring vault-eu --evidence "destroyed version 3, ticket 88"
    """
    from events.ids import Role
    from events.keyring import storage_key_id
    from events.model.control import KeyDestroyed
    from kvledger.control import or_unavailable, write_once
    from kvledger.keyfile import load_signer

    settings = load_settings()
    body: KeyDestroyed = _made(
        "attest", lambda: KeyDestroyed(key=storage_key_id(key), ring=ring, evidence=evidence)
    )

    def check(registry: Registry) -> None:
        why = refusal(
            registry.storage_keys.get(body.key), body, load_signer(settings.home, Role.SUPERVISOR).public_key
        )
        if why is not None:
            raise why

    done = asyncio.run(
        or_unavailable(lambda: write_once(settings, Role.SUPERVISOR, body, principal=PRINCIPAL, check=check))
    )
    if as_json:
        typer.echo(json.dumps({"key": body.key.hex(), "ring": ring, "number": done.number}))
    else:
        typer.echo(f"key {body.key.hex()} is gone from ring {ring} (control record {done.number})")


def listing(key: str, named: list[str]) -> KeyListed:
    """The record of NAME or NAME=PUBLICKEY options. Raises CommandError."""
    from events.keyring import storage_key_id
    from events.model.control import KeyListed

    return _made("key", lambda: KeyListed(key=storage_key_id(key), rings=tuple(_ring(one) for one in named)))


def _ring(text: str) -> RingNamed:
    from events.model.control import RingNamed

    name, given, attester = text.partition("=")
    if given and KEY_HEX.fullmatch(attester) is None:
        raise _usage("key", f"--ring {text!r}: a public key has 64 hex characters, in lower case")
    return RingNamed(ring=name, attester=bytes.fromhex(attester) if given else None)


def refusal(known: StorageKey | None, body: KeyDestroyed, public_key: bytes) -> CommandError | None:
    """Why no fold would obey the attestation under this public key, or what it would repeat; None if it is good."""
    from events.signing import key_id

    listed = known.rings.get(body.ring) if known is not None else None
    if known is None or listed is None:
        names = ", ".join(sorted(known.rings)) if known is not None else "none"
        return CommandError(
            f"nobody has listed ring {body.ring} for key {body.key.hex()}; listed: {names}",
            advice="list every ring that ever held it first: kvledger key rings KEY --ring …",
        )
    if body.ring not in known.left:
        return CommandError(f"key {body.key.hex()} is gone from ring {body.ring} already")
    attester = listed[1]
    if attester is not None and attester != public_key:
        return CommandError(
            f"only key {key_id(attester)} may attest what becomes of ring {body.ring}",
            advice="attest it where that key is",
        )
    return None


def rows_of(registry: Registry, key: bytes | None = None) -> list[dict[str, object]]:
    """Every ring of every storage key, or of one."""
    from events.signing import key_id

    return [
        {
            "key": name.hex(),
            "ring": ring,
            "attester": "supervisor" if attester is None else key_id(attester),
            "listed_at": at,
            "destroyed_at": None if ring in known.left else known.ended[ring],
            "state": "holds it" if ring in known.left else f"destroyed (control record {known.ended[ring]})",
        }
        for name, known in sorted(registry.storage_keys.items())
        if key is None or key == name
        for ring, (at, attester) in sorted(known.rings.items())
    ]


def declarations(
    registry: Registry,
    ring: KeyRing,
    durable_id: str,
    key: bytes | None,
    domains: list[str],
    *,
    every: bool,
    rest: bool,
) -> list[tuple[str, HolderEncrypted]]:
    """(domain, record) of each. Raises CommandError where one would come to nothing."""
    from events.chain import store_alias
    from events.model.control import HolderEncrypted

    if durable_id not in registry.durable_owners:
        raise CommandError(
            f"nobody is enrolled as the owner of {durable_id}: what is declared before that doesn't count",
            advice=f"kvledger holder enrol {durable_id} --tier disk --owner WORKER",
        )
    wanted = sorted({*domains, *((one for one in ring if one in registry.domains) if every else ())})
    for name in wanted:
        if name not in registry.domains or name not in ring:
            raise CommandError(
                f"there is no domain {name}, or its keys are not here", advice=f"kvledger domain add {name}"
            )
    named: list[tuple[str, bytes | None]] = [
        (name, store_alias(ring[name].alias_key, durable_id)) for name in wanted
    ]
    named += [(NOBODYS, None)] if rest else []
    return [(name, HolderEncrypted(durable_id=durable_id, alias=alias, key=key)) for name, alias in named]


async def _declare(
    durable_id: str, key: str | None, domains: list[str], *, every: bool, rest: bool
) -> list[dict[str, object]]:
    from events.ids import Role
    from events.keyring import storage_key_id
    from kvledger.control import connection, control_writer, or_unavailable, read_registry
    from kvledger.keyfile import load_ring

    settings = load_settings()
    hashed = None if key is None else storage_key_id(key)

    async def write() -> list[dict[str, object]]:
        at = connection(settings)
        rows: list[dict[str, object]] = []
        registry, ring = await read_registry(at), load_ring(settings.home)
        told = declarations(registry, ring, durable_id, hashed, domains, every=every, rest=rest)
        async with control_writer(settings, registry, Role.ENROLMENT) as writer:
            for name, body in told:
                done = await writer.append(body)
                rows.append(
                    {"domain": name, "key": None if hashed is None else hashed.hex(), "number": done.offset}
                )
        obeyed = (await read_registry(at)).encrypted
        for row, (_, body) in zip(rows, told, strict=True):
            if obeyed.get((durable_id, body.alias), {}).get(body.key, -1) < int(str(row["number"])):
                raise CommandError(
                    f"control record {row['number']} is not obeyed",
                    advice="is the enrolment key granted? kvledger key list",
                )
        return rows

    return await or_unavailable(write)


async def _declared(durable_id: str) -> list[dict[str, object]]:
    from events.chain import store_alias
    from kvledger.control import connection, or_unavailable, read_registry
    from kvledger.keyfile import load_ring

    settings = load_settings()
    registry = await or_unavailable(lambda: read_registry(connection(settings)))
    ring = load_ring(settings.home)
    names: dict[bytes | None, str] = {store_alias(ring[one].alias_key, durable_id): one for one in ring}
    names[None] = NOBODYS
    return [
        {
            "domain": names.get(
                alias, f"(a domain that is not in this ring: {alias.hex() if alias else ''})"
            ),
            "key": None if key is None else key.hex(),
            "number": number,
        }
        for (store, alias), keys in registry.encrypted.items()
        if store == durable_id
        for key, number in keys.items()
    ]


def _made(group: str, make: Callable[[], M]) -> M:
    """A record; what can't be one is a CommandError."""
    from pydantic import ValidationError

    try:
        return make()
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _usage(group, f"{where}: {plain(first['msg'])}".removeprefix(": ")) from error


def _usage(group: str, message: str) -> CommandError:
    return CommandError(message, advice=f"kvledger {group} --help", exit_code=ExitCode.USAGE)
