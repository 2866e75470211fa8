"""The real `kvledger attach --json` in a process of its own, beside a fake engine and a real log."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from events.chain import sha256
from events.ids import Role
from kvledger.keyfile import key_path, ring_path, write_private
from tests.support.command import KVLEDGER, environment
from tests.support.hook_log import DOMAINS, HookLog

Document = dict[str, Any]
WAIT_S = 60.0


def make_keys(home: Path) -> Path:
    """A home with the keys and the ring of `HookLog`."""
    for role in (Role.ENROLMENT, Role.CONTROL):
        write_private(key_path(home, role), sha256(role.value.encode()).hex())
    domains = {domain: sha256(domain.encode()).hex() for domain in DOMAINS}
    write_private(ring_path(home), json.dumps({"domains": domains}))
    return home


def settings_of(log: HookLog) -> dict[str, str]:
    """What a command needs to find the log."""
    return {"KVLEDGER_KAFKA": log.bootstrap, "KVLEDGER_TOPIC_PREFIX": log.prefix}


class Attached:
    """A running command; `documents` are those that it has printed and that somebody waited past."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.documents: list[Document] = []

    async def until(self, holds: Callable[[Document], bool]) -> Document:
        """The next document for which it holds; fails when the command ends, or after a minute."""
        assert self.process.stdout is not None
        async with asyncio.timeout(WAIT_S):
            while True:
                line = await self.process.stdout.readline()
                if not line:
                    assert self.process.stderr is not None
                    raise AssertionError((await self.process.stderr.read()).decode())
                self.documents.append(json.loads(line))
                if holds(self.documents[-1]):
                    return self.documents[-1]

    async def opened(self, rank: int = 0) -> Document:
        return await self.until(lambda one: one["state"] == "open" and one["rank"] == rank)

    async def stop(self, number: int = signal.SIGTERM) -> int:
        """Its exit code; there was no traceback."""
        if self.process.returncode is None:
            self.process.send_signal(number)
        async with asyncio.timeout(WAIT_S):
            _, complaints = await self.process.communicate()
        assert b"Traceback" not in complaints, complaints.decode()
        assert self.process.returncode is not None
        return self.process.returncode


@asynccontextmanager
async def attached(log: HookLog, home: Path, url: str, *more: str) -> AsyncIterator[Attached]:
    process = await asyncio.create_subprocess_exec(
        *KVLEDGER,
        "attach",
        url,
        "--json",
        *more,
        env=environment(home, **settings_of(log)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    running = Attached(process)
    try:
        yield running
    finally:
        await running.stop(signal.SIGKILL)
