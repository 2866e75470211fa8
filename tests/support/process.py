"""Which processes of this machine belong to a stack's home, seen from outside."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

_LISTEN = "0A"


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


def is_running(pid: int) -> bool:
    """Whether there is such a process; a dead one that nobody has waited for yet isn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def listeners_of(pids: Iterable[int]) -> list[IPv4Address | IPv6Address]:
    """Local address of every TCP socket on which one of the processes waits for connections."""
    own: set[str] = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                own.add(os.readlink(descriptor))
            except OSError:
                continue
    found: list[IPv4Address | IPv6Address] = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTEN and f"socket:[{fields[9]}]" in own:
                found.append(_address(fields[1].partition(":")[0]))
    return found


def _address(packed: str) -> IPv4Address | IPv6Address:
    """The kernel prints an address as 32-bit words in the host's order."""
    words = [bytes.fromhex(packed[at : at + 8])[::-1] for at in range(0, len(packed), 8)]
    address = ip_address(b"".join(words))
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def wait_until(holds: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
    """Waits for a condition; raises AssertionError when it doesn't come."""
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, f"nothing within {timeout_s:g} s"
        time.sleep(0.05)
