"""Brings a database to the newest revision, programmatically: no ini file, no working directory."""

from __future__ import annotations

import asyncio
from importlib.resources import files

from alembic import command
from alembic.config import Config
from asyncpg import PostgresError
from sqlalchemy import Connection, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from events.errors import KvledgerError

ADVISORY_LOCK = 0x6B766C6D69677261
"""Two migrators wait for each other instead of racing."""
LOCK_WAIT_S = 60


class MigrationError(KvledgerError):
    """The database could not be migrated; the message holds the server's own word, without the address."""


class DatabaseUnreachableError(MigrationError):
    """Nothing answers at the database's address: start it or correct the address, then migrate again."""


def configuration() -> Config:
    """Alembic's configuration: this package's scripts, nothing read from files."""
    config = Config()
    config.set_main_option("script_location", str(files("migrations")).replace("%", "%%"))
    return config


def run_migrations(dsn: str, revision: str = "head") -> None:
    """Upgrades the database at `dsn` (postgresql://…); idempotent, safe to run from several processes.

    Raises DatabaseUnreachableError if no server answers, else MigrationError: is the database there, may this
    role create tables and roles?
    """
    try:
        asyncio.run(_migrate(dsn, revision))
    except (OSError, TimeoutError) as error:
        url = make_url(dsn)
        why = "in time" if isinstance(error, TimeoutError) else f"({type(error).__name__})"
        raise DatabaseUnreachableError(
            f"migration failed: no PostgreSQL answers at {url.host or 'localhost'}:{url.port or 5432} {why}"
        ) from error
    except (DBAPIError, PostgresError) as error:
        reason = str(error.orig) if isinstance(error, DBAPIError) else str(error)
        raise MigrationError(f"migration failed: {reason.splitlines()[0] if reason else error!r}") from error


async def _migrate(dsn: str, revision: str) -> None:
    url = make_url(dsn).set(drivername="postgresql+asyncpg")
    engine = create_async_engine(url, poolclass=NullPool, connect_args={"timeout": 10})
    try:
        async with engine.connect() as connection:
            # Session-wide and before alembic's own transactions, released with the connection.
            await connection.execute(text(f"SET lock_timeout = '{LOCK_WAIT_S}s'"))
            await connection.execute(text(f"SELECT pg_advisory_lock({ADVISORY_LOCK})"))
            await connection.execute(text("SET lock_timeout = '4s'"))
            await connection.execute(text("SET statement_timeout = '300s'"))
            await connection.commit()
            await connection.run_sync(_upgrade, revision)
            await connection.commit()
    finally:
        await engine.dispose()


def _upgrade(connection: Connection, revision: str) -> None:
    config = configuration()
    config.attributes["connection"] = connection
    command.upgrade(config, revision)
