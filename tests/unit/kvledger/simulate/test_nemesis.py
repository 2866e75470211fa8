"""The schedule of a soak, clocks that are moved under a running process, and processes that are frozen."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
import typer

from kvledger.command.soak import seconds
from kvledger.simulate.nemesis import clock
from kvledger.simulate.nemesis.registry import process_faults
from kvledger.simulate.nemesis.schedule import schedule
from kvledger.simulate.nemesis.target import descendants, frozen
from kvledger.stack.process import identify

NAMES = tuple(process_faults())
CLOCK = """
import sys, time
for _ in sys.stdin:
    print(time.time(), time.time_ns(), flush=True)
"""


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def becomes(states: set[str], *pids: int) -> bool:
    """A signal takes a moment to have its effect."""
    ends_s = time.monotonic() + 30
    while time.monotonic() < ends_s:
        if {state_of(pid) for pid in pids} == states:
            return True
        time.sleep(0.01)
    return False


def test_every_fault_strikes_once_before_any_does_again() -> None:
    first = list(islice(schedule(NAMES, random.Random(3)), len(NAMES)))
    assert sorted(first) == sorted(NAMES)
    assert first != sorted(NAMES)


def test_a_seed_reproduces_the_schedule() -> None:
    runs = [list(islice(schedule(NAMES, random.Random(seed)), 200)) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_kills_are_struck_more_often_than_other_faults() -> None:
    struck = Counter(islice(schedule(NAMES, random.Random(1)), 2000))
    assert struck["kill-several"] > struck["stop-kafka"] > struck["index-loss"] > 0


def test_a_wall_clock_is_moved_and_moved_back_while_its_process_runs(tmp_path: Path) -> None:
    program = tmp_path / "kvledger"
    program.mkdir()
    (program / "__init__.py").touch()
    (program / "__main__.py").write_text(CLOCK)
    process = subprocess.Popen(
        [sys.executable, "-m", "kvledger", "serve"],
        cwd=tmp_path,
        env={**os.environ, **clock.environment(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    shown: list[tuple[float, float]] = []
    with process, process.stdin, process.stdout:
        for offset_s in (0, 3600, -3600, 0):
            clock.set_offset(tmp_path, "serve", offset_s)
            process.stdin.write("now\n")
            process.stdin.flush()
            seconds_s, nanoseconds = process.stdout.readline().split()
            shown.append((float(seconds_s), int(nanoseconds) / 1e9))
    for at, offset_s in zip(shown, (0, 3600, -3600, 0), strict=True):
        assert abs(at[0] - shown[0][0] - offset_s) < 60
        assert abs(at[0] - at[1]) < 1


def test_clocks_of_a_stack_that_was_started_without_them_stay(tmp_path: Path) -> None:
    with pytest.raises(clock.ClockFixedError, match="serve"):
        clock.set_offset(tmp_path, "serve", 1)


def test_a_frozen_process_stands_still_with_its_children_until_the_end() -> None:
    shell = subprocess.Popen(["sh", "-c", "sleep 60 & echo started; wait"], stdout=subprocess.PIPE)
    assert shell.stdout is not None
    with shell, shell.stdout:
        try:
            shell.stdout.readline()
            (child,) = descendants(shell.pid)
            one = identify(shell.pid)
            assert one is not None
            with frozen(one):
                assert becomes({"T"}, shell.pid, child)
            assert becomes({"S"}, shell.pid, child)
        finally:
            for pid in (*descendants(shell.pid), shell.pid):
                os.kill(pid, 9)


@pytest.mark.parametrize(("text", "length_s"), [("90", 90), ("1.5s", 1.5), ("30m", 1800), ("2h", 7200)])
def test_durations_as_people_write_them(text: str, length_s: float) -> None:
    assert seconds(text) == length_s


@pytest.mark.parametrize("text", ["", "0", "-1", "5d", "m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="no duration"):
        seconds(text)
