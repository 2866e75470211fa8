"""The process that owns a local stack: starts everything, keeps it running, stops it again.

`python -m kvledger.stack.supervisor`. Its first line of input is a `Request`; it writes `Report`s, one
JSON object a line. It stops at SIGTERM, SIGINT or SIGHUP and when its input ends, which is how the
death of its parent shows; a line `detach` lets it live on without one.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import IO, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict

from kvledger.failure import ExitCode
from kvledger.settings import Settings
from kvledger.stack import kafka, plan, port, postgres, process
from kvledger.stack.archive import KAFKA_VERSION, is_complete
from kvledger.stack.failure import (
    AlreadyRunningError,
    DataVersionError,
    FetchError,
    ServiceFailedError,
    StackError,
)
from kvledger.stack.keeper import Keeper, run_once, until
from kvledger.stack.plan import Extent
from kvledger.stack.state import Endpoints, Home, Phase, ServiceRecord, ServiceState, StackState

_log = logging.getLogger(__name__)

_EXTERNAL_TIMEOUT_S = 15.0


class Request(BaseModel):
    """What the parent wants. `database_url` stands apart, for the settings never show their secrets."""

    model_config = ConfigDict(frozen=True)

    settings: dict[str, object]
    database_url: str | None
    extent: Extent


class Report(BaseModel):
    """What the supervisor tells its parent: any number of `progress`, then `ready` or `failed`."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["progress", "ready", "failed"]
    text: str = ""
    advice: str = ""
    exit_code: int = 0
    endpoints: Endpoints | None = None


