"""A process is its pid and its start, and what an earlier stack left is ended, nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvledger.stack import process, supervisor
from kvledger.stack.process import ProcessId
from kvledger.stack.state import Endpoints, Home, Phase, ServiceRecord, ServiceState, StackState

STUBBORN = (
    "import signal,sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as child:
        yield child
        child.kill()


def identified(child: subprocess.Popen[bytes]) -> ProcessId:
    found = process.identify(child.pid)
    assert found is not None
    return found


def test_a_reused_pid_is_another_process(sleeper: subprocess.Popen[bytes]) -> None:
    now = identified(sleeper)
    assert now.is_alive()
    assert not now.model_copy(update={"started": "0"}).is_alive()


def test_a_finished_process_is_not_alive_though_nobody_has_waited(sleeper: subprocess.Popen[bytes]) -> None:
    now = identified(sleeper)
    assert process.end(now, timeout_s=5)
    assert not now.is_alive()
    assert process.end(now, timeout_s=5)


def test_a_process_that_does_not_stop_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, start_new_session=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert not process.end(identified(child), timeout_s=0.2)
        assert child.wait(timeout=5) == -signal.SIGKILL


def written(home: Path, process_id: ProcessId) -> Home:
    home.mkdir()
    own = process.identify(os.getpid())
    assert own is not None
    record = ServiceRecord(name="kafka", state=ServiceState.READY, process=process_id)
    state = StackState(phase=Phase.READY, supervisor=own, endpoints=Endpoints(home=home), services=(record,))
    Home(home).write_state(state)
    return Home(home)


def test_a_process_left_over_is_ended(home: Path, sleeper: subprocess.Popen[bytes]) -> None:
    supervisor.stop_leftovers(written(home, identified(sleeper)))
    assert sleeper.wait(timeout=5) == -signal.SIGTERM


def test_a_stranger_with_a_reused_pid_is_left_alone(home: Path, sleeper: subprocess.Popen[bytes]) -> None:
    supervisor.stop_leftovers(written(home, ProcessId(pid=sleeper.pid, started="0")))
    assert sleeper.poll() is None


def test_an_unreadable_state_is_no_state(home: Path) -> None:
    home.mkdir()
    Home(home).state.write_text("{")
    assert Home(home).read_state() is None
    supervisor.stop_leftovers(Home(home))


def test_the_state_is_for_its_owner_only(home: Path, sleeper: subprocess.Popen[bytes]) -> None:
    assert written(home, identified(sleeper)).state.stat().st_mode & 0o077 == 0
