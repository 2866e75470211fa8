"""Memory of processes and the load of the machine, once in some seconds."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

EVERY_S = 5.0
TICK_S = 0.05
LATE_S = 0.15


@dataclass(frozen=True, slots=True)
class Sample:
    """`rss_mib` by name of what was asked for; `busy` is the share of all processors' time."""

    at_s: float
    rss_mib: Mapping[str, float]
    busy: float


def rss_mib(pid: int) -> float:
    """Resident memory; 0 of a process that is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1_024
    return 0.0


class Machine:
    """`pids` names the processes of each thing that is looked at. `late` are moments at which this process, which
    sleeps nearly always, was woken later than 0.15 s after its time, and by how much: the machine stood still."""

    def __init__(self, pids: Mapping[str, Callable[[], list[int]]]) -> None:
        self.samples: list[Sample] = []
        self.late: list[tuple[float, float]] = []
        self._pids = dict(pids)
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._run, self._tick)]
        for thread in self._threads:
            thread.start()

    def watch(self, name: str, pids: Callable[[], list[int]]) -> None:
        """Looks at that, too, from now on."""
        self._pids = {**self._pids, name: pids}

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        before = _times()
        while not self._stopped.wait(EVERY_S):
            now = _times()
            passed = max(1, sum(now) - sum(before))
            idle = now[3] + now[4] - before[3] - before[4]
            before = now
            sizes = {name: sum(rss_mib(pid) for pid in found()) for name, found in self._pids.items()}
            self.samples.append(Sample(time.monotonic(), sizes, 1 - idle / passed))

    def _tick(self) -> None:
        while True:
            due_s = time.monotonic() + TICK_S
            if self._stopped.wait(TICK_S):
                return
            late_s = time.monotonic() - due_s
            if late_s > LATE_S:
                self.late.append((due_s, late_s))


def _times() -> list[int]:
    """Of all processors since the start: user, nice, system, idle, iowait, …"""
    return [int(one) for one in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
