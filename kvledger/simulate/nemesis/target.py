"""The processes of a running stack as targets: found by name, killed, frozen, seen to be back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from events.errors import KvledgerError
from kvledger.stack.process import ProcessId
from kvledger.stack.session import read_running
from kvledger.stack.state import Home, ServiceRecord, ServiceState

SERVICES = ("kafka", "postgres", "indexer", "serve", "controller")


class TargetMissingError(KvledgerError):
    """The stack runs no such process now; the caller waits until it is back, or strikes something else."""

    def __init__(self, service: str) -> None:
        super().__init__(f"the stack runs no {service} now")
        self.service = service


@dataclass(frozen=True, slots=True)
class Target:
    """One service of the stack that runs in `home`; its supervisor starts it again when it ends."""

    home: Path
    service: str

    def record(self) -> ServiceRecord:
        """As last written by the supervisor; raises TargetMissingError, NotRunningError."""
        for one in read_running(Home(self.home)).services:
            if one.name == self.service:
                return one
        raise TargetMissingError(self.service)

    def process(self) -> ProcessId:
        """The living process; raises TargetMissingError, NotRunningError."""
        found = self.record().process
        if found is None or not found.is_alive():
            raise TargetMissingError(self.service)
        return found

    def kill(self) -> ProcessId:
        """SIGKILL; returns the process that it was. Raises TargetMissingError."""
        found = self.process()
        try:
            os.kill(found.pid, signal.SIGKILL)
        except ProcessLookupError as error:
            raise TargetMissingError(self.service) from error
        return found

    def is_back(self, before: ProcessId) -> bool:
        """Whether another process than `before` runs and is ready."""
        now = self.record()
        return now.state is ServiceState.READY and now.process not in (None, before)

    @contextmanager
    def frozen(self) -> Iterator[ProcessId]:
        """SIGSTOP to the process and all that it started; SIGCONT to the same at the end of the block."""
        found = self.process()
        with frozen(found):
            yield found


@contextmanager
def frozen(process: ProcessId) -> Iterator[None]:
    """Stops a process and its descendants for the length of the block."""
    stopped: list[int] = []
    try:
        _signal(process.pid, signal.SIGSTOP)
        stopped.append(process.pid)
        # The parent stands still, so no child can be added that isn't seen.
        for child in descendants(process.pid):
            _signal(child, signal.SIGSTOP)
            stopped.append(child)
        yield
    finally:
        for pid in reversed(stopped):
            _signal(pid, signal.SIGCONT)


def descendants(pid: int) -> list[int]:
    """Processes that this one started, directly or not; empty where the system has no /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.parent.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
