"""Keeps one program running: starts it, waits until it is ready, starts it again when it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from events.kafka.deadline import within
from kvledger.stack.failure import ServiceFailedError
from kvledger.stack.plan import Service
from kvledger.stack.process import identify
from kvledger.stack.state import ServiceRecord, ServiceState

_log = logging.getLogger(__name__)

_LAUNCHER = str(Path(__file__).with_name("launcher.py"))
_POLL_S = 0.15
_FIRST_BACKOFF_S = 0.25
_LAST_BACKOFF_S = 10.0
_STEADY_S = 30.0
_LOG_LIMIT_BYTES = 16 * 1024 * 1024


class Keeper:
    """One service's life. `record` is what is known about it now; `changed` is called after each change."""

    def __init__(
        self,
        service: Service,
        *,
        start_timeout_s: float,
        stop_timeout_s: float,
        changed: Callable[[], None],
    ) -> None:
        self.service = service
        self.record = ServiceRecord(
            name=service.name, state=ServiceState.WAITING, address=service.address, log=service.log
        )
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._changed = changed
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts the program, returns when it is ready and keeps it from then on.

        Raises `ServiceFailedError` when it ends first or takes too long; call `stop` all the same.
        """
        self._note(state=ServiceState.STARTING)
        await self._spawn()
        await self._until_ready()
        self._note(state=ServiceState.READY)
        self._task = asyncio.create_task(self._keep(), name=f"keep {self.service.name}")

    async def stop(self) -> None:
        """Ends the program in order, by force after the time-out; idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self._end()
        self._note(state=ServiceState.STOPPED, process=None)

    async def _keep(self) -> None:
        backoff_s = _FIRST_BACKOFF_S
        loop = asyncio.get_running_loop()
        ready_at_s = loop.time()
        while True:
            assert self._process is not None
            code = await self._process.wait()
            _kill_group(self._process.pid)
            if loop.time() - ready_at_s > _STEADY_S:
                backoff_s = _FIRST_BACKOFF_S
            _log.warning(
                "%s ended (%s), starts again in %.2f s", self.service.name, describe_exit(code), backoff_s
            )
            self._note(
                state=ServiceState.RESTARTING,
                process=None,
                restarts=self.record.restarts + 1,
                last_exit=describe_exit(code),
            )
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, _LAST_BACKOFF_S)
            await self._spawn()
            try:
                await self._until_ready()
            except ServiceFailedError as error:
                _log.warning("%s", error)
                await self._end()
            else:
                ready_at_s = loop.time()
                self._note(state=ServiceState.READY)

    async def _spawn(self) -> None:
        self._process = await spawn(
            self.service.command,
            log=self.service.log,
            folder=self.service.folder,
            environment=self.service.environment,
            run_as=self.service.run_as,
            death_signal=self.service.stop_signal,
        )
        self._note(process=identify(self._process.pid))

    async def _until_ready(self) -> None:
        assert self._process is not None
        try:
            async with asyncio.timeout(self._start_timeout_s):
                while True:
                    await asyncio.sleep(_POLL_S)
                    if self._process.returncode is not None:
                        reason = f"ended while starting ({describe_exit(self._process.returncode)})"
                        raise ServiceFailedError(self.service.name, reason=reason, log=self.service.log)
                    if await self.service.ready():
                        return
        except TimeoutError as error:
            reason = f"was not ready within {self._start_timeout_s:g} s"
            raise ServiceFailedError(self.service.name, reason=reason, log=self.service.log) from error

    async def _end(self) -> None:
        if self._process is not None:
            await end(self._process, stop_signal=self.service.stop_signal, timeout_s=self._stop_timeout_s)

    def _note(self, **changes: object) -> None:
        self.record = self.record.model_copy(update=changes)
        self._changed()


async def spawn(
    command: Sequence[str],
    *,
    log: Path,
    folder: Path,
    environment: dict[str, str],
    run_as: str | None = None,
    death_signal: int = signal.SIGTERM,
) -> asyncio.subprocess.Process:
    """Starts a program in a session of its own, its output appended to the log; it dies with this process."""
    with _open_log(log) as output:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            _LAUNCHER,
            str(os.getpid()),
            str(int(death_signal)),
            run_as or "-",
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=folder,
            env=environment,
        )


async def end(process: asyncio.subprocess.Process, *, stop_signal: int, timeout_s: float) -> None:
    """Asks a program to stop, kills it and whatever it started when it doesn't; idempotent."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.send_signal(stop_signal)
        try:
            await within(process.wait(), timeout_s)
        except TimeoutError:
            _log.warning("process %d did not stop within %g s and is killed", process.pid, timeout_s)
            _kill_group(process.pid)
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    _kill_group(process.pid)


async def run_once(
    command: Sequence[str],
    *,
    name: str,
    log: Path,
    folder: Path,
    environment: dict[str, str],
    timeout_s: float,
    run_as: str | None = None,
) -> None:
    """Runs a program to its end; raises `ServiceFailedError` with its last line. Cancelling kills it."""
    process = await spawn(command, log=log, folder=folder, environment=environment, run_as=run_as)
    try:
        code = await within(process.wait(), timeout_s)
    except TimeoutError as error:
        raise ServiceFailedError(name, reason=f"was not done within {timeout_s:g} s", log=log) from error
    finally:
        await end(process, stop_signal=signal.SIGKILL, timeout_s=5.0)
    if code != 0:
        raise ServiceFailedError(name, reason=f"failed: {last_line(log) or describe_exit(code)}", log=log)


def describe_exit(code: int) -> str:
    """An exit status in words: `exit code 1`, `signal 9`."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def last_line(log: Path) -> str:
    """The last line of a log that says anything, at most 300 characters of it."""
    with suppress(OSError):
        lines = [
            line.strip() for line in log.read_text(errors="replace")[-8192:].splitlines() if line.strip()
        ]
        return lines[-1][:300] if lines else ""
    return ""


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Asks again and again, with a pause; the caller sets the time-out."""
    while not await holds():  # noqa: ASYNC110 - another process' state gives no event
        await asyncio.sleep(_POLL_S)


def _open_log(log: Path) -> IO[bytes]:
    """Appends; a log that has grown too long is put aside first, and the one put aside before it goes."""
    if log.exists() and log.stat().st_size > _LOG_LIMIT_BYTES:
        log.replace(log.with_suffix(".log.1"))
    return log.open("ab")


def _kill_group(leader_pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader_pid, signal.SIGKILL)