class Supervisor:
    """One stack in one home."""

    def __init__(self, settings: Settings, extent: Extent, report: Callable[[Report], None]) -> None:
        self._settings = settings
        self._extent = extent
        self._report = report
        self._home = Home(settings.home)
        self._keepers: list[Keeper] = []
        self._external: list[ServiceRecord] = []
        self._endpoints = Endpoints(home=settings.home)
        self._phase = Phase.STARTING
        own = process.identify(os.getpid())
        assert own is not None
        self._own = own

    async def run(self, stop: asyncio.Event) -> int:
        """Starts the stack, reports, and keeps it until `stop` is set; returns the exit code."""
        with take_lock(self._home):
            stop_leftovers(self._home)
            start = asyncio.create_task(self._start())
            stopped = asyncio.create_task(stop.wait())
            try:
                await asyncio.wait({start, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if start.done():
                    start.result()
                    self._set_phase(Phase.READY)
                    self._report(Report(kind="ready", endpoints=self._endpoints))
                    await stopped
                return int(ExitCode.OK)
            finally:
                for task in (start, stopped):
                    task.cancel()
                await asyncio.wait({start, stopped})
                await self._stop()

    async def _start(self) -> None:
        check_format(self._home)
        plan.check_ports(self._settings, self._extent)
        await _all_of(self._start_kafka(), self._start_postgres())
        if self._extent is not Extent.SERVICES:
            self._progress("preparing keys, tables and topics")
            await run_once(
                (sys.executable, "-m", "kvledger.stack.step"),
                name="preparing",
                log=self._home.log("prepare"),
                folder=Path.cwd(),
                environment=plan.process_environment(self._settings, self._endpoints),
                timeout_s=self._settings.start_timeout_s,
            )
        if self._extent is Extent.ALL:
            chosen = port.choose(
                self._settings.lookup_port, service="the lookup service", setting="lookup_port"
            )
            self._point_to(lookup_url=f"http://{port.LOOPBACK}:{chosen}", lookup_port=chosen)
            services = [
                plan.process_service(name, self._settings, self._endpoints, self._home)
                for name in plan.PROCESSES
            ]
            if self._settings.audit_index:
                figures = port.choose(
                    self._settings.audit_port,
                    service="the auditor",
                    setting="audit_port",
                    avoid=frozenset({chosen}),
                )
                services.append(plan.auditor_service(self._settings, self._endpoints, self._home, figures))
            await _all_of(*(self._keep(service) for service in services))

    async def _start_kafka(self) -> None:
        given = self._settings.kafka
        if given is not None:
            await self._use("kafka", address=given, setting="kafka", ready=lambda: kafka.answers(given))
            self._point_to(kafka=given)
            return
        broker = plan.make_kafka(self._settings, self._home)
        broker.check_version()
        broker.prepare()
        if not is_complete(broker.archives):
            self._progress(f"fetching Kafka {KAFKA_VERSION} (once, about 130 MB)")
            try:
                await run_once(
                    broker.fetch_command(sys.executable),
                    name="fetch",
                    log=self._home.log("fetch"),
                    folder=broker.folder,
                    environment=dict(os.environ),
                    timeout_s=self._settings.fetch_timeout_s,
                )
            except ServiceFailedError as error:
                raise FetchError(
                    f"Kafka {KAFKA_VERSION}", cause=error.reason.removeprefix("failed: ")
                ) from error
        if not broker.is_formatted:
            await run_once(
                broker.format_command(),
                name="kafka",
                log=self._home.log("kafka"),
                folder=broker.folder,
                environment=plan.plain_environment(),
                timeout_s=self._settings.start_timeout_s,
            )
        self._point_to(kafka=broker.bootstrap)
        await self._keep(plan.kafka_service(broker, self._home))

    async def _start_postgres(self) -> None:
        given = self._settings.database_url
        if given is not None:
            url = given.get_secret_value()
            await self._use(
                "postgres",
                address=server_of(url),
                setting="database_url",
                ready=lambda: postgres.answers(url),
            )
            self._point_to(database_url=url)
            return
        server = plan.make_postgres(self._settings, self._home)
        server.check_version()
        server.prepare()
        if not server.is_initialized:
            await run_once(
                server.initialize_command(),
                name="postgres",
                log=self._home.log("postgres"),
                folder=server.folder,
                environment=plan.plain_environment(),
                timeout_s=self._settings.start_timeout_s,
                run_as=server.run_as,
            )
            server.mark_initialized()
        self._point_to(database_url=server.url())
        await self._keep(plan.postgres_service(server, self._home))
        await postgres.ensure_database(server.url("postgres"), postgres.DATABASE)

    async def _keep(self, service: plan.Service) -> None:
        keeper = Keeper(
            service,
            start_timeout_s=self._settings.start_timeout_s,
            stop_timeout_s=self._settings.stop_timeout_s,
            changed=self._write,
        )
        self._keepers.append(keeper)
        self._progress(f"starting {service.name}")
        await keeper.start()
        self._progress(f"{service.name} is ready")

    async def _use(
        self, name: str, *, address: str, setting: str, ready: Callable[[], Awaitable[bool]]
    ) -> None:
        """Waits for a service that somebody else runs."""
        record = ServiceRecord(name=name, state=ServiceState.EXTERNAL, address=address)
        try:
            async with asyncio.timeout(min(_EXTERNAL_TIMEOUT_S, self._settings.start_timeout_s)):
                await until(ready)
        except TimeoutError as error:
            variable = f"KVLEDGER_{setting.upper()}"
            raise ServiceFailedError(
                name,
                reason=f"does not answer at {address}, which {variable} names",
                advice=f"start it, or unset {variable} (in kvledger.toml: {setting}) and `kvledger up` starts one",
            ) from error
        self._external.append(record)
        self._progress(f"{name} is ready (not ours)")

    async def _stop(self) -> None:
        self._set_phase(Phase.STOPPING)
        own = [keeper for keeper in self._keepers if keeper.service.name in (*plan.PROCESSES, plan.AUDITOR)]
        for group in (own, [keeper for keeper in self._keepers if keeper not in own]):
            await asyncio.gather(*(keeper.stop() for keeper in group))
        self._set_phase(Phase.STOPPED)

    def _point_to(self, **addresses: object) -> None:
        self._endpoints = self._endpoints.model_copy(update=addresses)

    def _progress(self, text: str) -> None:
        _log.info("%s", text)
        self._report(Report(kind="progress", text=text))

    def _set_phase(self, phase: Phase) -> None:
        self._phase = phase
        self._write()

    def _write(self) -> None:
        self._home.write_state(
            StackState(
                phase=self._phase,
                supervisor=self._own,
                endpoints=self._endpoints,
                services=(*self._external, *(keeper.record for keeper in self._keepers)),
            )
        )


async def _all_of(*works: Coroutine[None, None, None]) -> None:
    """Runs them beside each other; the first failure cancels the others and is raised alone."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def server_of(url: str) -> str:
    """Host and port of a database's URL, without the credentials."""
    return urlsplit(url).netloc.rpartition("@")[2] or "a local socket"


def take_lock(home: Home) -> IO[str]:
    """Holds the home until the file is closed or this process ends; raises `AlreadyRunningError`."""
    file = home.lock.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.seek(0)
        pid = file.read().strip()
        file.close()
        raise AlreadyRunningError(home.path, pid=int(pid) if pid.isdigit() else None) from error
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file


def stop_leftovers(home: Home) -> None:
    """Ends what an earlier supervisor, killed before it could, left running. Needs the lock."""
    state = home.read_state()
    for record in reversed(state.services if state else ()):
        if record.process is not None and record.process.is_alive():
            _log.warning(
                "stopping %s, left over by an earlier run (process %d)", record.name, record.process.pid
            )
            is_postgres = record.name == "postgres"
            process.end(record.process, stop_signal=signal.SIGINT if is_postgres else signal.SIGTERM)


def check_format(home: Home) -> None:
    """Marks a new home; raises `DataVersionError` for one of another layout."""
    if not home.marker.is_file():
        home.marker.write_text(f"{Home.FORMAT}\n")
    found = home.marker.read_text().strip()
    if found != Home.FORMAT:
        raise DataVersionError(home.path, found=f"layout {found}", wanted=f"layout {Home.FORMAT}")


def _write_report(report: Report) -> None:
    with suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), report.model_dump_json().encode() + b"\n")


async def _follow_parent(reader: asyncio.StreamReader, stop: asyncio.Event) -> None:
    while line := await reader.readline():
        if line.strip() == b"detach":
            return
    stop.set()


async def main() -> int:
    """Reads the request, runs the stack, returns the exit code."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    if not (line := await reader.readline()):
        return int(ExitCode.INTERRUPTED)
    request = Request.model_validate_json(line)
    settings = Settings.model_validate({**request.settings, "database_url": request.database_url})
    parent = asyncio.create_task(_follow_parent(reader, stop))
    try:
        return await Supervisor(settings, request.extent, _write_report).run(stop)
    except StackError as error:
        _log.error("%s", error)
        _write_report(
            Report(kind="failed", text=error.message, advice=error.advice, exit_code=int(error.exit_code))
        )
        return int(error.exit_code)
    finally:
        parent.cancel()


if __name__ == "__main__":
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr
    )
    sys.exit(asyncio.run(main()))
