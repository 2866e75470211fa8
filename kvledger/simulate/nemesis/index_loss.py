"""All data of PostgreSQL lost under load; the index is built again from the log."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from events.errors import KvledgerError
from kvledger.command.migrate import run_migrations
from kvledger.settings import Settings
from kvledger.simulate.fault import Arena, Strike
from kvledger.simulate.nemesis.trouble import carry_out
from kvledger.simulate.nemesis.whole import CONNECT_S, IndexCurrent

DEADLINE_S = 180.0


class NotDroppedError(KvledgerError):
    """PostgreSQL did not drop or make the database."""


@dataclass(slots=True)
class IndexLoss:
    """The database is dropped whoever uses it, and made again with empty tables, as an operator does.

    Repaired when the indexer has read the log again to where it stood. No lookup may suffer.
    """

    deadline_s: float = DEADLINE_S

    @property
    def name(self) -> str:
        return "index-loss"

    async def strike(self, arena: Arena) -> Strike:
        """Raises UnrepairedError."""

        async def act() -> str:
            await drop_index(arena.settings)
            return "the database was dropped and made again, empty"

        return await carry_out(
            arena, self.name, act, IndexCurrent(arena), deadline_s=self.deadline_s, excuses=False
        )


async def drop_index(settings: Settings) -> None:
    """Drops the database of the index, makes and migrates it again. Raises NotDroppedError, MigrationError."""
    assert settings.database_url is not None
    url = settings.database_url.get_secret_value()
    parts = urlsplit(url)
    name = '"' + parts.path.removeprefix("/").replace('"', '""') + '"'
    try:
        admin = await asyncpg.connect(urlunsplit(parts._replace(path="/postgres")), timeout=CONNECT_S)
        try:
            await admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)", timeout=30)
            await admin.execute(f"CREATE DATABASE {name}", timeout=30)
        finally:
            await admin.close(timeout=CONNECT_S)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise NotDroppedError(f"PostgreSQL: {type(error).__name__}") from error
    await asyncio.to_thread(run_migrations, url)
