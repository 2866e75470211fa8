"""`kvledger migrate`: brings the database to this program's schema."""

from __future__ import annotations

from typing import Annotated

import typer

from kvledger.failure import CommandError, ExitCode
from kvledger.settings import load_settings


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("migrate")(migrate)


def run_migrations(dsn: str) -> None:
    """Brings the database at `dsn` to the newest revision; idempotent. Raises MigrationError."""
    from migrations.run import run_migrations as run

    run(dsn)


def migrate(
    database_url: Annotated[
        str | None, typer.Option(help="postgresql:// URL; without it the one in the settings.")
    ] = None,
) -> None:
    """Create or update the tables of the index; safe to repeat.

    Example: kvledger migrate
    """
    run_migrations(database_url or configured_database())
    typer.echo("the database is at the newest revision")


def configured_database() -> str:
    """The database in the settings; raises CommandError when there is none."""
    url = load_settings().database_url
    if url is None:
        raise CommandError(
            "no database is configured",
            advice="set KVLEDGER_DATABASE_URL, or run `kvledger up` which starts one",
            exit_code=ExitCode.CONFIGURATION,
        )
    return url.get_secret_value()
