"""`kvledger key list|rotate|make|grant|revoke|rings`: who may say what."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from events.ids import Role
from events.model.control import Granted, Revoked
from events.signing import Signer
from kvledger.command import storage_key
from kvledger.failure import CommandError, ExitCode, plain
from kvledger.settings import Settings, load_settings

if TYPE_CHECKING:
    from events.fold.registry import Registry

HOLDERS = {
    Role.OPERATOR: "whoever grants",
    Role.ENROLMENT: "bridges and lookup services",
    Role.CONTROL: "the controller and lookup services",
    Role.SUPERVISOR: "bridges with an agent and `kvledger attest k8s`",
    Role.AUDITOR: "`kvledger audit index --follow` and whatever runs audits",
}
"""Processes that keep a role's key in memory."""
KEY_ID = re.compile(r"[0-9a-f]{16}")
Json = Annotated[bool, typer.Option("--json", help="print one JSON document")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Keys: who may say what in the log.")
    group.command("list")(list_keys)
    group.command("rotate")(rotate)
    group.command("make")(make)
    group.command("grant")(grant)
    group.command("revoke")(revoke)
    group.command("rings")(storage_key.rings)
    app.add_typer(group, name="key")


def list_keys(as_json: Json = False) -> None:
    """List the log's keys by id, their roles, whether they were revoked, and which of them are here.

    Example: kvledger key list --json
    """
    from kvledger.control import connection, or_unavailable, read_registry

    settings = load_settings()
    rows = rows_of(asyncio.run(or_unavailable(lambda: read_registry(connection(settings)))), settings.home)
    if as_json:
        typer.echo(json.dumps(rows))
        return
    for row in rows:
        state = "revoked" if row["revoked_at"] is not None else "stands"
        here = f", here as {row['here']}" if row["here"] else ""
        reach = _reach(row["workers"], row["stores"])  # type: ignore[arg-type]
        typer.echo(f"{row['key']}\t{', '.join(row['roles'])}\t{state}{reach}{here}")  # type: ignore[arg-type]


def rotate(
    role: Annotated[str, typer.Argument(help="enrolment, control, supervisor or auditor")],
    lost: Annotated[
        bool, typer.Option("--lost", help="the old key's file is gone: its .pub is enough to revoke it")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a new key for a role, grant it, and revoke the old one. Broken off anywhere, it can be repeated: it goes on
    where it was. Needs the operator's key. Processes that hold the old key must be restarted: what they sign from now
    on no longer counts; kvledger's own write nothing more under it and say so. What it signed before stands.

    Example: kvledger key rotate auditor
    """
    settings, wanted = load_settings(), _role(role)
    document = asyncio.run(_rotate(settings, wanted, lost=lost))
    if as_json:
        typer.echo(json.dumps(document))
    else:
        old = document["revoked"] or "none was there"
        typer.echo(f"{role}: key {document['key']} is granted; revoked: {old}")
        typer.echo(f"restart what holds the old one: {HOLDERS[wanted]}", err=True)


def grant(
    public_key: Annotated[str, typer.Argument(help="64 hex characters, or a file that holds them")],
    role: Annotated[
        list[str], typer.Option(help="repeatable: operator, enrolment, control, supervisor or auditor")
    ],
    label: Annotated[str, typer.Option(help="for people")] = "",
    worker: Annotated[
        list[str] | None,
        typer.Option(
            help="repeatable: bind the key to this worker, or with 'gpu-*' to all whose names begin so"
        ),
    ] = None,
    store: Annotated[
        list[str] | None, typer.Option(help="repeatable: bind it to this durable store, likewise")
    ] = None,
    as_json: Json = False,
) -> None:
    """Grant roles to somebody else's public key, in place of what it held before. Needs the operator's key.

    With --worker or --store a key of the roles enrolment and supervisor counts for these alone: give each node one of
    its own. A second operator's key, kept apart, is what helps when the first one is lost.

    Example: kvledger key grant node-7.pub --role enrolment --role supervisor --worker gpu-7
    """
    from pydantic import ValidationError

    from kvledger.command.proof_file import public_key_of

    key = public_key_of(public_key, "PUBLIC_KEY", "key grant")
    settings = load_settings()
    if is_secret(public_key, key, asyncio.run(_known_keys(settings))):
        raise _usage("this is the secret half of a key, which nobody may read in the log: give the .pub file")
    roles = tuple(dict.fromkeys(_role(one) for one in role))
    try:
        body = Granted(
            public_key=key,
            roles=roles,
            label=label,
            workers=tuple(dict.fromkeys(worker)) if worker else None,
            stores=tuple(dict.fromkeys(store)) if store else None,
        )
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        where = {"workers": "--worker: ", "stores": "--store: "}.get(str((*first["loc"], "")[0]), "")
        raise _usage(where + plain(first["msg"])) from error
    number = asyncio.run(_say(settings, body))
    _told(key, number, as_json, f"granted: {', '.join(roles)}{_reach(worker, store)}")


def make(
    role: Annotated[str, typer.Argument(help="enrolment, control, supervisor or auditor")],
    as_json: Json = False,
) -> None:
    """Make this machine's own key for a role, unless it has one, and print its public half: whoever holds the
    operator's key grants it. Asks no log.

    Example: kvledger key make enrolment
    """
    from events.signing import key_id
    from kvledger.keyfile import ensure_key, load_signer, public_key_path, write_private

    settings, wanted = load_settings(), _role(role)
    if wanted is Role.OPERATOR:
        raise _usage("the operator's key is made by `kvledger up`, which begins a log with it")
    ensure_key(settings.home, wanted)
    public_key = load_signer(settings.home, wanted).public_key
    write_private(public_key_path(settings.home, wanted), public_key.hex() + "\n")
    if as_json:
        typer.echo(json.dumps({"key": key_id(public_key), "public_key": public_key.hex()}))
        return
    typer.echo(f"key {key_id(public_key)}: {public_key_path(settings.home, wanted)}")
    typer.echo(f"kvledger key grant {public_key.hex()} --role {wanted.value} --worker NAME")


def revoke(
    key: Annotated[
        str, typer.Argument(help="a key's id as `key list` shows it, its 64 hex characters, or a file")
    ],
    as_json: Json = False,
) -> None:
    """Revoke a key: nothing it signs from now on counts, what it signed before stands. The key that began the log can't
    be revoked. Needs the operator's key.

    Example: kvledger key revoke 8f2a61c0d4b7e913
    """
    settings = load_settings()
    public_key, number = asyncio.run(_revoke(settings, key))
    _told(public_key, number, as_json, "revoked")


def rows_of(registry: Registry, home: Path) -> list[dict[str, object]]:
    """Every key that the log has ever granted anything; `here`: the role whose key file this is."""
    from events.signing import key_id
    from kvledger.keyfile import public_key_path

    mine: dict[str, str] = {}
    for role in Role:
        path = public_key_path(home, role)
        if path.is_file():
            mine[key_id(bytes.fromhex(path.read_text().strip()))] = role.value
    return [
        {
            "key": key,
            "public_key": known.public_key.hex(),
            "roles": sorted(role.value for role in known.roles),
            "workers": None if known.workers is None else list(known.workers),
            "stores": None if known.stores is None else list(known.stores),
            "revoked_at": known.revoked_at,
            "here": mine.get(key),
        }
        for key, known in registry.grants.items()
    ]


def _reach(workers: Sequence[str] | None, stores: Sequence[str] | None) -> str:
    """What a grant is bound to, for people; nothing for one that isn't."""
    if not workers and not stores:
        return ""
    named = [
        f"{what} {', '.join(names)}" for what, names in (("workers", workers), ("stores", stores)) if names
    ]
    return f", for {' and '.join(named)} only"


def _told(key: bytes, number: int, as_json: bool, what: str) -> None:
    from events.signing import key_id

    if as_json:
        typer.echo(json.dumps({"key": key_id(key), "number": number}))
    else:
        typer.echo(f"key {key_id(key)}: {what} (control record {number})")


def _role(text: str) -> Role:
    try:
        return Role(text)
    except ValueError as error:
        raise _usage(f"{text!r} is none of {', '.join(role.value for role in Role)}") from error


def _usage(message: str) -> CommandError:
    return CommandError(message, advice="kvledger key --help", exit_code=ExitCode.USAGE)


def is_secret(given: str, key: bytes, known: Iterable[bytes]) -> bool:
    """Whether what was given as a public key is a secret one: its file says so, or it makes a key that is known."""
    return Path(given).suffix == ".key" or Signer.from_seed(key).public_key in set(known)


async def _known_keys(settings: Settings) -> list[bytes]:
    from kvledger.control import connection, or_unavailable, read_registry

    registry = await or_unavailable(lambda: read_registry(connection(settings)))
    return [grant.public_key for grant in registry.grants.values()]


async def _say(settings: Settings, body: Granted | Revoked) -> int:
    from kvledger.control import or_unavailable, write_once

    done = await or_unavailable(lambda: write_once(settings, Role.OPERATOR, body, principal="cli"))
    return done.number


async def _revoke(settings: Settings, key: str) -> tuple[bytes, int]:
    from events.ids import KeyId
    from kvledger.command.proof_file import public_key_of
    from kvledger.control import connection, or_unavailable, read_registry

    registry = await or_unavailable(lambda: read_registry(connection(settings)))
    known = registry.grants.get(KeyId(key))
    if known is None and KEY_ID.fullmatch(key):
        raise _usage(f"the log has granted key {key} nothing; kvledger key list")
    public_key = known.public_key if known is not None else public_key_of(key, "KEY", "key revoke")
    found = next((one for one in registry.grants.values() if one.public_key == public_key), None)
    if found is None:
        raise _usage("the log has granted this key nothing; kvledger key list")
    if found.revoked_at is not None:
        raise CommandError(f"this key was revoked by control record {found.revoked_at}")
    if registry.operator is not None and registry.grants[registry.operator].public_key == public_key:
        raise CommandError(
            "the key that began the log can't be revoked", advice="begin a new log; docs/keys.md says why"
        )
    return public_key, await _say(settings, Revoked(public_key=public_key))


async def _rotate(settings: Settings, role: Role, *, lost: bool) -> dict[str, object]:
    """The new key is on disk before it is granted, and in its place before the old one is revoked, so that there is
    a key that counts at every step. The old public key stays on disk until it is revoked. The new one is bound to the
    workers and stores that the old one is bound to."""
    from events.signing import Signer, key_id
    from kvledger.control import connection, or_unavailable, read_registry
    from kvledger.keyfile import KeyFileError, key_path, load_signer, public_key_path, write_private

    if role is Role.OPERATOR:
        raise _usage("the operator's key began the log and can't be rotated; grant a second one instead")
    path, public = key_path(settings.home, role), public_key_path(settings.home, role)
    waiting, old = path.with_suffix(".next"), path.with_suffix(".old")
    if not old.exists():
        try:
            before = load_signer(settings.home, role).public_key.hex()
        except KeyFileError:
            if not lost:
                raise
            before = public.read_text().strip() if public.is_file() else ""
        if not before:
            names = f"neither {path.name} nor {public.name}"
            raise _usage(f"there is {names}: revoke the old key by its id, then run `kvledger up`")
        write_private(old, before + "\n")
    if not waiting.exists():
        write_private(waiting, secrets.token_bytes(32).hex() + "\n")
    seed = waiting.read_text().strip()
    signer = Signer.from_seed(bytes.fromhex(seed))
    registry = await or_unavailable(lambda: read_registry(connection(settings)))
    former = bytes.fromhex(old.read_text().strip())
    if signer.id not in registry.grants:
        was = registry.grants.get(key_id(former))
        await _say(
            settings,
            Granted(
                public_key=signer.public_key,
                roles=(role,),
                label=f"local {role.value}",
                workers=was.workers if was is not None else None,
                stores=was.stores if was is not None else None,
            ),
        )
    write_private(path, seed + "\n")
    write_private(public, signer.public_key.hex() + "\n")
    revoked = next(
        (
            key
            for key, known in registry.grants.items()
            if known.public_key == former and known.revoked_at is None
        ),
        None,
    )
    if revoked is not None and former != signer.public_key:
        await _say(settings, Revoked(public_key=former))
    old.unlink()
    waiting.unlink()
    return {"role": role.value, "key": signer.id, "revoked": revoked}
