"""`kvledger index rebuild`: the index again from the log's first record, compared and switched to."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvledger.command.migrate import configured_database
from kvledger.failure import CommandError, ExitCode
from kvledger.settings import Settings, load_settings
from kvledger.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from events.fold.registry import Registry
    from events.kafka.connection import KafkaConnection
    from events.kafka.control import ControlTail
    from events.keyring import KeyRing
    from indexer.rebuild import Comparison, Progress, RebuildReport

AUDIT_TIMEOUT_S = 20.0


def rebuild(
    accept: Annotated[
        bool, typer.Option("--accept", help="Switch although the digests differ; recorded in kv.audit.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Build the index again from the log's start, compare it with the one in force, and switch to it if equal.

    If they differ, prints where, keeps the old one and exits 1; --accept switches all the same. An empty
    database is filled. The indexer may run; interrupting leaves the old index in force.

    Example: kvledger index rebuild --json
    """
    settings, dsn = load_settings(), configured_database()
    with _shown() as progress:
        report = asyncio.run(run_rebuild(settings, dsn, accept=accept, progress=progress))
    document = report_json(report)
    if as_json:
        typer.echo(json.dumps(document))
    else:
        _print(report, document)
    if not report.switched:
        raise typer.Exit(ExitCode.FAILED)


async def run_rebuild(
    settings: Settings, dsn: str, *, accept: bool, progress: Callable[[Progress], None]
) -> RebuildReport:
    """The whole command but its output. Raises CommandError."""
    from events.fold.registry import Registry
    from events.kafka.control import ControlTail
    from events.signing import verify
    from kvledger.control import connection

    at = connection(settings)
    control = ControlTail(at, Registry(verify), monotonic_ns=time.monotonic_ns)
    try:
        return await _rebuild(settings, dsn, at, control, accept=accept, progress=progress)
    finally:
        await control.stop()


async def _rebuild(
    settings: Settings,
    dsn: str,
    at: KafkaConnection,
    control: ControlTail,
    *,
    accept: bool,
    progress: Callable[[Progress], None],
) -> RebuildReport:
    from events.kafka.connection import LogUnavailableError
    from events.kafka.partition_log import KafkaPartitionLog
    from events.topic import EVENTS
    from indexer.rebuild import Rebuild, RebuildError, read_refused
    from indexer.store import StoreRefusedError, StoreUnavailableError
    from kvledger.control import or_unavailable, require_log

    registry = control.registry
    await or_unavailable(control.catch_up)
    require_log(registry)
    refused = await or_unavailable(lambda: read_refused(at, at.topic(EVENTS)))

    async def accepted(comparison: Comparison) -> bool:
        if accept:
            await _record(settings, registry, comparison)
        return accept

    partition_log = KafkaPartitionLog(at)
    run = Rebuild(
        dsn,
        at,
        partition_log,
        registry,
        catch_up=control.catch_up,
        keyring=ring_of(settings),
        refused=refused,
        monotonic_s=time.monotonic,
        progress=progress,
    )
    try:
        return await run.run(accepted)
    except RebuildError as error:
        raise CommandError(str(error), advice="the index in force is as it was") from error
    except StoreRefusedError as error:
        raise CommandError(
            f"a record holds what the database can't ({error})",
            advice="start the indexer, which buries such a record, then rebuild again",
        ) from error
    except StoreUnavailableError as error:
        raise CommandError(
            str(error), advice="is the database up and migrated? `kvledger status`, `kvledger migrate`",
            exit_code=ExitCode.UNAVAILABLE,
        ) from error  # fmt: skip
    except LogUnavailableError as error:
        raise CommandError(
            str(error), advice="is Kafka up? `kvledger status`", exit_code=ExitCode.UNAVAILABLE
        ) from error
    finally:
        await partition_log.close()


def ring_of(settings: Settings) -> KeyRing:
    """The home's keys; an empty ring, which names no domain, where there are none."""
    from events.keyring import KeyRing
    from kvledger.keyfile import load_ring, ring_path

    return load_ring(settings.home) if ring_path(settings.home).exists() else KeyRing({})


