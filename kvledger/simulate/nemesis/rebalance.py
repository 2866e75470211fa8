"""A second indexer that joins the group during load and leaves it again, in order or killed."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from events.kafka.deadline import within
from kvledger.settings import Settings
from kvledger.simulate.fault import Arena, Strike
from kvledger.simulate.nemesis.trouble import carry_out
from kvledger.simulate.nemesis.whole import IndexCurrent
from kvledger.stack.keeper import end, spawn
from kvledger.stack.plan import process_environment
from kvledger.stack.session import read_running
from kvledger.stack.state import Home

DEADLINE_S = 90.0
STAY_S = (3.0, 10.0)
LEAVE_S = 25.0


@asynccontextmanager
async def extra_process(
    settings: Settings, *command: str, log: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A kvledger process beside those of the running stack, on its addresses; killed at the end if need be."""
    home = Home(settings.home)
    at = read_running(home).endpoints
    process = await spawn(
        (sys.executable, "-m", "kvledger", *command),
        log=home.log(log),
        folder=Path.cwd(),
        environment={**process_environment(settings, at), **(environment or {})},
    )
    try:
        yield process
    finally:
        await end(process, stop_signal=signal.SIGKILL, timeout_s=5.0)


@dataclass(slots=True)
class Rebalance:
    """Over when the second indexer has gone; repaired when the index has caught up. `kills` counts the times
    that it was killed instead of asked to leave. No lookup may suffer."""

    stay_s: tuple[float, float] = STAY_S
    deadline_s: float = DEADLINE_S
    kills: int = 0

    @property
    def name(self) -> str:
        return "rebalance"

    async def strike(self, arena: Arena) -> Strike:
        """Raises UnrepairedError."""
        stay_s = arena.rng.uniform(*self.stay_s)
        kills = arena.rng.random() < 0.5

        async def act() -> str:
            async with extra_process(arena.settings, "indexer", log="indexer-2") as second:
                await asyncio.sleep(stay_s)
                how = "killed" if kills else "left in order"
                if second.returncode is not None:
                    how = f"ended by itself with {second.returncode}"
                elif kills:
                    second.kill()
                    self.kills += 1
                else:
                    with suppress(ProcessLookupError):
                        second.terminate()
                    try:
                        await within(second.wait(), LEAVE_S)
                    except TimeoutError:
                        how = f"killed after {LEAVE_S:.0f} s in which it did not leave"
            return f"a second indexer for {stay_s:.1f} s, {how}"

        return await carry_out(
            arena, self.name, act, IndexCurrent(arena), deadline_s=self.deadline_s, excuses=False
        )
