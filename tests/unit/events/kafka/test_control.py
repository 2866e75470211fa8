"""When a control record says that it was written."""

from __future__ import annotations

from events.kafka.control import Rising


def test_a_clock_that_stands_or_runs_backwards_never_dates_two_records_alike() -> None:
    read = iter((5, 5, 3, 9, 9))
    clock = Rising(lambda: next(read))
    assert [clock() for _ in range(5)] == [5, 6, 7, 9, 10]
