"""The indexer killed inside its transaction, between the watermark's and the rows' statements."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import asyncpg

from events.errors import KvledgerError
from kvledger.simulate.fault import Arena, Strike
from kvledger.simulate.nemesis.target import Target
from kvledger.simulate.nemesis.trouble import carry_out
from kvledger.simulate.nemesis.whole import IndexCurrent, database, service_back
from kvledger.stack.process import ProcessId

DEADLINE_S = 90.0
CAUGHT_WITHIN_S = 20.0
TABLES = ("copy", "copy_attribute", "stream", "tenant_usage", "profile")

# A backend that has advanced its watermark, uncommitted, and waits for a table that we hold.
_CAUGHT = """
SELECT count(*) FROM pg_locks waiting
JOIN pg_locks held ON held.pid = waiting.pid AND held.granted
WHERE NOT waiting.granted AND waiting.relation = $1::regclass
  AND held.relation = 'partition_progress'::regclass AND held.mode = 'RowExclusiveLock'
"""


class NotCaughtError(KvledgerError):
    """The indexer did not write the table within the time: there was no load, or PostgreSQL was away."""


@dataclass(slots=True)
class KillBetweenWrites:
    """A lock on one table stops the indexer's transaction half way; then it is killed and the lock released.

    Repaired when another indexer has caught up; whether the index is the fold, its digest says. `kills` counts
    what was sent. No lookup may suffer.
    """

    deadline_s: float = DEADLINE_S
    kills: int = 0

    @property
    def name(self) -> str:
        return "kill-between-writes"

    async def strike(self, arena: Arena) -> Strike:
        """Raises UnrepairedError."""
        table = arena.rng.choice(TABLES)
        killed: list[ProcessId] = []
        current = IndexCurrent(arena)

        async def act() -> str:
            try:
                connection = await database(arena.settings)
                try:
                    async with connection.transaction():
                        await connection.execute(f"LOCK TABLE {table} IN SHARE MODE", timeout=10)
                        seen = await _caught(connection, table)
                        killed.append(Target(arena.settings.home, "indexer").kill())
                        self.kills += 1
                finally:
                    await connection.close(timeout=5)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                raise NotCaughtError(f"PostgreSQL: {type(error).__name__}") from error
            where = (
                f"before the rows of {table}" if seen else f"while {table} was locked, between transactions"
            )
            return f"SIGKILL to the indexer {where}"

        async def whole() -> str:
            return await service_back(arena, "indexer", killed[0]) or await current()

        return await carry_out(arena, self.name, act, whole, deadline_s=self.deadline_s, excuses=False)


async def _caught(connection: Any, table: str) -> bool:
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + CAUGHT_WITHIN_S
    while loop.time() < ends_s:
        if await connection.fetchval(_CAUGHT, table, timeout=5):
            return True
        await asyncio.sleep(0.02)
    return False
