"""`kvledger audit index`: PostgreSQL against the auditor's own replay of the log, once or for ever."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvledger.command.migrate import configured_database
from kvledger.failure import CommandError, ExitCode
from kvledger.settings import Settings, load_settings
from kvledger.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from auditor.index_audit import IndexAudit
    from auditor.index_comparison import Round
    from auditor.index_watch import IndexWatch

HOST = "127.0.0.1"


def audit_index(
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on for ever, at low cost; figures at /metrics.")
    ] = False,
    partition: Annotated[
        list[int] | None,
        typer.Option(min=0, help="Only this partition of kv.events: bounds the memory; repeatable."),
    ] = None,
    every_s: Annotated[float, typer.Option(min=0.1, help="With --follow: seconds between rounds.")] = 5.0,
    share: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="With --follow: at most this part of the time is worked.")
    ] = 0.1,
    most_copies: Annotated[
        int, typer.Option(min=1, help="With --follow: copies compared in one round, in turns.")
    ] = 200_000,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="With --follow: of /metrics; default: audit_port.")
    ] = None,
    archive: Annotated[
        str | None, typer.Option(help="Where `audit archive` wrote: read there what Kafka has dropped.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare the index in PostgreSQL with the auditor's own replay of the log, at one position of both.

    Prints at most 20 differences of each kind, with what either side has and the record that last touched it, and
    counts all. Exit code 0 equal, 1 different, 2 if nothing differs but streams that began before the log does
    could not be compared, 69 if Kafka or PostgreSQL is away.

    Example: kvledger audit index --json
    """
    settings, dsn = load_settings(), configured_database()
    if follow:
        logging.basicConfig(
            level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
        )
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
        asyncio.run(
            watch_index(
                settings,
                dsn,
                partition or (),
                every_s=every_s,
                share=share,
                most_copies=most_copies,
                port=settings.audit_port if port is None else port,
                archive=archive,
            )
        )
        return
    found = asyncio.run(compare_index(settings, dsn, partition or (), archive))
    if as_json:
        typer.echo(json.dumps(report_json(found)))
    else:
        _print(found)
    if found.findings.total:
        raise typer.Exit(ExitCode.FAILED)
    if found.headless:
        raise typer.Exit(ExitCode.UNPROVABLE)


def make_audit(
    settings: Settings, dsn: str, partitions: list[int] | tuple[int, ...], archive: str | None = None
) -> IndexAudit:
    """An audit of the configured index, not yet open. `archive`: its URL. Raises CommandError if that is none."""
    from auditor.archive.failure import ArchiveError
    from auditor.archive.log_archive import LogArchive
    from auditor.archive.store import FsspecStore
    from auditor.index_audit import IndexAudit
    from events.signing import verify
    from kvledger.command.archive import refused
    from kvledger.command.rebuild import ring_of
    from kvledger.control import connection

    try:
        store = None if archive is None else FsspecStore(archive)
    except ArchiveError as error:
        raise refused(archive or "", error) from error
    return IndexAudit(
        dsn,
        connection(settings),
        verify,
        monotonic_s=time.monotonic,
        names=ring_of(settings).aliases,
        only=partitions,
        archive=None if store is None else partial(LogArchive, store),
    )


async def compare_index(
    settings: Settings, dsn: str, partitions: list[int] | tuple[int, ...] = (), archive: str | None = None
) -> Round:
    """One whole comparison. Raises CommandError."""
    from auditor.archive.failure import ArchiveError
    from auditor.index_audit import UnsettledError
    from auditor.index_replay import UnknownPartitionError
    from auditor.index_snapshot import IndexUnavailableError
    from kvledger.command.archive import refused
    from kvledger.control import or_unavailable

    audit = make_audit(settings, dsn, partitions, archive)
    try:
        if not await or_unavailable(audit.open):
            raise CommandError(
                "the log has no genesis record",
                advice="run `kvledger up` once",
                exit_code=ExitCode.CONFIGURATION,
            )
        return await or_unavailable(audit.round)
    except ArchiveError as error:
        raise refused(archive or "", error) from error
    except IndexUnavailableError as error:
        raise CommandError(
            str(error),
            advice="is the database up and migrated? `kvledger status`, `kvledger migrate`",
            exit_code=ExitCode.UNAVAILABLE,
        ) from error
    except UnsettledError as error:
        raise CommandError(str(error), advice="audit again when it has settled") from error
    except UnknownPartitionError as error:
        raise CommandError(str(error), exit_code=ExitCode.USAGE) from error
    finally:
        await audit.close()


