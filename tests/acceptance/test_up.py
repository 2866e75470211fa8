"""`kvledger up` as a person uses it: everything starts, is found, comes back when killed, and goes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.support.command import KVLEDGER, environment, failure, kvledger
from tests.support.process import listeners_of, processes_of, wait_until


@pytest.fixture(scope="module")
def up_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of a stack that `kvledger up` started and that is gone after the module's tests."""
    home = tmp_path_factory.mktemp("up") / "home"
    done = kvledger("up", "--json", home=home, env={"KVLEDGER_AUDIT_INDEX": "1"})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ready"]
    yield home
    done = kvledger("down", "--wipe", home=home)
    assert done.returncode == 0, done.stderr
    assert processes_of(home) == {}
    assert not home.exists()


def status(home: Path) -> dict[str, Any]:
    return dict(json.loads(kvledger("status", "--json", home=home).stdout))


def test_everything_is_ready_and_outlives_the_command(up_home: Path) -> None:
    seen = status(up_home)
    assert seen["ready"]
    assert {service["name"]: service["state"] for service in seen["services"]} == dict.fromkeys(
        ("kafka", "postgres", "indexer", "serve", "controller", "auditor"), "ready"
    )
    with urlopen(f"{seen['lookup_url']}/readyz", timeout=10) as answer:
        assert answer.status == 200


def test_the_databases_password_is_shown_on_request_only(up_home: Path) -> None:
    assert ":***@" in status(up_home)["database_url"]
    revealed = kvledger("status", "--reveal", home=up_home)
    assert ":***@" not in revealed.stdout


def test_a_second_up_says_that_one_runs(up_home: Path) -> None:
    assert "a stack already runs" in failure(kvledger("up", home=up_home))
    assert status(up_home)["ready"]


def test_nothing_of_it_listens_beyond_loopback(up_home: Path) -> None:
    heard = listeners_of(processes_of(up_home))
    assert len(heard) >= 4
    assert {address for address in heard if not address.is_loopback} == set()


def test_up_did_not_have_to_be_told_twice(up_home: Path) -> None:
    assert kvledger("topics", "check", home=up_home).returncode == 0
    assert kvledger("migrate", home=up_home).returncode == 0


@pytest.mark.parametrize("name", ["indexer", "serve", "controller", "auditor"])
def test_a_killed_process_comes_back(up_home: Path, name: str) -> None:
    def seen() -> dict[str, Any]:
        return next(dict(service) for service in status(up_home)["services"] if service["name"] == name)

    before = seen()
    os.kill(before["pid"], signal.SIGKILL)
    wait_until(lambda: seen()["restarts"] > before["restarts"] and status(up_home)["ready"])


def test_logs_show_every_service(up_home: Path) -> None:
    shown = kvledger("logs", "-n", "1", home=up_home).stdout
    assert "supervisor" in shown


def test_ctrl_c_ends_a_stack_in_the_foreground(home: Path) -> None:
    with subprocess.Popen(
        [*KVLEDGER, "up", "--foreground", "--json"],
        env=environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as running:
        assert running.stdout is not None
        assert json.loads(running.stdout.readline())["ready"]
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=60) == 130
    assert processes_of(home) == {}
