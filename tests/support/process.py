"""Which processes of this machine belong to a stack's home, seen from outside."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


def processes_of(home: Path) -> dict[int, str]:
    """pid to command of every process that names the home in its command line, folder or environment."""
    mark = os.fsencode(home)
    found: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        if int(folder.name) == os.getpid():
            continue
        try:
            command = (folder / "cmdline").read_bytes()
            seen = command + (folder / "environ").read_bytes() + os.fsencode(os.readlink(folder / "cwd"))
        except OSError:
            continue
        if mark in seen:
            found[int(folder.name)] = command.replace(b"\0", b" ").decode(errors="replace")[:200]
    return found


def wait_until(holds: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
    """Waits for a condition; raises AssertionError when it doesn't come."""
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, f"nothing within {timeout_s:g} s"
        time.sleep(0.05)
