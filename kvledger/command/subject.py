"""`kvledger subject bind|show`: which blocks belong to a data subject, so that a deletion can name the subject."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvledger.failure import CommandError, ExitCode, plain
from kvledger.settings import load_settings
from kvledger.wording import counted

if TYPE_CHECKING:
    from events.fold.registry import Registry
    from kvledger.settings import Settings

Json = Annotated[bool, typer.Option("--json", help="print one JSON document")]
DomainName = Annotated[str, typer.Argument(help="domain whose blocks they are")]
Subject = Annotated[str, typer.Argument(help="the gateway's name of the subject, or its pseudonym (64 hex)")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Data subjects and the blocks that are theirs.")
    group.command("bind")(bind)
    group.command("show")(show)
    app.add_typer(group, name="subject")


def bind(
    domain: DomainName,
    subject: Subject,
    ids_file: Annotated[
        Path, typer.Option(help="block ids, hex, one a line; what descends from them is theirs too")
    ],
    as_json: Json = False,
) -> None:
    """Bind blocks to a subject in kv.subjects, under a pseudonym that is keyed by the domain's secret. The name goes
    nowhere. Repeating it changes nothing. Gateways do the same over POST /v1/subjects.

    Example: kvledger subject bind acme patient-17 --ids-file leaves.txt
    """
    from kvledger.command.delete_scope import read_ids
    from kvledger.control import or_unavailable

    ids = read_ids(ids_file, "subject bind")
    settings = load_settings()
    pseudonym, offset = asyncio.run(or_unavailable(lambda: _bind(settings, domain, subject, ids)))
    if as_json:
        typer.echo(
            json.dumps({"domain": domain, "pseudonym": pseudonym.hex(), "offset": offset, "bound": len(ids)})
        )
    else:
        belong = "belongs" if len(ids) == 1 else "belong"
        typer.echo(
            f"{counted(len(ids), 'block')} of {domain} {belong} to {pseudonym.hex()} (kv.subjects/{offset})"
        )


def show(domain: DomainName, subject: Subject, as_json: Json = False) -> None:
    """Show what is bound to a subject by now, and whether it has a sub-domain. Exit 1 if there is neither.

    Example: kvledger subject show acme patient-17
    """
    from kvledger.control import or_unavailable

    settings = load_settings()
    row = asyncio.run(or_unavailable(lambda: _show(settings, domain, subject)))
    if as_json:
        typer.echo(json.dumps(row))
    else:
        typer.echo(
            f"pseudonym {row['pseudonym']}, {counted(row['leaves'], 'leaf', 'leaves')}, "
            f"sub-domain: {row['sub_domain'] or 'none'}"
        )
    if row["begins"]:
        typer.echo(f"kvledger: {lost(row['begins'])}", err=True)
    if not row["leaves"] and not row["sub_domain"]:
        raise typer.Exit(ExitCode.FAILED)


def lost(begins: int) -> str:
    """What to know of a subject where kv.subjects lost its beginning."""
    return (
        f"kv.subjects begins at {begins}: what was bound before that is not known here. Bind again what its archive "
        "has, or delete the domain: docs/deletions.md"
    )


async def _bind(settings: Settings, domain: str, subject: str, ids: tuple[bytes, ...]) -> tuple[bytes, int]:
    from events.ids import Role
    from events.kafka.subject import SubjectLog
    from events.model.audit import SubjectBound
    from kvledger.control import connection, read_registry
    from kvledger.keyfile import load_signer

    signer = load_signer(settings.home, Role.CONTROL)
    pseudonym = _pseudonym(settings, await read_registry(connection(settings)), domain, subject)
    subjects = SubjectLog(connection(settings))
    try:
        record = SubjectBound(subject=pseudonym, domain=domain, leaves=tuple(sorted(set(ids))))
        return pseudonym, await subjects.bind(record, signer)
    finally:
        await subjects.stop()


async def _show(settings: Settings, domain: str, subject: str) -> dict[str, Any]:
    from events.kafka.subject import SubjectLog
    from events.subject import Bindings
    from kvledger.control import connection, read_registry

    registry = await read_registry(connection(settings))
    pseudonym = _pseudonym(settings, registry, domain, subject)
    bound = Bindings.of(domain, pseudonym, registry.grants.values(), registry.verify)
    subjects = SubjectLog(connection(settings))
    end = await subjects.read(lambda one: bound.take(one.value, one.signature))
    own = f"{domain}/{subject}"
    return {
        "domain": domain,
        "pseudonym": pseudonym.hex(),
        "leaves": len(bound.leaves),
        "sub_domain": own if own in registry.domains else None,
        "begins": subjects.begins,
        "read_to": end,
    }


def _pseudonym(settings: Settings, registry: Registry, domain: str, subject: str) -> bytes:
    from pydantic import ValidationError

    from events.subject import given_pseudonym, subject_name
    from kvledger.keyfile import load_ring

    try:
        subject_name(subject)
    except ValidationError as error:
        raise CommandError(
            f"a subject's name: {plain(error.errors(include_input=False)[0]['msg'])}",
            advice="kvledger subject --help",
            exit_code=ExitCode.USAGE,
        ) from error
    ring = load_ring(settings.home)
    if domain not in registry.domains or domain not in ring:
        raise CommandError(
            f"there is no domain {domain}, or its keys are not here",
            advice=f"kvledger domain add {domain}",
            exit_code=ExitCode.USAGE,
        )
    return given_pseudonym(subject) or ring[domain].pseudonym(subject)
