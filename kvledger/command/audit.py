"""`kvledger audit run|show`: replay the log, judge deletion requests, write the verdict and its proof."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvledger.command.verdict_text import EXIT_CODES, SHOWN_REASONS, print_verdict
from kvledger.failure import CommandError, ExitCode
from kvledger.settings import Settings, load_settings
from kvledger.whole_file import write_whole
from kvledger.wording import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from auditor.anchoring import Anchor
    from auditor.finding import Verdict
    from auditor.live import LiveAudit
    from events.model.audit import VerdictGiven

Json = Annotated[bool, typer.Option("--json", help="print one JSON document")]
PRECEDENCE = ("REFUTED", "PENDING", "UNPROVABLE", "PROVEN")
AUDIT_TIMEOUT_S = 20.0
MOST_REASONS, MOST_CHARS = 200, 1_000
"""Of what a record of kv.audit holds, so that it stays below a topic's limit; a bundle has all of it."""


def register(app: typer.Typer) -> None:
    """Adds the group."""
    from kvledger.command.archive import archive
    from kvledger.command.audit_index import audit_index
    from kvledger.command.audit_verify import verify
    from kvledger.command.checkpoint import checkpoint
    from kvledger.command.render import render
    from kvledger.command.report import report

    group = typer.Typer(no_args_is_help=True, help="Judge and prove deletions.")
    group.command("run")(run)
    group.command("show")(show)
    group.command("verify")(verify)
    group.command("checkpoint")(checkpoint)
    group.command("archive")(archive)
    group.command("index")(audit_index)
    group.command("render")(render)
    group.command("report")(report)
    app.add_typer(group, name="audit")


