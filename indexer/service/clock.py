"""The service's clocks: the only place where it reads one."""

from __future__ import annotations

import time

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


def monotonic_ns() -> int:
    """Never goes back, and counts suspended time where the system has such a clock: a reader that slept
    knows that its view did not."""
    return time.monotonic_ns() if _BOOTTIME is None else time.clock_gettime_ns(_BOOTTIME)


def wall_ms() -> int:
    """For people and for records; nothing is decided by it."""
    return time.time_ns() // 1_000_000
