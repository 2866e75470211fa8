"""`kvledger audit archive`: sealed segments kept outside Kafka, verified, so that proofs outlive its retention."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvledger.failure import CommandError, ExitCode
from kvledger.settings import load_settings
from kvledger.whole_file import write_whole
from kvledger.wording import counted

if TYPE_CHECKING:
    from auditor.archive.failure import ArchiveError
    from kvledger.archiving import ArchiveState

KEEP_DAYS, MOST_DAYS = 14.0, 36_500.0
SHOWN = 20


def archive(
    to: Annotated[str, typer.Option(help="a directory, or a URL of fsspec's such as s3://bucket/folder")],
    status: Annotated[bool, typer.Option("--status", help="write nothing, say how far it is")] = False,
    release: Annotated[
        bool,
        typer.Option(
            "--release", help="let Kafka drop what is archived, verified and older than --keep-days"
        ),
    ] = False,
    keep_days: Annotated[
        float, typer.Option(help="days that records stay in kv.events whether archived or not")
    ] = KEEP_DAYS,
    check: Annotated[
        bool, typer.Option("--check", help="check the archive by itself, without the log; needs --key")
    ] = False,
    key: Annotated[
        str | None, typer.Option(help="for --check: the operator's or auditor's public key, hex or a file")
    ] = None,
    log: Annotated[
        str | None, typer.Option(help="for --check: the log, if the archive holds several")
    ] = None,
    metrics: Annotated[
        Path | None, typer.Option(help="also write the state in Prometheus' text format to this file")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON document")] = False,
) -> None:
    """Write the sealed segments that the archive lacks, each verified by reading it back, and say how far it is.

    What no checkpoint has sealed yet is left for the next run: `kvledger audit checkpoint` seals. Needs no private
    key. A run may end at any point; the next one goes on. Records are released from kv.events only up to where the
    archive gives back what was sealed, and never from kv.control.

    Exit codes: 0 done, 1 something is not what was sealed, or Kafka's retention runs ahead of the archive
    (retention_ahead_of_archive), 64 wrong usage, 69 the log or the archive's place doesn't answer, 78 the archive is
    of another log or can't be read.

    Example: kvledger audit archive --to s3://bucket/kvledger --release
    """
    from auditor.archive.failure import ArchiveError

    if check and (status or release):
        raise _usage("--check goes with neither --status nor --release")
    if check != (key is not None) or (log is not None and not check):
        raise _usage("--check needs --key, and --key and --log go with --check alone")
    if not 0 <= keep_days <= MOST_DAYS:
        raise _usage(f"--keep-days takes 0 to {MOST_DAYS:.0f}")
    if status and release:
        raise _usage("--status writes nothing, --release does")
    try:
        if check:
            _check(to, key or "", log, as_json=as_json)
            return
        _archive(to, write=not status, release=release, keep_days=keep_days, metrics=metrics, as_json=as_json)
    except ArchiveError as error:
        raise refused(to, error) from error


def refused(url: str, error: ArchiveError) -> CommandError:
    """A command's failure for an archive that can't be used."""
    away = error.reason == "archive_unavailable"
    return CommandError(
        f"{url}: {error}",
        advice="see that it can be reached and written"
        if away
        else "name the archive that belongs to this log",
        exit_code=ExitCode.UNAVAILABLE if away else ExitCode.CONFIGURATION,
    )


def _archive(
    to: str, *, write: bool, release: bool, keep_days: float, metrics: Path | None, as_json: bool
) -> None:
    from kvledger.archiving import archive_log, metrics_of
    from kvledger.control import or_unavailable

    settings = load_settings()
    state = asyncio.run(
        or_unavailable(lambda: archive_log(settings, to, write=write, release=release, keep_days=keep_days))
    )
    if metrics is not None:
        write_whole(metrics, metrics_of(state).encode(), advice="--metrics FILE", exit_code=ExitCode.USAGE)
    if as_json:
        typer.echo(json.dumps(_document(state)))
    else:
        _print(state, write=write)
    if state.problems:
        raise CommandError(
            f"not what was sealed: {state.problems[0]}",
            advice="find out who changed it; nothing of it was archived or released",
        )
    ahead = [*state.lost, *state.dangers]
    if ahead:
        word = "was dropped before it was archived" if state.lost else ""
        raise CommandError(
            f"retention_ahead_of_archive: {ahead[0]} {word}".rstrip(),
            advice="archive more often, or set the topic's retention.ms to -1; --release lets Kafka drop kv.events",
        )


def _document(state: ArchiveState) -> dict[str, object]:
    rows = [{**dataclasses.asdict(one), "unarchived": one.unarchived} for one in state.extents]
    return {**dataclasses.asdict(state), "extents": rows}


def _print(state: ArchiveState, *, write: bool) -> None:
    if write:
        again = f", {state.adopted} taken over from an earlier run" if state.adopted else ""
        typer.echo(
            f"{counted(state.added, 'segment')} archived{again}; {state.kept} of {state.leaves} in all"
        )
    else:
        typer.echo(f"{state.kept} of {counted(state.leaves, 'sealed segment')} archived")
    for one in state.extents:
        name = f"{one.topic}/{one.partition}"
        span = (
            f"{one.archived_from} to {one.archived_to}" if one.archived_to > one.archived_from else "nothing"
        )
        typer.echo(
            f"  {name:16} archived {span}; the log holds {one.log_start} to {one.log_end},"
            f" {one.unarchived} of it only there"
        )
    for partition, at in sorted(state.released.items()):
        typer.echo(f"  kv.events/{partition} released below {at}")
    for line in [*state.problems, *state.lost][:SHOWN]:
        typer.echo(f"  ! {line}")


def _check(to: str, key: str, log: str | None, *, as_json: bool) -> None:
    from auditor.archive.check import check_archive
    from auditor.archive.failure import ArchiveError
    from auditor.archive.log_archive import LogArchive, logs_in
    from auditor.archive.store import FsspecStore
    from kvledger.command.proof_file import public_key_of

    trusted = public_key_of(key)
    store = FsspecStore(to)
    if log is None:
        logs = logs_in(store)
        if not logs:
            raise ArchiveError("archive_missing", "it holds no log")
        if len(logs) > 1:
            raise _usage(f"it holds several logs, name one with --log: {', '.join(logs[:SHOWN])}")
        log = logs[0]
    found = check_archive(LogArchive(store, log), trusted, lambda name: typer.echo(f"  {name}", err=True))
    runs = {f"{topic}/{partition}": spans for (topic, partition), spans in sorted(found.runs.items())}
    if as_json:
        typer.echo(json.dumps({**dataclasses.asdict(found), "runs": runs}))
    else:
        typer.echo(
            f"log {found.log}: {found.kept} of {counted(found.leaves, 'segment')}, {counted(found.records, 'record')}"
        )
        for name, spans in runs.items():
            typer.echo(f"  {name:16} " + ", ".join(f"{first} to {upto}" for first, upto in spans))
        for line in found.problems[:SHOWN]:
            typer.echo(f"  ! {line}")
    if found.problems:
        raise CommandError(found.problems[0], advice="restore it from another copy, or from the log")


def _usage(message: str) -> CommandError:
    return CommandError(message, advice="kvledger audit archive --help", exit_code=ExitCode.USAGE)