def run(
    request: Annotated[
        int | None, typer.Option(min=0, help="number of one request; default: the newest")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="every deletion request of the log")] = False,
    wait: Annotated[float, typer.Option(min=0, help="seconds to wait for acks and answers")] = 10.0,
    bundle: Annotated[Path | None, typer.Option(help="write a bundle that others can verify offline")] = None,
    archive: Annotated[
        str | None, typer.Option(help="where `audit archive` wrote: read there what Kafka has dropped")
    ] = None,
    incremental: Annotated[
        bool,
        typer.Option("--incremental", help="read only what is new since the last audit with this option"),
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="read the archive alone, as of its end; no broker is asked")
    ] = False,
    key: Annotated[
        str | None,
        typer.Option(
            help="with --offline: the operator's or auditor's public key, hex or a file; default: our own"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Replay the log from Kafka with the auditor's own fold and judge deletion requests.

    When every holder has acked, asks once more with a nonce and waits for the answers. The verdict, with
    reasons and what cures them, is signed and written to kv.audit. Exit code 0 PROVEN, 1 REFUTED,
    2 UNPROVABLE, 3 PENDING; with --all that of the worst. With --offline nothing is asked or written.

    Example: kvledger audit run --request 12 --wait 30 --bundle proof.jsonl
    """
    if incremental and bundle is not None:
        raise _usage("--bundle needs the whole log, --incremental reads what is new of it")
    if every and (request is not None or bundle is not None):
        raise _usage("--all goes with neither --request nor --bundle")
    if offline and (archive is None or incremental):
        raise _usage("--offline needs --archive and goes without --incremental")
    if key is not None and not offline:
        raise _usage("--key goes with --offline")
    settings = load_settings()
    numbers = None if every else ([] if request is None else [request])
    if offline:
        from kvledger.command.audit_offline import audit_offline
        from kvledger.command.proof_file import public_key_of

        trusted = None if key is None else public_key_of(key)
        work = audit_offline(settings, archive or "", numbers, key=trusted, bundle=bundle)
    else:
        work = audit_requests(
            settings, numbers, wait_s=wait, bundle=bundle, archive=archive, incremental=incremental
        )
    verdicts = asyncio.run(work)
    if as_json:
        documents = [verdict.model_dump(mode="json") for verdict in verdicts]
        typer.echo(json.dumps({"verdicts": documents} if every else documents[0]))
    else:
        for verdict in verdicts:
            print_verdict(verdict)
    kinds = {verdict.kind.value for verdict in verdicts}
    worst = next((kind for kind in PRECEDENCE if kind in kinds), "PROVEN")
    if EXIT_CODES[worst]:
        raise typer.Exit(EXIT_CODES[worst])


def show(
    request: Annotated[int, typer.Argument(min=0, help="number of the request")],
    as_json: Json = False,
) -> None:
    """Show the newest verdict on a request that kv.audit holds, with its reasons and cures.

    Exit code as of `audit run`; 3 as well when nobody has judged the request yet.

    Example: kvledger audit show 12
    """
    given = asyncio.run(_newest(load_settings(), request))
    if given is None:
        raise CommandError(
            f"nobody has judged request {request}",
            advice=f"kvledger audit run --request {request}",
            exit_code=ExitCode.PENDING,
        )
    if as_json:
        typer.echo(given.model_dump_json())
    else:
        typer.echo(f"request {given.request}: {given.verdict.value}")
        for reason in given.reasons[:SHOWN_REASONS]:
            typer.echo(f"  {reason.condition} {reason.reason.value}: {reason.subject}: {reason.detail}")
            typer.echo(f"     cure: {reason.cure}")
        typer.echo("as of " + ", ".join(f"{at.topic}/{at.partition}@{at.offset}" for at in given.frontier))
        if given.bundle_sha256 is not None:
            typer.echo(f"bundle {given.bundle_sha256.hex()}")
    if EXIT_CODES[given.verdict.value]:
        raise typer.Exit(EXIT_CODES[given.verdict.value])


async def audit_requests(
    settings: Settings,
    numbers: list[int] | None,
    *,
    wait_s: float,
    bundle: Path | None = None,
    archive: str | None = None,
    incremental: bool = False,
) -> list[Verdict]:
    """Judges requests (None: all; empty: the newest) and writes verdicts and a checkpoint to kv.audit.

    Raises CommandError if the log or the archive is away, has no such request or a key is missing.
    """
    from auditor.archive.failure import ArchiveError
    from auditor.live import UnknownRequestError
    from kvledger.command.archive import refused
    from kvledger.control import or_unavailable

    async def work() -> list[Verdict]:
        try:
            return await _audit(settings, numbers, wait_s, bundle, archive, incremental=incremental)
        except ArchiveError as error:
            raise refused(archive or "", error) from error
        except UnknownRequestError as error:
            raise _usage(str(error)) from error

    return await or_unavailable(work)


async def _audit(
    settings: Settings,
    numbers: list[int] | None,
    wait_s: float,
    bundle: Path | None,
    archive: str | None,
    *,
    incremental: bool,
) -> list[Verdict]:
    from auditor.archive.reader import ArchivedReader
    from auditor.live import LiveAudit
    from auditor.log import AuditedLog
    from events.ids import Role
    from events.model.control import AuditNonce
    from events.signing import verify as holds
    from events.topic import EVENTS
    from kvledger.audit_state import AuditStates
    from kvledger.checkpointing import judge_anchored
    from kvledger.control import connection, control_writer
    from kvledger.keyfile import load_ring, load_signer

    keys = {domain: known.alias_key for domain, known in load_ring(settings.home).items()}
    log = AuditedLog(connection(settings), timeout_s=AUDIT_TIMEOUT_S, before=ArchivedReader)
    states = AuditStates(settings.home, load_signer(settings.home, Role.AUDITOR), keep=incremental)
    audit = LiveAudit(log, keys, holds, monotonic_s=time.monotonic, new_seen=states.new_seen)
    try:
        requests = await audit.open()
        numbers = chosen(numbers, requests)

        async def ask(due: Sequence[int]) -> None:
            registry = audit.registry  # another one once the audit has begun to read anew
            code = ExitCode.CONFIGURATION  # which no verdict has
            try:
                async with control_writer(settings, registry, Role.AUDITOR, exit_code=code) as writer:
                    for number in due:
                        await writer.append(AuditNonce(request=number, nonce=secrets.token_hex(16)))
            except CommandError as error:
                if registry.contiguous:
                    raise
                # The grant may be in the hole, of which the verdict tells.
                typer.echo(f"kvledger: no nonce is written: {error}", err=True)

        verdicts, anchor, complaints = await judge_anchored(
            settings, audit, numbers, wait_s, ask, archive, states
        )
        if audit.resumed:
            earlier = "what lies before the newest records was read by an earlier audit of this auditor"
            verdicts = [
                one.model_copy(update={"assumptions": (*one.assumptions, earlier)}) for one in verdicts
            ]
        cut = sum(start > 0 for (topic, _), start in audit.starts.items() if topic == EVENTS.name)
        if cut and archive is None:
            lost = f"the log no longer holds the beginning of {counted(cut, 'partition')} of kv.events"
            complaints = [*complaints, f"{lost}: --archive URL reads what was archived of them"]
        for complaint in complaints:
            typer.echo(f"kvledger: {complaint}", err=True)
        sha256s = {}
        if bundle is not None:
            sha256s[numbers[0]] = await write_bundle(settings, audit, verdicts[0], anchor, bundle)
        await _publish(settings, audit, verdicts, sha256s)
        return verdicts
    finally:
        states.close()
        await log.stop()


def chosen(numbers: list[int] | None, requests: Collection[int]) -> list[int]:
    """Which of the log's requests are meant: all (None), the newest (none given), or those given. Raises
    CommandError if there is none."""
    if numbers is None:
        numbers = sorted(requests)
    elif not numbers:
        numbers = sorted(requests)[-1:]
    if not numbers:
        raise CommandError(
            "the log holds no deletion request", advice="kvledger delete --help", exit_code=ExitCode.USAGE
        )
    return numbers


async def write_bundle(
    settings: Settings, audit: LiveAudit, verdict: Verdict, anchor: Anchor | None, path: Path
) -> bytes:
    """Writes the bundle and checks it the way others will; its SHA-256."""
    from auditor.bundle import make_bundle, shown_record
    from auditor.evidence import Evidence
    from auditor.proof import BundleError
    from auditor.verify import verify_bundle
    from events.chain import sha256
    from events.ids import Role
    from events.kafka.connection import RawRecord
    from kvledger.control import wall_ms
    from kvledger.keyfile import keep_proof, load_signer
    from kvledger.stamping import stamped

    signer = load_signer(settings.home, Role.AUDITOR)
    shown: list[bytes] = []

    def show(record: RawRecord, evidence: Evidence) -> None:
        shown.append(shown_record(record, evidence, anchored=anchor is not None))

    await audit.reread(verdict.request, show)
    anchor, stamp = await stamped(settings, anchor)
    evidence, given_ms = audit.evidence[verdict.request], wall_ms()
    raw = make_bundle(verdict, evidence, audit.control, shown, signer, anchor, stamp, given_ms=given_ms)
    try:
        verify_bundle(raw, signer.public_key)
    except BundleError as error:
        raise CommandError(
            f"the bundle would not verify: {error}", exit_code=ExitCode.BUNDLE_INVALID
        ) from error
    await asyncio.to_thread(write_whole, path, raw)
    await asyncio.to_thread(keep_proof, settings.home, raw)
    typer.echo(f"bundle written; verify it with `kvledger audit verify {path} --key KEY`,", err=True)
    typer.echo(f"  KEY {audit.registry.operator_key.hex()} (operator)", err=True)
    typer.echo(f"   or {signer.public_key.hex()} (auditor)", err=True)
    return sha256(raw)


async def _publish(
    settings: Settings, audit: LiveAudit, verdicts: Sequence[Verdict], sha256s: dict[int, bytes]
) -> None:
    """Signs the verdicts and a checkpoint and appends them to kv.audit."""
    from auditor.log import append_audit
    from events.codec import dump
    from events.ids import Role
    from events.model.audit import AuditRecord, Checkpoint, ReasonGiven, VerdictGiven
    from kvledger.control import connection, wall_ms
    from kvledger.keyfile import load_signer

    signer, log = load_signer(settings.home, Role.AUDITOR), audit.registry.log
    statements: list[VerdictGiven | Checkpoint] = [
        VerdictGiven(
            log=log,
            request=verdict.request,
            verdict=verdict.kind,
            reasons=tuple(
                ReasonGiven(
                    reason=reason.reason,
                    condition=reason.condition,
                    subject=reason.subject[:MOST_CHARS],
                    detail=reason.detail[:MOST_CHARS],
                    cure=reason.cure[:MOST_CHARS],
                )
                for reason in verdict.reasons[:MOST_REASONS]
            ),
            frontier=verdict.frontier,
            bundle_sha256=sha256s.get(verdict.request),
            given_ms=wall_ms(),
        )
        for verdict in verdicts
    ]
    statements.append(Checkpoint(log=log, positions=audit.frontier, control_hash=audit.registry.hash))
    values = []
    for statement in statements:
        raw = dump(statement)
        values.append(dump(AuditRecord(signer=signer.id, signature=signer.sign(raw), statement=raw)))
    await append_audit(connection(settings), log, values, AUDIT_TIMEOUT_S)


async def _newest(settings: Settings, request: int) -> VerdictGiven | None:
    from auditor.log import PartitionReader, read_audit
    from auditor.registry import ControlFold
    from auditor.report.judgement import judged
    from events.kafka.connection import RawRecord
    from events.signing import verify as holds
    from events.topic import CONTROL
    from kvledger.control import connection, or_unavailable

    async def work() -> VerdictGiven | None:
        at = connection(settings)
        registry = ControlFold(holds)
        reader = PartitionReader(at, at.topic(CONTROL), AUDIT_TIMEOUT_S)
        await reader.start(1)
        try:
            await reader.read_to(
                await reader.ends(), lambda one: _ignore(registry.feed(one.offset, one.value, one.signature))
            )
        finally:
            await reader.stop()
        found: list[VerdictGiven] = []

        def take(record: RawRecord) -> None:
            one = judged(record.offset, record.value, registry)
            if one is not None and one.given.request == request:
                found.append(one.given)

        await read_audit(at, take, AUDIT_TIMEOUT_S)
        return found[-1] if found else None

    return await or_unavailable(work)


def _ignore(_: str) -> None:
    """What the registry ignored doesn't matter to somebody who only wants to see a verdict."""


def _usage(message: str) -> CommandError:
    return CommandError(message, advice="kvledger audit --help", exit_code=ExitCode.USAGE)
