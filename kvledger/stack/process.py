"""A process named by pid *and* start time, so that a reused pid is never taken for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict

_POLL_S = 0.05


class ProcessId(BaseModel):
    """One life of one process on this machine; `started` is the system's own opaque stamp."""

    model_config = ConfigDict(frozen=True)

    pid: int
    started: str

    def is_alive(self) -> bool:
        """Whether this very process still runs (a zombie doesn't)."""
        return start_stamp(self.pid) == self.started


def identify(pid: int) -> ProcessId | None:
    """The process that has this pid now, None if there is none."""
    stamp = start_stamp(pid)
    return None if stamp is None else ProcessId(pid=pid, started=stamp)


def start_stamp(pid: int) -> str | None:
    """When the process started, in the system's own notation; None for a dead one."""
    if sys.platform == "linux":
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        # The second field is the name in brackets and may hold anything.
        field = stat.rpartition(")")[2].split()
        return None if field[0] in "ZX" else field[19]
    shown = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False, timeout=10
    ).stdout.strip()
    state, _, stamp = shown.partition(" ")
    return stamp.strip() if stamp and "Z" not in state else None


def end(process: ProcessId, *, stop_signal: int = signal.SIGTERM, timeout_s: float = 20.0) -> bool:
    """Asks the process to stop, kills its group when it doesn't in time; True if it went by itself.

    Idempotent: a process that is gone is left alone. Waits at most `timeout_s`, plus 5 s for a kill.
    """
    if not process.is_alive():
        return True
    with suppress(ProcessLookupError):
        os.kill(process.pid, stop_signal)
    if _gone_within(process, timeout_s):
        return True
    kill_group(process)
    _gone_within(process, 5.0)
    return False


def kill_group(process: ProcessId) -> None:
    """SIGKILL to the process and, if it leads a group, to all of the group."""
    if not process.is_alive():
        return
    with suppress(ProcessLookupError, PermissionError):
        if os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            os.kill(process.pid, signal.SIGKILL)


def _gone_within(process: ProcessId, timeout_s: float) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while process.is_alive():
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(_POLL_S)
    return True
