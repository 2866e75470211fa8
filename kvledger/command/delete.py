"""`kvledger delete`: write a numbered deletion request to the control log."""

from __future__ import annotations

import asyncio
import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvledger.command.delete_scope import ModelGiven, ScopeOptions, SubjectGiven, usage
from kvledger.duration import seconds_of
from kvledger.failure import CommandError, ExitCode
from kvledger.settings import load_settings
from kvledger.whole_file import write_whole

if TYPE_CHECKING:
    from events.fold.registry import Registry
    from events.model.control import Scope
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
            help="with --domain: a data subject, named as it was bound, or its pseudonym: what is bound to it, and "
            "its sub-domain"
        ),
    ] = None,
    prefix_file: Annotated[
        Path | None, typer.Option(help="with --domain: block ids of a prefix, hex, one a line")
    ] = None,
    ids_file: Annotated[Path | None, typer.Option(help="with --domain: block ids, hex, one a line")] = None,
    profile: Annotated[str | None, typer.Option(help="everything of one content profile (64 hex)")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="everything of every profile that was declared of a model (asks the lookup service)"
        ),
    ] = None,
    revision: Annotated[str | None, typer.Option(help="with --model: of this revision alone")] = None,
    adapter: Annotated[str | None, typer.Option(help="with --model: of this adapter alone")] = None,
    reason: Annotated[str, typer.Option(help="kept in the record, for people")] = "",
    deadline_hours: Annotated[float | None, typer.Option(min=0, help="when it should be proven")] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="repeat a request safely")] = None,
    receipt: Annotated[
        Path | None, typer.Option(help="write the signed receipt here; `kvledger receipt verify` checks it")
    ] = None,
    lookup_url: Annotated[
        str | None, typer.Option(help="with --model: the lookup service; default: the local stack's")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="with --model: file with an operator's bearer token")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON document")] = False,
) -> None:
    """Ask every registered worker to remove what is in scope, descendants included. Prints the request's
    number; `kvledger audit run` proves it, or says what is missing.

    Example: kvledger delete --tenant acme --reason "contract ended"
    """
    options = ScopeOptions(tenant, domain, subject, prefix_file, ids_file, profile, model, revision, adapter)
    scope = options.scope()
    if not isinstance(scope, ModelGiven) and (lookup_url is not None or token_file is not None):
        raise usage(
            "--lookup-url and --token-file go with --model: the other scopes are written into the log here"
        )
    deadline_s = seconds_of("--deadline-hours", deadline_hours, "delete")
    if len(reason) > MAX_REASON:
        raise usage(f"--reason takes {MAX_REASON} characters at most")
    key = idempotency_key or secrets.token_hex(16)
    if isinstance(scope, ModelGiven):
        given = asyncio.run(_ask(scope, reason, deadline_s, key, lookup_url, token_file))
    else:
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


async def _ask(
    scope: ModelGiven,
    reason: str,
    deadline_s: int | None,
    key: str,
    lookup_url: str | None,
    token_file: Path | None,
) -> Receipt:
    from kvledger.command.bridge import is_http
    from kvledger.keyfile import read_key
    from kvledger.model_order import order_deletion

    url = lookup_url or f"http://127.0.0.1:{load_settings().lookup_port}"
    if not is_http(url):
        raise usage(f"--lookup-url {url!r} must be an http:// or https:// URL")
    body = {"scope": scope.body(), "reason": reason, "deadline_s": deadline_s}
    return await order_deletion(url.rstrip("/"), read_key(token_file), body, key)


async def _write(
    scope: Scope | SubjectGiven,
    reason: str,
    deadline_s: int | None,
    key: str,
) -> Receipt:
    from events.ids import Role
    from events.model.control import ControlBody, DeletionRequested
    from events.receipt import make_receipt
    from events.scope import same_scope
    from kvledger.control import connection, or_unavailable, read_registry, write_once
    from kvledger.keyfile import load_signer

    settings = load_settings()
    signer = load_signer(settings.home, Role.CONTROL)

    async def write() -> Receipt:
        if isinstance(scope, SubjectGiven):
            asked = await _subject(settings, await read_registry(connection(settings)), scope)
        else:
            asked = scope
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


async def _subject(settings: Settings, registry: Registry, scope: SubjectGiven) -> Scope:
    """The subject's leaves as kv.subjects names them now."""
    from events.kafka.subject import SubjectLog, TooManyLeavesError
    from kvledger.command.subject import lost
    from kvledger.control import connection
    from kvledger.keyfile import load_ring

    subjects = SubjectLog(connection(settings))
    try:
        found = await subjects.scope(registry, load_ring(settings.home), scope.domain, scope.subject)
    except TooManyLeavesError as error:
        raise usage(str(error)) from error
    if subjects.begins:
        typer.echo(f"kvledger: {lost(subjects.begins)}", err=True)
    if found is None:
        raise CommandError(
            f"{scope.domain} has no such subject: neither a sub-domain nor anything bound to it",
            advice="kvledger subject bind, or kvledger domain list",
            exit_code=ExitCode.USAGE,
        )
    return found
