"""The real `kvledger bridge` in a process of its own, on a test's log."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from events.chain import sha256
from events.ids import Role
from kvledger.keyfile import key_path, ring_path, write_private
from tests.support.command import KVLEDGER, environment
from tests.support.hook_log import DOMAINS, HookLog


def bridge_home(home: Path) -> Path:
    """The home with the enrolment key and the ring of `HookLog`."""
    write_private(key_path(home, Role.ENROLMENT), sha256(Role.ENROLMENT.value.encode()).hex())
    domains = {domain: sha256(domain.encode()).hex() for domain in DOMAINS}
    write_private(ring_path(home), json.dumps({"domains": domains}))
    return home


def settings_of(log: HookLog) -> Mapping[str, str]:
    return {"KVLEDGER_KAFKA": log.bootstrap, "KVLEDGER_TOPIC_PREFIX": log.prefix}


class BridgeProcess:
    """A running `kvledger bridge --json`; `announced` are the documents that it has printed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.announced: list[dict[str, Any]] = []

    async def opened(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        while True:
            line = await asyncio.wait_for(self.process.stdout.readline(), 40)
            if not line:
                assert self.process.stderr is not None
                pytest.fail((await self.process.stderr.read()).decode())
            self.announced.append(json.loads(line))
            if self.announced[-1]["state"] == "open":
                return self.announced[-1]

    async def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.returncode is None:
            self.process.send_signal(number)
        _, complaints = await asyncio.wait_for(self.process.communicate(), 30)
        assert b"Traceback" not in complaints, complaints.decode()
        assert self.process.returncode is not None
        return self.process.returncode


@asynccontextmanager
async def bridge(log: HookLog, home: Path, *arguments: str) -> AsyncIterator[BridgeProcess]:
    process = await asyncio.create_subprocess_exec(
        *KVLEDGER,
        "bridge",
        "--json",
        *arguments,
        env=environment(home, **settings_of(log)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    running = BridgeProcess(process)
    try:
        yield running
    finally:
        await running.stop(signal.SIGKILL)