async def _record(settings: Settings, registry: Registry, comparison: Comparison) -> None:
    """Written before the switch: an accepted difference is never without its record."""
    from auditor.log import append_audit
    from events.codec import dump
    from events.ids import Role
    from events.model.audit import AuditRecord, IndexAccepted, PartitionPosition
    from events.topic import EVENTS
    from kvledger.control import connection
    from kvledger.keyfile import load_signer

    signer = load_signer(settings.home, Role.AUDITOR)
    at = connection(settings)
    raw = dump(
        IndexAccepted(
            log=registry.log,
            before=bytes.fromhex(comparison.index or ""),
            after=bytes.fromhex(comparison.log),
            positions=tuple(
                PartitionPosition(topic=at.topic(EVENTS), partition=number, offset=offset)
                for number, offset in sorted(comparison.positions.items())
            ),
        )
    )
    record = AuditRecord(signer=signer.id, signature=signer.sign(raw), statement=raw)
    await append_audit(at, registry.log, [dump(record)], AUDIT_TIMEOUT_S)


@contextmanager
def _shown() -> Iterator[Callable[[Progress], None]]:
    """Progress with what is left of the time, on standard error; nothing where nobody looks."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    with Bar(
        TextColumn("{task.description:>10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        tasks: dict[str, Any] = {}

        def show(progress: Progress) -> None:
            if progress.phase not in tasks:
                tasks[progress.phase] = bar.add_task(progress.phase, total=max(1, progress.total))
            total = max(1, progress.total)
            done = progress.done if progress.total else 1
            bar.update(tasks[progress.phase], completed=done, total=total)

        yield show


def report_json(report: RebuildReport) -> dict[str, Any]:
    """What `--json` prints."""
    comparison = report.comparison
    return {
        "switched": report.switched,
        "equal": comparison.equal,
        "index": comparison.index,
        "log": comparison.log,
        "compared_at": comparison.positions,
        "uncompared": comparison.uncompared,
        "differences": comparison.differences.as_json(),
        "positions": report.positions,
        "log_starts": report.log_starts,
        "records": report.records,
        "block_operations": report.block_operations,
        "block_operations_per_s": round(report.block_operations / max(1e-9, report.total_s)),
        "fold_block_operations_per_s": round(report.block_operations / max(1e-9, report.fold_s)),
        "streams": report.streams,
        "copies": report.copies,
        "spans": report.spans,
        "dead_records": report.dead,
        "fold_s": round(report.fold_s, 3),
        "compare_s": round(report.compare_s, 3),
        "copy_s": round(report.copy_s, 3),
        "total_s": round(report.total_s, 3),
    }


def _print(report: RebuildReport, document: dict[str, Any]) -> None:
    comparison = report.comparison
    typer.echo(
        f"{counted(report.records, 'record')}, {counted(report.block_operations, 'block operation')} "
        f"in {report.total_s:.1f} s ({document['block_operations_per_s']} a second)"
    )
    for number, start in sorted(report.log_starts.items()):
        if start:
            typer.echo(f"partition {number}: the log's head is gone, it starts at {start}")
    reasons = {
        why: [n for n, w in comparison.uncompared.items() if w == why]
        for why in comparison.uncompared.values()
    }
    for why, numbers in reasons.items():
        typer.echo(f"nothing to compare with in partition {', '.join(map(str, sorted(numbers)))}: {why}")
    if comparison.equal is not None:
        typer.echo(f"index  {comparison.index}\nlog    {comparison.log}")
        typer.echo("equal" if comparison.equal else "DIFFERENT")
    found = comparison.differences
    for one in found.shown:
        typer.echo(f"  {one.stream} {one.what}: index {one.index or '-'}, log {one.log or '-'}")
    if found.streams or found.copies:
        in_streams, in_copies = counted(found.streams, "stream"), counted(found.copies, "copy", "copies")
        typer.echo(f"different: {in_streams}, {in_copies}; {len(found.shown)} shown")
    if report.switched:
        streams, copies = counted(report.streams, "stream"), counted(report.copies, "copy", "copies")
        typer.echo(f"switched: {streams}, {copies}, {report.spans} ended")
    else:
        typer.echo("not switched; `kvledger index rebuild --accept` does, and records it in kv.audit")
