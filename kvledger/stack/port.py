"""Loopback ports: whether one is free, who holds it, and how to find a free one."""

from __future__ import annotations

import os
import random
import socket
from contextlib import suppress
from pathlib import Path

from kvledger.stack.failure import PortTakenError, StackError

LOOPBACK = "127.0.0.1"
# Below the range that systems give to outgoing connections, so that none of those can take it first.
_FREE_RANGE = range(20000, 32000)
_LISTEN = "0A"


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def choose(port: int, *, service: str, setting: str, avoid: frozenset[int] = frozenset()) -> int:
    """The port itself if it is free, any free one for 0; raises `PortTakenError` otherwise."""
    if port != 0:
        if not is_free(port):
            raise PortTakenError(port, service=service, setting=setting, holder=holder(port))
        return port
    for candidate in random.sample(_FREE_RANGE, k=200):
        if candidate not in avoid and is_free(candidate):
            return candidate
    raise StackError("found no free port", advice=f"set KVLEDGER_{setting.upper()}")


def holder(port: int) -> str | None:
    """Name and pid of the process that listens on the port, where the system tells."""
    inodes = _listening_inodes(port)
    if not inodes:
        return None
    for folder in Path("/proc").glob("[0-9]*"):
        if any(_target(entry) in inodes for entry in _entries(folder / "fd")):
            with suppress(OSError):
                return f"{(folder / 'comm').read_text().strip()} (process {folder.name})"
    return None


def _entries(folder: Path) -> list[Path]:
    """What is in the folder; nothing of one that is closed to us or gone."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _target(link: Path) -> str:
    """What the link leads to, empty if it went in the meantime."""
    try:
        return os.readlink(link)
    except OSError:
        return ""


def _listening_inodes(port: int) -> set[str]:
    inodes: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            field = line.split()
            if field[3] == _LISTEN and int(field[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{field[9]}]")
    return inodes
