"""A kept program comes back when it ends and is gone when it is stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from kvledger.stack.failure import ServiceFailedError
from kvledger.stack.keeper import Keeper, describe_exit, last_line, run_once
from kvledger.stack.plan import Service, plain_environment
from kvledger.stack.state import ServiceState
from tests.support.process import is_running


def service(folder: Path, code: str, **more: object) -> Service:
    return Service(
        name="program",
        address="",
        command=(sys.executable, "-c", code),
        folder=folder,
        log=folder / "program.log",
        environment=plain_environment(),
        **more,  # type: ignore[arg-type]
    )


def keeper(kept: Service, changes: list[ServiceState], *, start_timeout_s: float = 10.0) -> Keeper:
    made: list[Keeper] = []
    made.append(
        Keeper(
            kept,
            start_timeout_s=start_timeout_s,
            stop_timeout_s=0.5,
            changed=lambda: changes.append(made[0].record.state),
        )
    )
    return made[0]


async def reached(kept: Keeper, state: ServiceState, *, restarts: int) -> None:
    async with asyncio.timeout(20):
        while (kept.record.state, kept.record.restarts) != (state, restarts):
            await asyncio.sleep(0.02)


async def test_a_killed_program_comes_back(tmp_path: Path) -> None:
    changes: list[ServiceState] = []
    kept = keeper(service(tmp_path, "import signal; signal.pause()"), changes)
    await kept.start()
    first = kept.record.process
    assert first is not None
    os.kill(first.pid, signal.SIGKILL)
    await reached(kept, ServiceState.READY, restarts=1)
    assert kept.record.last_exit == "signal 9"
    assert kept.record.process != first
    await kept.stop()
    assert kept.record.process is None
    assert not first.is_alive()
    assert list(dict.fromkeys(changes)) == [
        ServiceState.STARTING,
        ServiceState.READY,
        ServiceState.RESTARTING,
        ServiceState.STOPPED,
    ]


async def test_a_program_that_ends_while_starting_is_reported(tmp_path: Path) -> None:
    async def never() -> bool:
        return False

    kept = keeper(service(tmp_path, "raise SystemExit(3)", ready=never), [])
    with pytest.raises(ServiceFailedError, match=r"ended while starting \(exit code 3\)"):
        await kept.start()
    await kept.stop()


async def test_a_program_that_never_gets_ready_is_reported_and_stopped(tmp_path: Path) -> None:
    async def never() -> bool:
        return False

    kept = keeper(service(tmp_path, "import signal; signal.pause()", ready=never), [], start_timeout_s=0.5)
    with pytest.raises(ServiceFailedError, match=r"was not ready within 0\.5 s"):
        await kept.start()
    process = kept.record.process
    assert process is not None
    await kept.stop()
    assert not process.is_alive()


async def test_what_a_program_started_goes_with_it(tmp_path: Path) -> None:
    code = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True); input()"
    with pytest.raises(ServiceFailedError):
        await run_once(
            (sys.executable, "-c", code),
            name="parent",
            log=tmp_path / "parent.log",
            folder=tmp_path,
            environment=plain_environment(),
            timeout_s=10,
        )
    child = int((tmp_path / "parent.log").read_text().split()[0])
    async with asyncio.timeout(10):
        while is_running(child):
            await asyncio.sleep(0.02)


async def test_the_reason_of_a_failed_program_is_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(ServiceFailedError, match="step failed: no such table"):
        await run_once(
            (sys.executable, "-c", "import sys; sys.exit('one\\nno such table')"),
            name="step",
            log=tmp_path / "step.log",
            folder=tmp_path,
            environment=plain_environment(),
            timeout_s=10,
        )


def test_an_exit_is_described_in_words(tmp_path: Path) -> None:
    assert describe_exit(-9) == "signal 9"
    assert describe_exit(2) == "exit code 2"
    assert last_line(tmp_path / "absent") == ""
