"""`kvledger delete`: write a numbered deletion request to the control log."""

from __future__ import annotations

import asyncio
import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvledger.command.hours import seconds
from kvledger.failure import CommandError, ExitCode, plain
from kvledger.settings import load_settings
from kvledger.whole_file import write_whole

if TYPE_CHECKING:
    from events.fold.registry import Registry
    from events.model.control import Scope, SubjectScope
    from events.receipt import Receipt
    from kvledger.settings import Settings

PRINCIPAL = "cli"
"""Whose idempotency keys these are, and who is named as the requester."""

MAX_REASON = 2_000


def register(app: typer.Typer) -> None:
    app.command("delete")(delete)


def delete(
    tenant: Annotated[str | None, typer.Option(help="everything of this tenant's domains")] = None,
    domain: Annotated[str | None, typer.Option(help="everything of one domain")] = None,
    subject: Annotated[
        str | None,
        typer.Option(
            help="with --domain: a data subject's sub-domain, and what is bound to it; or its pseudonym"
        ),
    ] = None,
    prefix_file: Annotated[
        Path | None, typer.Option(help="with --domain: block ids of a prefix, hex, one a line")
    ] = None,
    ids_file: Annotated[Path | None, typer.Option(help="with --domain: block ids, hex, one a line")] = None,
    profile: Annotated[str | None, typer.Option(help="everything of one content profile (64 hex)")] = None,
    reason: Annotated[str, typer.Option(help="kept in the record, for people")] = "",
    deadline_hours: Annotated[float | None, typer.Option(min=0, help="when it should be proven")] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="repeat a request safely")] = None,
    receipt: Annotated[
        Path | None, typer.Option(help="write the signed receipt here; `kvledger receipt verify` checks it")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON document")] = False,
) -> None:
    """Ask every registered worker to remove what is in scope, descendants included. Prints the request's
    number; `kvledger audit run` proves it, or says what is missing.

    Example: kvledger delete --tenant acme --reason "contract ended"
    """
    scope = _scope(tenant, domain, subject, prefix_file, ids_file, profile)
    deadline_s = seconds(deadline_hours, "--deadline-hours")
    if len(reason) > MAX_REASON:
        raise _usage(f"--reason takes {MAX_REASON} characters at most")
    key = idempotency_key or secrets.token_hex(16)
    given = asyncio.run(_write(scope, reason, deadline_s, key))
    if receipt is not None:
        again = (
            f"request {given.request} is in the log: repeat it with --idempotency-key {key} for its receipt"
        )
        write_whole(receipt, given.model_dump_json().encode() + b"\n", advice=again)
    if as_json:
        document = {
            "number": given.request,
            "record_sha256": given.record_sha256,
            "token": given.token,
            "idempotency_key": key,
            "repeated": given.repeated,
            "receipt": given.model_dump(mode="json"),
        }
        typer.echo(json.dumps(document))
    else:
        typer.echo(f"deletion request {given.request} is in the log")
        typer.echo(f"prove it: kvledger audit run --request {given.request} --wait 30")


def _scope(
    tenant: str | None,
    domain: str | None,
    subject: str | None,
    prefix_file: Path | None,
    ids_file: Path | None,
    profile: str | None,
) -> Scope:
    from pydantic import ValidationError

    from events.model.control import (
        DomainScope,
        IdsScope,
        PrefixScope,
        ProfileScope,
        SubjectScope,
        TenantScope,
    )

    given = [
        name
        for name, value in (
            ("--tenant", tenant),
            ("--subject", subject),
            ("--prefix-file", prefix_file),
            ("--ids-file", ids_file),
            ("--profile", profile),
        )
        if value is not None
    ]
    if len(given) > 1:
        raise _usage(f"{' and '.join(given)} can't be combined")
    if domain is None and given not in (["--tenant"], ["--profile"]):
        raise _usage(
            "name what to delete: --tenant, --domain (and --subject, --prefix-file or --ids-file), or --profile"
        )
    if domain is not None and given in (["--tenant"], ["--profile"]):
        raise _usage(f"--domain and {given[0]} can't be combined")
    try:
        if tenant is not None:
            return TenantScope(tenant=tenant)
        if profile is not None:
            return ProfileScope(profile=bytes.fromhex(profile))
        assert domain is not None
        if subject is not None:
            return SubjectScope(domain=domain, subject=subject)
        if prefix_file is not None:
            return PrefixScope(domain=domain, ids=read_ids(prefix_file))
        if ids_file is not None:
            return IdsScope(domain=domain, ids=read_ids(ids_file))
        return DomainScope(domain=domain)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        raise _usage(f"{'.'.join(str(x) for x in first['loc'])}: {plain(first['msg'])}") from error
    except ValueError as error:
        raise _usage("--profile takes 64 hexadecimal characters") from error


