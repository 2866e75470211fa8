"""`kvledger audit report`: every deletion request between two positions of the register, each with its verdict."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvledger.failure import CommandError, ExitCode
from kvledger.settings import Settings, load_settings
from kvledger.whole_file import write_whole
from kvledger.wording import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from auditor.anchoring import WitnessPolicy
    from auditor.report.judgement import Judged
    from auditor.report.statement import ReportPredicate
    from auditor.report.verify import VerifiedReport
    from events.kafka.connection import RawRecord

TIMEOUT_S = 20.0
SHOWN = 50
ADVICE = "kvledger audit report --help"


def report(
    out: Annotated[Path, typer.Argument(help="the file to write")],
    first: Annotated[
        str, typer.Option("--from", help="first position of the register, or an ISO 8601 time")
    ] = "0",
    next_: Annotated[
        str | None,
        typer.Option("--to", help="position or time up to which, without it; default: all there is"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON document")] = False,
) -> None:
    """Write a signed report of every deletion request between two positions of the register, none missing.

    Each request has its newest verdict of kv.audit, the time to its proof, and whether it is late. Judge first:
    `kvledger audit run --all`. A position is an offset of kv.control, a request's number is one; a time stands for
    the first record that the broker stamped then or later. The file verifies offline (`audit verify`) and becomes
    paper with `audit render`. Exit code 0 if all are PROVEN, else that of the worst: 1 REFUTED, 3 PENDING or not
    judged, 2 UNPROVABLE, also where the register lost records.

    Example: kvledger audit report november.jsonl --from 2026-11-01 --to 2026-12-01
    """
    from auditor.proof import BundleError
    from auditor.report.verify import verify_report
    from kvledger.control import or_unavailable

    settings = load_settings()
    raw, public_key = asyncio.run(or_unavailable(lambda: _make(settings, first, next_)))
    try:
        verified = verify_report(raw, public_key)
    except BundleError as error:
        raise CommandError(
            f"the report would not verify: {error}", exit_code=ExitCode.BUNDLE_INVALID
        ) from error
    write_whole(out, raw)
    show(verified, as_json=as_json)
    _end(verified)


def check_report(
    path: Path, raw: bytes, key: bytes, mine: WitnessPolicy, tsa: Path | None, *, as_json: bool
) -> None:
    """`audit verify` for a report. Raises CommandError, or typer.Exit with the documented code."""
    from auditor.proof import BundleError
    from auditor.report.verify import verify_report
    from kvledger.command.audit_verify import require_witnesses
    from kvledger.stamping import look, require

    try:
        verified = verify_report(raw, key)
        stamp = look(verified.checked, verified.stamp, tsa)
    except BundleError as error:
        raise CommandError(f"{path}: {error}", exit_code=ExitCode.BUNDLE_INVALID) from error
    witnessed = verified.witnessed(mine)
    show(verified, as_json=as_json)
    if stamp.line and not as_json:
        typer.echo(stamp.line)
    if mine.keys and not as_json:
        typer.echo(
            f"  its log is cosigned by {witnessed} of the {counted(len(mine.keys), 'witness', 'witnesses')} given"
        )
    if verified.kind == "PROVEN":
        require_witnesses(witnessed, mine.quorum)
        require(stamp, tsa)
    _end(verified)


def _end(verified: VerifiedReport) -> None:
    from kvledger.command.verdict_text import EXIT_CODES

    if EXIT_CODES[verified.kind.value]:
        raise typer.Exit(EXIT_CODES[verified.kind.value])


def show(verified: VerifiedReport, *, as_json: bool) -> None:
    """Prints what a report says."""
    stated = verified.predicate
    if as_json:
        found = {"signer": verified.signer, "anchor": verified.anchor, "faults": list(verified.faults)}
        typer.echo(json.dumps(found | stated.model_dump(mode="json")))
        return
    typer.echo(f"signed by auditor {verified.signer}, vouched for by the {verified.anchor}'s key")
    counts = ", ".join(f"{number} {kind}" for kind, number in stated.counts.items()) or "no request"
    typer.echo(f"requests {stated.first} to {stated.next} of log {stated.log}: {counts}; {stated.late} late")
    _rows(stated)
    for fault in verified.faults:
        typer.echo(f"  ! {fault}")
    typer.echo(
        f"  {stated.anchoring}; kv.control/{stated.control_end} has the hash {stated.control_hash.hex()}"
    )


def _rows(stated: ReportPredicate) -> None:
    from auditor.paper.element import span
    from auditor.report.statement import NOT_JUDGED

    for entry in stated.entries[:SHOWN]:
        kind = entry.newest.verdict.value if entry.newest is not None else NOT_JUDGED
        proof = "" if entry.proof_ms is None else f", proven after {span(entry.proof_ms / 1_000)}"
        late = ", late" if entry.late else ""
        typer.echo(f"  {entry.request} ({entry.scope.type}) by {entry.requester}: {kind}{proof}{late}")
    if len(stated.entries) > SHOWN:
        typer.echo(f"  … and {len(stated.entries) - SHOWN} more (--json shows all)")


async def _make(settings: Settings, first: str, next_: str | None) -> tuple[bytes, bytes]:
    """The report, and the auditor's public key. Seals the register first, so that the checkpoint covers it."""
    from auditor.anchoring import make_anchor
    from auditor.log import AuditedLog, read_audit
    from auditor.registry import ControlFold
    from auditor.report.judgement import judged
    from auditor.report.register import Range
    from auditor.report.writer import make_report
    from events.ids import Role
    from events.signing import verify
    from events.topic import CONTROL
    from kvledger.checkpointing import make_checkpoint, sealing
    from kvledger.control import connection, wall_ms
    from kvledger.keyfile import load_signer
    from kvledger.stamping import stamped
    from kvledger.witnessing import load_witnesses

    signer = load_signer(settings.home, Role.AUDITOR)
    made = await make_checkpoint(settings)
    for complaint in made.complaints:
        typer.echo(f"kvledger: {complaint}", err=True)
    at, log, registry = (
        connection(settings),
        AuditedLog(connection(settings), timeout_s=TIMEOUT_S),
        ControlFold(verify),
    )
    control: list[RawRecord] = []

    def take(record: RawRecord) -> None:
        if registry.feed(record.offset, record.value, record.signature) != "redelivered":
            control.append(record)

    try:
        await log.start()
        registry.reach(await log.read_control(take))
    finally:
        await log.stop()
    verdicts: list[Judged] = []
    ends = [0]

    def look(record: RawRecord) -> None:
        ends[0] = record.offset + 1
        one = judged(record.offset, record.value, registry)
        if one is not None:
            verdicts.append(one)

    await read_audit(at, look, TIMEOUT_S)
    async with sealing(settings, registry) as sealer:
        head, main = sealer.main.head(), sealer.main
    end = registry.next_offset
    if not registry.log:
        raise CommandError("the log has no genesis record", exit_code=ExitCode.CONFIGURATION)
    sealed = min(end, main.ends.get((CONTROL.name, 0), 0)) or end
    span = Range(position(first, control, end), sealed if next_ is None else position(next_, control, end))
    if not span.first <= span.next <= end:
        raise CommandError(
            f"kv.control ends at {end}: there is no range from {span.first} to {span.next}",
            advice=ADVICE,
            exit_code=ExitCode.USAGE,
        )
    # What came after the seal is shown only if it was asked for: else the checkpoint covers all that is shown.
    shown_to = max(sealed, span.next)
    shown = [record for record in control if record.offset < shown_to]
    anchor = None
    if head is not None:
        starts = {(CONTROL.name, 0): registry.start or 0}
        starts |= {where: upto for where, upto in main.ends.items() if where[0] != CONTROL.name}
        anchor = make_anchor(main, head, load_witnesses(settings.home).policy, starts)
    anchor, stamp = await stamped(settings, anchor)
    raw = make_report(
        span,
        shown,
        verdicts,
        signer,
        made_ms=wall_ms(),
        audit_end=ends[0],
        control_end=shown_to,
        anchor=anchor,
        stamp=stamp,
    )
    return raw, signer.public_key


def position(text: str, control: Sequence[RawRecord], end: int) -> int:
    """An offset, or that of the first record stamped at or after a time."""
    from kvledger.command.at import parse_time

    if text.isascii() and text.isdigit() and len(text) < 18:
        return int(text)
    at_ms = parse_time(text)
    return next((record.offset for record in control if record.timestamp_ms >= at_ms), end)
