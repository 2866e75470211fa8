"""Standstills of an engine, found from the ends of its steps and from who waited."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.live.steps import Step, joined, read_steps, standstills


def steps(*ended_s: float) -> list[Step]:
    return [Step(at_s, 0.0, 0.0) for at_s in ended_s]


def test_time_in_which_nobody_waits_is_no_standstill() -> None:
    found = list(standstills([(0.0, 1.0), (50.0, 51.0)], steps(0.5, 50.5)))

    assert found == [(0.0, 0.5), (0.5, 0.5), (50.0, 0.5), (50.5, 0.5)]


def test_requests_that_overlap_are_one_wait() -> None:
    found = list(standstills([(0.0, 2.0), (1.0, 4.0)], steps(1.0, 3.5)))

    assert max(length_s for _, length_s in found) == 2.5


def test_a_request_without_any_step_is_one_standstill() -> None:
    assert list(standstills([(1.0, 9.0)], steps(0.5, 9.5))) == [(1.0, 8.0)]


def test_spans_that_touch_are_joined() -> None:
    assert joined([(2.0, 3.0), (0.0, 1.0), (1.0, 1.5), (0.2, 0.4)]) == [(0.0, 1.5), (2.0, 3.0)]


def test_an_entry_that_is_being_written_waits(tmp_path: Path) -> None:
    file = tmp_path / "steps"
    whole = struct.pack("<ddd", 1.0, 0.5, 0.25)
    file.write_bytes(whole + struct.pack("<ddd", 2.0, 0.5, 0.0)[:10])

    assert read_steps(file) == [Step(1.0, 0.5, 0.25)]
    assert read_steps(file, 1) == []
