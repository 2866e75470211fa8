"""`kvledger bridge --agent` beside an engine in a process of its own, which is killed."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from events.chain import sha256
from events.ids import Role
from kvledger.keyfile import key_path, ring_path, write_private
from tests.integration.hooks.test_bridge_process import confirmed
from tests.support.bridge_command import bridge
from tests.support.hook_log import DOMAINS, HookLog, until

PROMPT = [1] * 16 + [2] * 16 + [3]


@pytest.fixture
async def log(kafka: str, topic_prefix: str) -> AsyncIterator[HookLog]:
    async with HookLog(kafka, topic_prefix) as entered:
        yield entered


@pytest.fixture
def keys(home: Path) -> Path:
    """A home with the enrolment and the supervisor's key and the ring of `HookLog`."""
    for role in (Role.ENROLMENT, Role.SUPERVISOR):
        write_private(key_path(home, role), sha256(role.value.encode()).hex())
    domains = {domain: sha256(domain.encode()).hex() for domain in DOMAINS}
    write_private(ring_path(home), json.dumps({"domains": domains}))
    return home


class Engine:
    def __init__(self, process: asyncio.subprocess.Process, endpoint: str, replay: str) -> None:
        self.process = process
        self.endpoint = endpoint
        self.replay = replay

    async def complete(self, tokens: list[int]) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(tokens).encode() + b"\n")
        return int(await asyncio.wait_for(self.process.stdout.readline(), 20))


@asynccontextmanager
async def engine(path: Path) -> AsyncIterator[Engine]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.support.fake_core",
        str(path),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    endpoint, replay, has_agent = json.loads(await asyncio.wait_for(process.stdout.readline(), 30))
    assert has_agent
    try:
        yield Engine(process, endpoint, replay)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def options(one: Engine, path: Path) -> list[str]:
    where = ["--endpoint", one.endpoint, "--replay", one.replay, "--agent", str(path)]
    return ["--worker", "w0", "--model", "fake", *where]


async def test_a_killed_engines_end_is_attested_with_its_process_as_evidence(
    log: HookLog, keys: Path, tmp_path: Path
) -> None:
    path = tmp_path / "agent.sock"
    async with engine(path) as one, bridge(log, keys, *options(one, path)) as running:
        opened = await running.opened()
        assert (opened["basis"], opened["deletion"]) == ("engine", "evict_blocks")
        assert await one.complete(PROMPT) == 0
        async with asyncio.timeout(30):
            await confirmed(log)
        assert len(log.copies("w0")) == 2
        stream = log.registry.current["w0", 0]
        life = log.registry.registrations[stream].body.engine_life
        one.process.send_signal(signal.SIGKILL)
        await until(lambda: ("w0", life) in log.registry.exits)
        attested = log.registry.exits["w0", life]
        assert attested.attester == "kvledger-bridge"
        assert f"/{one.process.pid}/" in attested.evidence
        assert log.registry.ended(stream)
        await until(lambda: log.state(stream).engine_ended)
        # Nobody answers in its place, so nobody is registered there.
        assert log.registry.current["w0", 0] == stream


async def test_a_tenant_is_deleted_block_by_block_and_no_route_is_needed(
    log: HookLog, keys: Path, tmp_path: Path
) -> None:
    path = tmp_path / "agent.sock"
    async with engine(path) as one, bridge(log, keys, *options(one, path)) as running:
        await running.opened()
        assert await one.complete(PROMPT) == 0
        assert await one.complete(PROMPT) == 2
        number = await log.delete("default")
        await until(lambda: log.discharged("w0", "default", number))
        standing = log.standing("w0", "default", number)
        assert standing is not None
        assert standing.removed == 2
        assert await one.complete(PROMPT) == 0
