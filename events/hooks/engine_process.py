"""Which process an engine is, on both sides of the agent's socket: what names it, and a handle that no other
process with its number can pass for. Standard library only, as half of it runs in the engine's process."""

from __future__ import annotations

import contextlib
import os
import select
from pathlib import Path
from typing import Any

from events.hooks import agent_wire as wire

_PORT_DIGITS = 5


def process_facts() -> tuple[int, str, str]:
    """This process' id, start time in clock ticks and the machine's boot id; parts that are lacking are empty."""
    return os.getpid(), _started("self"), _boot()


def _boot() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _started(process: int | str) -> str:
    with contextlib.suppress(OSError, IndexError):
        # The command name is in parentheses and may hold anything; start time is field 22 of the line.
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


class EngineProcess:
    """A process that an agent named, held by a file descriptor, so that another one with its number can't pass
    for it."""

    def __init__(self, hello: wire.Hello, descriptor: int) -> None:
        self.name = name_of(hello)
        self._descriptor = descriptor
        self._ended = False

    def ended(self) -> bool:
        """Whether the process was seen to be gone; True for ever after. One that was let go of can't be seen."""
        if self._descriptor >= 0:
            watch = select.poll()
            watch.register(self._descriptor, select.POLLIN)
            if watch.poll(0):
                self._ended = True
                self.close()
        return self._ended

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of it. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def name_of(hello: wire.Hello) -> str:
    """What tells this process from every other one of all machines."""
    return f"{hello.boot}/{hello.pid}/{hello.started}"


def hold(hello: wire.Hello) -> EngineProcess | None:
    """The process itself, if it is one of this machine and namespace; else None: nobody here can attest its end."""
    boot = _boot()
    try:
        descriptor = os.pidfd_open(hello.pid)
    except (OSError, AttributeError, OverflowError):
        return None
    started = _started(hello.pid)
    if not boot or not started or (boot, started) != (hello.boot, hello.started):
        os.close(descriptor)
        return None
    return EngineProcess(hello, descriptor)


def port_of(endpoint: Any) -> int | None:
    """The port of a tcp address, whichever form its host has."""
    if not isinstance(endpoint, str) or not endpoint.startswith("tcp://"):
        return None
    port = endpoint.rpartition(":")[2]
    return int(port) if port.isascii() and port.isdigit() and len(port) <= _PORT_DIGITS else None
