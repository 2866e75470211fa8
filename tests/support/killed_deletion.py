"""A deletion on a real log in which whoever acts is killed at a step, begins again, and an audit then judges."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import httpx

from events.ids import VerdictKind
from kvledger.command.audit import audit_requests
from kvledger.control import connection, read_registry
from kvledger.settings import Settings
from tests.support.command import KVLEDGER, environment
from tests.support.dying import KILLED
from tests.support.fake_engine import FakeEngine
from tests.support.live_log import until
from tests.support.replica import ready, replica
from tests.support.simulation import folded

REPLICA_STEPS = ("before kv.control deletion_requested", "after kv.control deletion_requested")
BRIDGE_STEPS = (
    "before reset",
    'before kv.events "type":"cleared"',
    'after kv.events "type":"cleared"',
    'before kv.events "old_left":0',
    'after kv.events "old_left":0',
    'before kv.events "nonce":[0-9]',
    'after kv.events "nonce":[0-9]',
)
AUDITOR_STEPS = (
    "before kv.control audit_nonce",
    "after kv.control audit_nonce",
    "before kv.audit segments_sealed",
    "after kv.audit segments_sealed",
    "before kv.audit checkpoint_signed",
    "after kv.audit checkpoint_signed",
    'before kv.audit "type":"verdict"',
    'after kv.audit "type":"verdict"',
    'before kv.audit "type":"checkpoint"',
    'after kv.audit "type":"checkpoint"',
)
KEY = "key-1"
ORDER = {"scope": {"type": "domain", "domain": "default"}, "reason": "contract ended"}
LONG_S = 120.0


class Acting:
    """A process that acts; one with a `step` is killed there."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def begin(cls, settings: Settings, *arguments: str, step: str | None = None) -> Acting:
        command = KVLEDGER if step is None else (sys.executable, "-m", "tests.support.dying", step)
        where = {"KVLEDGER_KAFKA": settings.kafka or "", "KVLEDGER_TOPIC_PREFIX": settings.topic_prefix}
        return cls(
            await asyncio.create_subprocess_exec(
                *command,
                *arguments,
                env=environment(settings.home, **where),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        )

    async def line(self) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(LONG_S):
            return (await self.process.stdout.readline()).decode()

    async def dead(self) -> None:
        """Waits until it has been killed at its step."""
        async with asyncio.timeout(LONG_S):
            await self.process.communicate()
        assert self.process.returncode == KILLED, f"it ended by itself with {self.process.returncode}"

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        await self.process.communicate()


@dataclass
class KilledDeletion:
    """One engine, its bridge, and what is asked and judged about them."""

    settings: Settings
    engine: FakeEngine
    acting: list[Acting] = field(default_factory=list)

    async def bridge(self, step: str | None = None) -> Acting:
        """A bridge whose stream is open."""
        where = ("--endpoint", self.engine.endpoint, "--replay", self.engine.replay_endpoint)
        made = await self._begin(
            "bridge",
            "--json",
            *("--worker", "w0", "--model", "fake", "--engine-url", self.engine.http_url),
            *where,
            step=step,
        )
        line = await made.line()
        while json.loads(line)["state"] != "open":
            line = await made.line()
        return made

    async def fill(self, *seeds: int) -> None:
        """Prompts whose blocks the engine keeps; waits until the log has them."""
        for seed in seeds:
            await self.engine.complete([seed] * 32)
        await until(self._told, timeout_s=LONG_S)

    async def _told(self) -> bool:
        states = await folded(self.settings)
        return any(state.copy_count() == self.old() for state in states.values())

    async def order(self, step: str | None = None) -> int:
        """The request's number, asked for at a replica that is killed at the step, then at others until one has
        answered twice alike."""
        if step is not None:
            dying = await self._begin("replica", step=step)
            url = f"http://127.0.0.1:{(await dying.line()).split()[1]}"
            await ready(url)
            with contextlib.suppress(httpx.TransportError):
                answer = await _order(url)
                raise AssertionError(f"a replica that is killed answers {answer.status_code}")
            await dying.dead()
        async with replica(self.settings) as url:
            answers = [await _order(url), await _order(url)]
        numbers = {answer.json()["request"] for answer in answers}
        assert len(numbers) == 1, numbers
        return int(numbers.pop())

    async def audit(self, number: int, wait_s: float = 0.0) -> VerdictKind:
        (verdict,) = await audit_requests(self.settings, [number], wait_s=wait_s)
        if verdict.kind is VerdictKind.PROVEN:
            assert self.old() == 0, "PROVEN, and the engine holds old blocks"
        return verdict.kind

    async def auditor(self, number: int, step: str) -> None:
        """An audit that is killed at the step."""
        made = await self._begin("audit", "run", "--request", str(number), "--wait", "60", step=step)
        await made.dead()

    def old(self) -> int:
        """Blocks that the engine holds; after the order nothing is computed."""
        return sum(1 for blocks in self.engine.pool.blocks_of.values() if blocks)

    async def requests(self) -> Sequence[int]:
        return sorted((await read_registry(connection(self.settings))).deletions)

    async def end(self) -> None:
        for one in self.acting:
            await one.kill()

    async def _begin(self, *arguments: str, step: str | None = None) -> Acting:
        made = await Acting.begin(self.settings, *arguments, step=step)
        self.acting.append(made)
        return made


@contextlib.asynccontextmanager
async def killed_deletion(settings: Settings) -> AsyncIterator[KilledDeletion]:
    async with FakeEngine(http_port=0) as engine:
        made = KilledDeletion(settings, engine)
        try:
            yield made
        finally:
            await made.end()


async def _order(url: str) -> httpx.Response:
    async with httpx.AsyncClient(timeout=60) as http:
        return await http.post(f"{url}/v1/deletions", json=ORDER, headers={"Idempotency-Key": KEY})


async def one_step(settings: Settings, step: str) -> list[str]:
    """A deletion in which the one who takes that step is killed there; the verdicts on the way. Raises AssertionError
    if a verdict is unsound, the request is doubled or lost, or it isn't proven in the end."""
    async with killed_deletion(settings) as world:
        seen: list[VerdictKind] = []
        bridge = await world.bridge(step if step in BRIDGE_STEPS else None)
        await world.fill(1, 2, 3)
        assert world.old() > 0
        number = await world.order(step if step in REPLICA_STEPS else None)
        if step in BRIDGE_STEPS:
            asking = asyncio.create_task(world.audit(number, wait_s=20 if "nonce" in step else 0))
            await bridge.dead()
            seen.append(await asking)
            seen.append(await world.audit(number))
            await world.bridge()
        elif step in AUDITOR_STEPS:
            await world.auditor(number, step)
        seen.append(await world.audit(number, wait_s=60))
        assert seen[-1] is VerdictKind.PROVEN, seen
        assert list(await world.requests()) == [number]
        return [kind.value for kind in seen]
