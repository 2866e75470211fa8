"""The migrations make exactly the tables that the code defines, from nothing and repeatedly."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator

import asyncpg
import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from migrations.run import DatabaseUnreachableError, configuration, run_migrations
from tests.support.stack import drop_database, with_database


@pytest.fixture
def empty(postgres: str) -> Iterator[str]:
    url = with_database(postgres, f"empty_{secrets.token_hex(5)}")
    asyncio.run(_create(postgres, url.rsplit("/", 1)[1]))
    yield url
    drop_database(postgres, url)


async def _create(admin: str, name: str) -> None:
    connection = await asyncpg.connect(admin)
    await connection.execute(f'CREATE DATABASE "{name}"')
    await connection.close()


def alembic(url: str, what: str, *arguments: str) -> None:
    """Runs an alembic command on the database."""

    async def run() -> None:
        engine = create_async_engine(make_url(url).set(drivername="postgresql+asyncpg"), poolclass=NullPool)
        async with engine.connect() as connection:
            await connection.run_sync(work)
            await connection.commit()
        await engine.dispose()

    def work(connection: Connection) -> None:
        config = configuration()
        config.attributes["connection"] = connection
        getattr(command, what)(config, *arguments)

    asyncio.run(run())


def test_revisions_form_one_line() -> None:
    scripts = ScriptDirectory.from_config(configuration())
    assert len(scripts.get_heads()) == 1
    assert len(scripts.get_bases()) == 1


def test_migrated_schema_is_the_one_the_code_defines(empty: str) -> None:
    run_migrations(empty)
    alembic(empty, "check")


def test_migrating_twice_and_at_once_changes_nothing(empty: str) -> None:
    async def both() -> None:
        await asyncio.gather(*(asyncio.to_thread(run_migrations, empty) for _ in range(3)))

    asyncio.run(both())
    run_migrations(empty)
    alembic(empty, "check")


def test_downgrade_leaves_nothing_and_upgrade_works_again(empty: str) -> None:
    run_migrations(empty)
    alembic(empty, "downgrade", "base")

    async def tables() -> list[str]:
        connection = await asyncpg.connect(empty)
        rows = await connection.fetch(
            "SELECT tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        )
        await connection.close()
        return [row["tablename"] for row in rows]

    assert asyncio.run(tables()) == ["alembic_version"]
    run_migrations(empty)
    alembic(empty, "check")


def test_unreachable_database_is_one_clear_error() -> None:
    with pytest.raises(DatabaseUnreachableError, match=r"no PostgreSQL answers at 127\.0\.0\.1:1 "):
        run_migrations("postgresql://nobody@127.0.0.1:1/none")
