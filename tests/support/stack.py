"""The real Kafka and PostgreSQL that the tests run on, and fresh databases and topic names in them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from kvledger.settings import Settings
from kvledger.stack.own import ALL_OWN

TEMPLATE = "kvledger_template"


def stack_settings(home: Path, **overrides: Any) -> Settings:
    """Settings of a stack of one's own: every port free, nothing taken from the environment."""
    return Settings(**{**ALL_OWN, "home": home, **overrides})


def run_async(work: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine to its end from a synchronous fixture."""
    asyncio.run(work)


def with_database(url: str, database: str) -> str:
    """The same server's URL, for another database."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{database}"))


def make_template(admin_url: str) -> None:
    """Makes the database that every test's own is copied from, migrated to the newest revision."""
    run_async(_execute(admin_url, f'CREATE DATABASE "{TEMPLATE}"'))
    if find_spec("kvledger.command.migrate") is not None:
        import_module("kvledger.command.migrate").run_migrations(with_database(admin_url, TEMPLATE))


def make_database(admin_url: str) -> str:
    """A fresh copy of the template; returns its URL."""
    name = f"test_{secrets.token_hex(6)}"
    run_async(_execute(admin_url, f'CREATE DATABASE "{name}" TEMPLATE "{TEMPLATE}"'))
    return with_database(admin_url, name)


def drop_database(admin_url: str, url: str) -> None:
    """Drops it, whoever is still connected."""
    name = urlsplit(url).path.removeprefix("/")
    run_async(_execute(admin_url, f'DROP DATABASE "{name}" WITH (FORCE)'))


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url, timeout=10)
    try:
        await connection.execute(statement, timeout=30)
    finally:
        await connection.close(timeout=10)
