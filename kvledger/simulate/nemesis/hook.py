"""Bridges killed and frozen, and engines behind bridges that die: the faults of a worker outside this process."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from functools import partial

from kvledger.simulate.fault import Arena, Strike
from kvledger.simulate.nemesis.bridged import Bridged, BridgedWorker
from kvledger.simulate.nemesis.service import STOP_S
from kvledger.simulate.nemesis.target import TargetMissingError, frozen
from kvledger.simulate.nemesis.trouble import carry_out, until
from kvledger.simulate.nemesis.whole import answers_complete, epoch_of

DEADLINE_S = 60.0
FOUND_WITHIN_S = 10.0


@dataclass(slots=True)
class KillHook:
    """SIGKILL to one worker's bridge; another attaches to the same engine life. `kills` counts them.

    Repaired when lookups answer for the worker again, from a stream of another epoch.
    """

    bridged: Bridged
    deadline_s: float = DEADLINE_S
    kills: int = 0

    @property
    def name(self) -> str:
        return "kill-hook"

    async def strike(self, arena: Arena) -> Strike:
        """Raises UnrepairedError."""
        one = arena.rng.choice(self.bridged.workers)
        before = await epoch_of(arena, one.name)

        async def act() -> str:
            os.kill(await _process(one), signal.SIGKILL)
            self.kills += 1
            return f"SIGKILL to the bridge of {one.name}"

        whole = partial(_new_epoch, arena, one, before)
        return await carry_out(
            arena, self.name, act, whole, deadline_s=self.deadline_s, excuses=True, worker=one.name
        )


@dataclass(slots=True)
class StopHook:
    """SIGSTOP to one worker's bridge for 1 to 6 s, then SIGCONT; its engine goes on."""

    bridged: Bridged
    stop_s: tuple[float, float] = STOP_S
    deadline_s: float = DEADLINE_S

    @property
    def name(self) -> str:
        return "stop-hook"

    async def strike(self, arena: Arena) -> Strike:
        """Raises UnrepairedError."""
        one = arena.rng.choice(self.bridged.workers)
        length_s = arena.rng.uniform(*self.stop_s)

        async def act() -> str:
            await _process(one)
            assert one.process is not None
            with frozen(one.process):
                await asyncio.sleep(length_s)
            return f"SIGSTOP of the bridge of {one.name} for {length_s:.1f} s"

        whole = partial(answers_complete, arena)
        return await carry_out(
            arena, self.name, act, whole, deadline_s=self.deadline_s, excuses=True, worker=one.name
        )


@dataclass(slots=True)
class KillWorker:
    """An engine behind a bridge dies and starts again, empty, its sockets gone for a moment.

    The engine is an object in this process, not a process: what its bridge sees is the same.
    """

    bridged: Bridged
    down_s: tuple[float, float] = (0.0, 2.0)
    deadline_s: float = DEADLINE_S
    restarts: int = 0

    @property
    def name(self) -> str:
        return "kill-worker"

    async def strike(self, arena: Arena) -> Strike:
        """Raises UnrepairedError."""
        one = arena.rng.choice(self.bridged.workers)
        down_s = arena.rng.uniform(*self.down_s)
        before = await epoch_of(arena, one.name)

        async def act() -> str:
            await one.worker.restart(down_s)
            self.restarts += 1
            return f"the engine of {one.name} died and was back after {down_s:.1f} s"

        whole = partial(_new_epoch, arena, one, before)
        return await carry_out(
            arena, self.name, act, whole, deadline_s=self.deadline_s, excuses=True, worker=one.name
        )


@dataclass(slots=True)
class StopWorker:
    """An engine behind a bridge is stuck in a step for 1 to 6 s, or stopped: then replay doesn't answer either."""

    bridged: Bridged
    stop_s: tuple[float, float] = STOP_S
    deadline_s: float = DEADLINE_S

    @property
    def name(self) -> str:
        return "stop-worker"

    async def strike(self, arena: Arena) -> Strike:
        """Raises UnrepairedError."""
        one = arena.rng.choice(self.bridged.workers)
        length_s = arena.rng.uniform(*self.stop_s)
        stopped = arena.rng.random() < 0.5
        publisher = one.worker.publisher
        assert publisher is not None

        async def act() -> str:
            one.worker.hold()
            try:
                with publisher.faults.during(deaf=stopped):
                    await asyncio.sleep(length_s)
            finally:
                one.worker.release()
            return f"the engine of {one.name} was {'stopped' if stopped else 'stuck'} for {length_s:.1f} s"

        whole = partial(answers_complete, arena)
        return await carry_out(
            arena, self.name, act, whole, deadline_s=self.deadline_s, excuses=True, worker=one.name
        )


async def _new_epoch(arena: Arena, one: BridgedWorker, before: str) -> str:
    """Lookups are complete, and the worker is answered for in another epoch than before."""
    if await epoch_of(arena, one.name) in ("", before):
        return f"{one.name} has no new stream"
    return await answers_complete(arena)


async def _process(one: BridgedWorker) -> int:
    """The bridge's pid, waiting a while for one that is about to start. Raises TargetMissingError."""

    async def found() -> str:
        return "" if one.process is not None and one.process.is_alive() else "it does not run"

    if await until(found, FOUND_WITHIN_S) or one.process is None:
        raise TargetMissingError(f"bridge of {one.name}")
    return one.process.pid
