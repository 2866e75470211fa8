"""`kvledger audit render`: a proof on paper and as tables, from the file alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvledger.failure import CommandError, ExitCode
from kvledger.whole_file import write_whole
from kvledger.wording import counted

if TYPE_CHECKING:
    from auditor.paper.element import Paper
    from auditor.paper.ledger import Ledger


def render(
    bundle: Annotated[Path, typer.Argument(help="a file that `audit run --bundle` or `audit report` wrote")],
    key: Annotated[
        str | None,
        typer.Option(
            help="check it first with the operator's or auditor's public key: 64 hex characters or a file"
        ),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="write one HTML file that needs no network")] = None,
    pdf: Annotated[Path | None, typer.Option(help="write a PDF (needs kvledger[report])")] = None,
    csv: Annotated[Path | None, typer.Option(help="write the evidence as CSV files into this folder")] = None,
    parquet: Annotated[
        Path | None,
        typer.Option(help="write the evidence as Parquet files into this folder (kvledger[report])"),
    ] = None,
    pack: Annotated[
        Path | None,
        typer.Option(help="write one ZIP with the file itself and all of these (kvledger[report])"),
    ] = None,
) -> None:
    """Write what a proof or a report says for people: HTML or PDF, its evidence as CSV or Parquet, or all in a ZIP.

    Needs neither a network nor settings. With --key the file is checked first, and nothing is written unless it
    holds; without, the paper says that nobody has checked it. A paper is never the proof: it names the file's
    SHA-256. Exit code 0 if all was written, whatever the verdict; 4 if the file proves nothing.

    Example: kvledger audit render proof.jsonl --key operator.pub --html proof.html --pdf proof.pdf
    """
    if not any((html, pdf, csv, parquet, pack)):
        raise CommandError(
            "name what to write",
            advice="--html FILE, --pdf FILE, --csv FOLDER, --parquet FOLDER, --pack FILE",
            exit_code=ExitCode.USAGE,
        )
    raw, paper, tables = _read(bundle, key)
    # All is made before anything is written, so that a missing extra leaves nothing half done.
    made: dict[Path, bytes] = {}
    if html is not None:
        from auditor.paper.html import to_html

        made[html] = to_html(paper)
    if pdf is not None:
        from auditor.paper.pdf import to_pdf

        made[pdf] = to_pdf(paper)
    if csv is not None:
        made |= {csv / f"{name}.csv": table.to_csv() for name, table in tables.items()}
    if parquet is not None:
        made |= {parquet / f"{name}.parquet": table.to_parquet() for name, table in tables.items()}
    if pack is not None:
        made[pack] = _pack(raw, paper, tables)
    for path, content in made.items():
        write_whole(path, content, exit_code=ExitCode.FAILED)
    if key is None:
        typer.echo("not verified: give --key to have the file checked first", err=True)
    typer.echo(f"{counted(len(made), 'file')} written: {paper.title}")


def _pack(raw: bytes, paper: Paper, tables: dict[str, Ledger]) -> bytes:
    from auditor.paper.html import to_html
    from auditor.paper.pack import to_zip
    from auditor.paper.pdf import to_pdf
    from events.chain import sha256

    papers = {"proof.html": to_html(paper), "proof.pdf": to_pdf(paper)}
    for name, table in tables.items():
        papers[f"evidence/{name}.csv"] = table.to_csv()
        papers[f"evidence/{name}.parquet"] = table.to_parquet()
    return to_zip(paper.title, raw, sha256(raw).hex(), papers)


def _read(path: Path, key: str | None) -> tuple[bytes, Paper, dict[str, Ledger]]:
    from auditor.paper.ledger import bundle_tables
    from auditor.paper.register import report_paper, report_tables
    from auditor.paper.sheet import Source, proof_paper
    from auditor.proof import BundleError, read_statement, unseal
    from auditor.report.statement import is_report, read_report
    from auditor.report.verify import verify_report
    from auditor.statement import program_version
    from auditor.verify import verify_bundle
    from events.chain import sha256
    from kvledger.command.proof_file import public_key_of, read_file

    raw = read_file(path)
    source = Source(sha256(raw).hex(), len(raw), f"kvledger {program_version()}")
    trusted = None if key is None else public_key_of(key)
    try:
        signer, payload, _ = unseal(raw.partition(b"\n")[0])
        source = replace(source, signer=signer)
        if is_report(raw):
            if trusted is not None:
                report = verify_report(raw, trusted)
                source = replace(source, key=trusted.hex(), holder=report.anchor, notes=report.faults)
            stated = read_report(payload).predicate
            return raw, report_paper(stated, source), report_tables(stated, source)
        if trusted is not None:
            verified = verify_bundle(raw, trusted)
            source = replace(source, key=trusted.hex(), holder=verified.anchor, notes=verified.notes())
        predicate = read_statement(payload).predicate
        return raw, proof_paper(predicate, source), bundle_tables(raw, predicate, source)
    except BundleError as error:
        raise CommandError(f"{path}: {error}", exit_code=ExitCode.BUNDLE_INVALID) from error
