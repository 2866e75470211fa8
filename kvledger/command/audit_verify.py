"""`kvledger audit verify`: what a proof or a report says, recomputed from the file and one public key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvledger.command.proof_file import public_key_of, read_file
from kvledger.command.verdict_text import EXIT_CODES, print_verdict
from kvledger.failure import CommandError, ExitCode
from kvledger.wording import counted

if TYPE_CHECKING:
    from auditor.anchoring import WitnessPolicy

Json = Annotated[bool, typer.Option("--json", help="print one JSON document")]


def verify(
    bundle: Annotated[Path, typer.Argument(help="a file that `audit run --bundle` wrote")],
    key: Annotated[
        str, typer.Option(help="the operator's or auditor's public key: 64 hex characters or a file")
    ],
    witness: Annotated[
        list[str] | None,
        typer.Option(help="a witness's key that you trust yourself, whatever the bundle says; repeatable"),
    ] = None,
    quorum: Annotated[
        int | None, typer.Option(min=0, help="how many of them are needed; default: all")
    ] = None,
    tsa: Annotated[
        Path | None, typer.Option(help="PEM certificates of the time-stamping authority that you trust")
    ] = None,
    as_json: Json = False,
) -> None:
    """Verify a bundle or a report offline, from the file and one public key, and recompute what it says.

    With --witness the log that the verdict rests on must be cosigned by those too, with --tsa its checkpoint must be
    time-stamped by that authority; otherwise the exit code is 2 where it would be 0. Exit code 0 PROVEN, 1 REFUTED,
    2 UNPROVABLE, 3 PENDING, 4 if the file proves nothing: garbled, cut, edited, or of another log or key. 64: wrong
    usage, there is no such file or the key is none; nothing was verified.

    Example: kvledger audit verify proof.jsonl --key 3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c
    """
    from auditor.paper.element import moment
    from auditor.proof import BundleError, read_statement
    from auditor.report.statement import is_report
    from auditor.verify import verify_bundle
    from kvledger.command.report import check_report
    from kvledger.stamping import look, require

    trusted = public_key_of(key)
    mine = _policy(witness or [], quorum)
    raw = read_file(bundle)
    if is_report(raw):
        check_report(bundle, raw, trusted, mine, tsa, as_json=as_json)
        return
    try:
        verified = verify_bundle(raw, trusted)
        stamp = look(verified.checked, verified.stamp, tsa)
    except BundleError as error:
        raise CommandError(f"{bundle}: {error}", exit_code=ExitCode.BUNDLE_INVALID) from error
    witnessed = verified.witnessed(mine)
    stated = read_statement(verified.payload).predicate
    if as_json:
        found = {
            "signer": verified.signer,
            "anchor": verified.anchor,
            "witnessed": witnessed,
            "by_digest": verified.by_digest,
            "time_stamp": stamp.fault or stamp.line.strip(),
            **stated.model_dump(mode="json", include={"given_ms", "attestations", "holds"}),
        }
        typer.echo(json.dumps({**found, **verified.verdict.model_dump(mode="json")}))
    else:
        typer.echo(f"signed by auditor {verified.signer}, vouched for by the {verified.anchor}'s key")
        print_verdict(verified.verdict, stated)
        if stated.given_ms is not None:
            typer.echo(f"  given {moment(stated.given_ms)} by the auditor's clock")
        for note in verified.notes():
            typer.echo(f"  {note}")
        if stamp.line:
            typer.echo(stamp.line)
        if mine.keys:
            typer.echo(
                f"  its log is cosigned by {witnessed} of the {counted(len(mine.keys), 'witness', 'witnesses')} given"
            )
    if verified.verdict.kind == "PROVEN":
        require_witnesses(witnessed, mine.quorum)
        require(stamp, tsa)
    if EXIT_CODES[verified.verdict.kind.value]:
        raise typer.Exit(EXIT_CODES[verified.verdict.kind.value])


def _policy(keys: list[str], quorum: int | None) -> WitnessPolicy:
    from auditor.anchoring import PolicyError, make_policy

    try:
        return make_policy(keys, len(keys) if quorum is None else quorum)
    except PolicyError as error:
        raise CommandError(
            f"--witness, --quorum: {error}", advice="kvledger audit verify --help", exit_code=ExitCode.USAGE
        ) from error


def require_witnesses(witnessed: int, quorum: int) -> None:
    """Raises CommandError if fewer of a reader's own witnesses than he needs have cosigned."""
    if witnessed < quorum:
        raise CommandError(
            f"witness_quorum_missing: the log is cosigned by {witnessed} of the "
            f"{counted(quorum, 'witness', 'witnesses')} that you need",
            advice="ask for a file whose checkpoint they have cosigned",
            exit_code=ExitCode.UNPROVABLE,
        )
