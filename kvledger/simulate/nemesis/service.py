"""Services of the stack killed and frozen."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from kvledger.simulate.fault import Arena, Strike
from kvledger.simulate.nemesis.target import SERVICES, Target
from kvledger.simulate.nemesis.trouble import Holds, carry_out
from kvledger.simulate.nemesis.whole import IndexCurrent, lookups_whole, service_back
from kvledger.stack.process import ProcessId

KILL_DEADLINE_S = 90.0
STOP_DEADLINE_S = 60.0
STOP_S = (1.0, 6.0)

LOOKUP_PATH = frozenset({"kafka", "serve"})
"""Services without which lookups may suffer. The others are on nobody's way to an answer."""


@dataclass(slots=True)
class KillService:
    """SIGKILL to one service. `kills` counts what was sent.

    Over once the process is gone; repaired when another one is ready, the index holds what the log held by
    then, and lookups are complete. Only a kill of `kafka` or `serve` excuses lookups.
    """

    service: str
    deadline_s: float = KILL_DEADLINE_S
    kills: int = 0

    @property
    def name(self) -> str:
        return f"kill-{self.service}"

    async def strike(self, arena: Arena) -> Strike:
        """Raises UnrepairedError."""
        killed: dict[str, ProcessId] = {}

        async def act() -> str:
            killed[self.service] = Target(arena.settings.home, self.service).kill()
            self.kills += 1
            return f"SIGKILL to {self.service}"

        return await carry_out(
            arena,
            self.name,
            act,
            _back(arena, killed),
            deadline_s=self.deadline_s,
            excuses=self.service in LOOKUP_PATH,
        )


@dataclass(slots=True)
class KillSeveral:
    """SIGKILL to two or more services within a second. `kills` counts what was sent."""

    services: Sequence[str] = SERVICES
    deadline_s: float = KILL_DEADLINE_S
    kills: int = 0

    @property
    def name(self) -> str:
        return "kill-several"

    async def strike(self, arena: Arena) -> Strike:
        """Raises UnrepairedError."""
        chosen = arena.rng.sample(list(self.services), arena.rng.randint(2, len(self.services)))
        pauses_s = [arena.rng.uniform(0, 0.3) for _ in chosen]
        killed: dict[str, ProcessId] = {}

        async def act() -> str:
            for service, pause_s in zip(chosen, pauses_s, strict=True):
                killed[service] = Target(arena.settings.home, service).kill()
                self.kills += 1
                await asyncio.sleep(pause_s)
            return f"SIGKILL to {', '.join(chosen)}"

        return await carry_out(
            arena,
            self.name,
            act,
            _back(arena, killed),
            deadline_s=self.deadline_s,
            excuses=bool(LOOKUP_PATH.intersection(chosen)),
        )


@dataclass(slots=True)
class StopService:
    """SIGSTOP to one service for 1 to 6 s, then SIGCONT."""

    service: str
    stop_s: tuple[float, float] = STOP_S
    deadline_s: float = STOP_DEADLINE_S

    @property
    def name(self) -> str:
        return f"stop-{self.service}"

    async def strike(self, arena: Arena) -> Strike:
        """Raises UnrepairedError."""
        length_s = arena.rng.uniform(*self.stop_s)

        async def act() -> str:
            with Target(arena.settings.home, self.service).frozen():
                await asyncio.sleep(length_s)
            return f"SIGSTOP of {self.service} for {length_s:.1f} s"

        return await carry_out(
            arena,
            self.name,
            act,
            _back(arena, {}),
            deadline_s=self.deadline_s,
            excuses=self.service in LOOKUP_PATH,
        )


def _back(arena: Arena, killed: dict[str, ProcessId]) -> Holds:
    """All that was killed is replaced, lookups are complete, and the index has caught up."""
    current = IndexCurrent(arena)

    async def whole() -> str:
        for service, before in killed.items():
            missing = await service_back(arena, service, before)
            if missing:
                return missing
        return await lookups_whole(arena) or await current()

    return whole
