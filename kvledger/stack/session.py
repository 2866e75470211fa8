"""What a command or a test does with a local stack: run one for a while, start one, look at it, end it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvledger.failure import ExitCode
from kvledger.settings import Settings
from kvledger.stack import process, supervisor
from kvledger.stack.failure import NotRunningError, ServiceFailedError, StackError
from kvledger.stack.plan import Extent
from kvledger.stack.state import Endpoints, Home, StackState
from kvledger.stack.supervisor import Report, Request

_GRACE_S = 15.0


Progress = Callable[[str], None]


def _silent(_: str) -> None:
    """Shows nothing."""


@contextmanager
def running_stack(
    settings: Settings, *, extent: Extent = Extent.ALL, progress: Progress = _silent
) -> Iterator[Endpoints]:
    """A stack that lives as long as the block, whatever ends the block or this process.

    Raises `StackError`s when it can't be started. Blocks while starting and stopping.
    """
    child = _spawn(settings, extent)
    try:
        yield _await_ready(child, Home(settings.home), progress)
    finally:
        _end(child, settings)


def start_detached(settings: Settings, *, progress: Progress = _silent) -> Endpoints:
    """Starts a stack that outlives this process; interrupted before it is ready, leaves nothing behind."""
    child = _spawn(settings, Extent.ALL)
    try:
        endpoints = _await_ready(child, Home(settings.home), progress)
        assert child.stdin is not None
        child.stdin.write(b"detach\n")
        child.stdin.flush()
    except BaseException:
        _end(child, settings)
        raise
    # It is not ours to wait for any more.
    child.returncode = 0
    return endpoints


def read_running(home: Home) -> StackState:
    """The state of the stack that runs in this home; raises `NotRunningError`."""
    state = home.read_state()
    if state is None or not state.supervisor.is_alive():
        raise NotRunningError(home.path)
    return state


def stop(settings: Settings) -> bool:
    """Stops the stack in this home and whatever an earlier one left; True if there was anything to stop."""
    home = Home(settings.home)
    state = home.read_state()
    if state is None:
        return False
    leftovers = [record.process for record in state.services if record.process is not None]
    was_running = state.supervisor.is_alive() or any(one.is_alive() for one in leftovers)
    process.end(state.supervisor, timeout_s=2 * settings.stop_timeout_s + _GRACE_S)
    supervisor.stop_leftovers(home)
    return was_running


def wipe(home: Home) -> bool:
    """Deletes all local state; True if there was any. Raises `StackError` while a stack runs there."""
    if not home.path.exists():
        return False
    here = Path.cwd()
    if home.path in (here, *here.parents, Path.home()):
        raise StackError(
            f"{home.path} is not a folder of kvledger's own and is left alone",
            advice="remove what is in it by hand",
            exit_code=ExitCode.CONFIGURATION,
        )
    if home.lock.exists():
        with supervisor.take_lock(home):
            shutil.rmtree(home.path)
    elif home.marker.exists() or not any(home.path.iterdir()):
        shutil.rmtree(home.path)
    else:
        raise StackError(
            f"{home.path} was not made by kvledger and is left alone", advice="remove it by hand"
        )
    return True


def _spawn(settings: Settings, extent: Extent) -> subprocess.Popen[bytes]:
    home = Home(settings.home)
    try:
        home.logs.mkdir(parents=True, exist_ok=True)
        log = home.log("supervisor").open("ab")
    except OSError as error:
        raise StackError(
            f"cannot write in {home.path}: {error.strerror}",
            advice="set KVLEDGER_HOME to a folder of yours",
            exit_code=ExitCode.CONFIGURATION,
        ) from error
    secret = settings.database_url
    request = Request(
        settings=settings.model_dump(mode="json", exclude={"database_url"}),
        database_url=secret.get_secret_value() if secret else None,
        extent=extent,
    )
    with log:
        child = subprocess.Popen(
            [sys.executable, "-m", "kvledger.stack.supervisor"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    assert child.stdin is not None
    with suppress(BrokenPipeError):
        child.stdin.write(request.model_dump_json().encode() + b"\n")
        child.stdin.flush()
    return child


def _await_ready(child: subprocess.Popen[bytes], home: Home, progress: Progress) -> Endpoints:
    assert child.stdout is not None
    for line in child.stdout:
        report = Report.model_validate_json(line)
        match report.kind:
            case "progress":
                progress(report.text)
            case "failed":
                raise StackError(report.text, advice=report.advice, exit_code=ExitCode(report.exit_code))
            case "ready":
                assert report.endpoints is not None
                return report.endpoints
    raise ServiceFailedError("the supervisor", reason="ended unexpectedly", log=home.log("supervisor"))


def _end(child: subprocess.Popen[bytes], settings: Settings) -> None:
    """Either of the two stops the supervisor; even a second Ctrl-C here leaves it stopping."""
    assert child.stdin is not None
    assert child.stdout is not None
    with suppress(BrokenPipeError):
        child.stdin.close()
    child.terminate()
    try:
        child.wait(timeout=2 * settings.stop_timeout_s + _GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        supervisor.stop_leftovers(Home(settings.home))
    finally:
        child.stdout.close()