async def watch_index(
    settings: Settings,
    dsn: str,
    partitions: list[int] | tuple[int, ...],
    *,
    every_s: float,
    share: float,
    most_copies: int,
    port: int,
    archive: str | None = None,
) -> None:
    """Compares until SIGTERM or SIGINT. Raises CommandError if the port of its figures is taken, or the archive can't
    be used."""
    from prometheus_client import CollectorRegistry, start_http_server

    from auditor.archive.failure import ArchiveError
    from auditor.index_watch import IndexWatch
    from kvledger.command.archive import refused

    audit = make_audit(settings, dsn, partitions, archive)
    watch = IndexWatch(
        audit, monotonic_s=time.monotonic, every_s=every_s, share=share, most_copies=most_copies
    )
    registry = CollectorRegistry(auto_describe=False)
    registry.register(WatchCollector(watch))
    try:
        server, _ = start_http_server(port, addr=HOST, registry=registry)
    except OSError as error:
        raise CommandError(
            f"port {port} is taken", advice="give --port", exit_code=ExitCode.UNAVAILABLE
        ) from error
    logging.getLogger(__name__).info("figures at http://%s:%d/metrics", HOST, server.server_port)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    work, stopped = asyncio.create_task(watch.run()), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
    except ArchiveError as error:
        raise refused(archive or "", error) from error
    finally:
        stopped.cancel()
        work.cancel()
        await asyncio.wait({work}, timeout=10)
        server.shutdown()
        server.server_close()


class WatchCollector:
    """What a watch counts, by Prometheus' conventions; never a tenant, domain or block."""

    def __init__(self, watch: IndexWatch) -> None:
        self._watch = watch

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        figures, now_s = self._watch.figures, time.monotonic()
        last = figures.last
        gauges = {
            "lag_seconds": ("Since the index was last compared with the log", figures.lag_s(now_s)),
            "oldest_seconds": (
                "Since the copies were compared that have waited longest",
                figures.oldest_s(now_s),
            ),
            "behind_records": (
                "Records that the index hadn't folded then",
                0 if last is None else last.behind,
            ),
            "headless_streams": (
                "Streams that began before the log does, and can't be compared",
                0 if last is None else sum(last.headless.values()),
            ),
            "held_copies": ("Copies in this process's memory", figures.held),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"kvledger_audit_index_{name}", text, value=float(value))
        found = GaugeMetricFamily(
            "kvledger_audit_index_findings", "Rows that differ from the log, as of now", labels=["kind"]
        )
        for kind, count in figures.findings().items():
            found.add_metric([kind.value], count)
        yield found
        counters = {
            "rounds": ("Comparisons finished", figures.rounds),
            "copies": ("Copies compared", figures.copies),
            "busy_seconds": ("Time spent comparing", figures.busy_s),
        }
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(f"kvledger_audit_index_{name}", text, value=float(value))
        failed = CounterMetricFamily(
            "kvledger_audit_index_failures", "Comparisons that could not be done", labels=["service"]
        )
        for service, count in figures.failures.items():
            failed.add_metric([service], count)
        yield failed


def report_json(found: Round) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "equal": not found.findings.total,
        "findings": found.findings.as_json(),
        "positions": found.positions,
        "headless_streams": found.headless,
        "behind": found.behind,
        "streams": found.streams,
        "copies": found.copies,
        "records": found.records,
        "unstorable": found.unstorable,
    }


def _print(found: Round) -> None:
    for one in found.findings.shown:
        typer.echo(str(one))
    for kind, count in found.findings.counts.items():
        typer.echo(f"{kind.value}: {count} differ")
    for topic, positions in found.positions.items():
        typer.echo(f"{topic} up to " + ", ".join(f"{number}@{at}" for number, at in positions.items()))
    for number, count in found.headless.items():
        typer.echo(
            f"partition {number}: {counted(count, 'stream')} not compared: the log no longer holds the beginning;"
            " --archive URL reads what Kafka has dropped"
        )
    if found.unstorable:
        passed = counted(found.unstorable, "record")
        typer.echo(f"{passed} passed by the index: more than PostgreSQL can hold")
    typer.echo(
        f"{counted(found.streams, 'stream')} and {counted(found.copies, 'copy', 'copies')} compared, "
        f"{counted(found.behind, 'record')} not indexed yet"
    )
    typer.echo("DIFFERENT" if found.findings.total else "equal")
