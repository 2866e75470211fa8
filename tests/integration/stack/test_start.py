"""What can go wrong at a start: each gives one line that says what to do, and nothing is left running."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from kvledger.stack import port
from kvledger.stack.plan import Extent
from kvledger.stack.session import running_stack
from kvledger.stack.state import Endpoints, Home, ServiceState
from tests.support.command import KVLEDGER, environment, failure, kvledger
from tests.support.process import processes_of, wait_until
from tests.support.stack import stack_settings


def up(home: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return kvledger("up", home=home, env=more)


def test_a_taken_port_is_named_with_its_holder_and_its_setting(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind((port.LOOPBACK, 0))
        taken.listen()
        number = taken.getsockname()[1]
        done = up(home, KVLEDGER_KAFKA_PORT=str(number))
    assert done.returncode == 69
    line = failure(done)
    assert f"port {number}, wanted by Kafka, is taken by " in line
    assert f"(process {os.getpid()})" in line
    assert "KVLEDGER_KAFKA_PORT" in line
    assert processes_of(home) == {}


def test_a_missing_network_at_the_first_fetch_is_explained(home: Path, tmp_path: Path) -> None:
    nowhere = f"http://{port.LOOPBACK}:9"
    done = up(
        home,
        HOME=str(tmp_path),
        XDG_CACHE_HOME=str(tmp_path / "cache"),
        HTTPS_PROXY=nowhere,
        https_proxy=nowhere,
        HTTP_PROXY=nowhere,
        http_proxy=nowhere,
    )
    assert done.returncode == 69
    line = failure(done)
    assert "could not fetch Kafka" in line
    assert "connect to a network" in line
    assert processes_of(home) == {}


def test_a_named_kafka_that_does_not_answer_is_explained(home: Path) -> None:
    done = up(home, KVLEDGER_KAFKA=f"{port.LOOPBACK}:9", KVLEDGER_START_TIMEOUT_S="1.5")
    assert done.returncode == 69
    line = failure(done)
    assert f"does not answer at {port.LOOPBACK}:9, which KVLEDGER_KAFKA names" in line
    assert "start it, or unset KVLEDGER_KAFKA" in line
    assert processes_of(home) == {}


def test_named_services_are_used_and_none_is_started(services: Endpoints, home: Path) -> None:
    settings = stack_settings(home, kafka=services.kafka, database_url=services.database_url)
    with running_stack(settings, extent=Extent.SERVICES) as at:
        assert (at.kafka, at.database_url) == (services.kafka, services.database_url)
        state = Home(home).read_state()
        assert state is not None
        assert {service.state for service in state.services} == {ServiceState.EXTERNAL}
        assert not (home / "kafka").exists()
        assert not (home / "postgres").exists()


@pytest.mark.parametrize("moment", ["starting postgres", "postgres is ready", "starting kafka"])
def test_an_interrupted_start_leaves_no_process(home: Path, moment: str) -> None:
    with subprocess.Popen(
        [*KVLEDGER, "up"], env=environment(home), stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as starting:
        assert starting.stderr is not None
        for line in starting.stderr:
            if line.strip() == moment:
                os.killpg(starting.pid, signal.SIGINT)
                break
        starting.stderr.read()
        assert starting.wait(timeout=60) == 130
    assert processes_of(home) == {}


def test_a_killed_command_leaves_no_process(home: Path) -> None:
    with subprocess.Popen(
        [*KVLEDGER, "up"], env=environment(home), stderr=subprocess.PIPE, text=True
    ) as starting:
        assert starting.stderr is not None
        for line in starting.stderr:
            if line.strip() == "starting kafka":
                starting.kill()
                break
    wait_until(lambda: not processes_of(home))