def read_ids(path: Path) -> tuple[bytes, ...]:
    ids: list[bytes] = []
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _usage(f"{path} can't be read") from error
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text:
            continue
        try:
            block = bytes.fromhex(text)
        except ValueError:
            block = b""
        if len(block) != 16:
            raise _usage(f"{path}, line {number}: a block id is 32 hexadecimal characters")
        ids.append(block)
    if not ids:
        raise _usage(f"{path} holds no block id")
    return tuple(ids)


def _usage(message: str) -> CommandError:
    return CommandError(message, advice="kvledger delete --help", exit_code=ExitCode.USAGE)


def _check_known(scope: Scope, registry: Registry) -> None:
    """A mistyped name would be a request that nothing can ever prove; the log takes no request back."""
    from events.model.control import ProfileScope, SubjectScope, TenantScope

    if isinstance(scope, ProfileScope):
        return
    if isinstance(scope, TenantScope):
        name, known, kind = scope.tenant, {d.tenant for d in registry.domains.values()}, "tenant"
    elif isinstance(scope, SubjectScope):
        return
    else:
        name, known, kind = scope.domain, set(registry.domains), "domain"
    if name not in known:
        raise CommandError(
            f"there is no {kind} {name}",
            advice=f"the log has {', '.join(sorted(known)[:10]) or 'none'}; kvledger domain list",
            exit_code=ExitCode.USAGE,
        )


async def _write(
    scope: Scope,
    reason: str,
    deadline_s: int | None,
    key: str,
) -> Receipt:
    from events.ids import Role
    from events.model.control import ControlBody, DeletionRequested, SubjectScope
    from events.receipt import make_receipt
    from events.scope import same_scope
    from kvledger.control import connection, or_unavailable, read_registry, write_once
    from kvledger.keyfile import load_signer

    settings = load_settings()
    signer = load_signer(settings.home, Role.CONTROL)

    async def write() -> Receipt:
        asked = scope
        if isinstance(scope, SubjectScope):
            asked = await _subject(settings, await read_registry(connection(settings)), scope)
        body = DeletionRequested(scope=asked, requester=PRINCIPAL, reason=reason, deadline_s=deadline_s)

        def same(known: ControlBody) -> bool:
            return isinstance(known, DeletionRequested) and same_scope(known.scope, asked)

        done = await write_once(
            settings,
            Role.CONTROL,
            body,
            principal=PRINCIPAL,
            key=key,
            check=lambda registry: _check_known(asked, registry),
            same=same,
        )
        return make_receipt(
            signer,
            log=done.log,
            number=done.number,
            kind=body.kind,
            record_sha256=done.record_sha256,
            repeated=done.repeated,
        )

    return await or_unavailable(write)


async def _subject(settings: Settings, registry: Registry, scope: SubjectScope) -> Scope:
    """The subject's leaves as kv.subjects names them now."""
    from events.kafka.subject import SubjectLog, TooManyLeavesError
    from kvledger.control import connection
    from kvledger.keyfile import load_ring

    subjects = SubjectLog(connection(settings))
    try:
        found = await subjects.scope(registry, load_ring(settings.home), scope.domain, scope.subject)
    except TooManyLeavesError as error:
        raise _usage(str(error)) from error
    if found is None:
        raise CommandError(
            f"{scope.domain} has no such subject: neither a sub-domain nor anything bound to it",
            advice="kvledger subject bind, or kvledger domain list",
            exit_code=ExitCode.USAGE,
        )
    return found
