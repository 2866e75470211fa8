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
    from migrations.run import DatabaseUnreachableError

    url = database_url or configured_database()
    if not url.startswith(("postgresql://", "postgres://")):
        raise CommandError("the database's address is no postgresql:// URL", exit_code=ExitCode.USAGE)
    try:
        run_migrations(url)
    except DatabaseUnreachableError as error:
        raise CommandError(
            str(error),
            advice="start it, or correct --database-url or KVLEDGER_DATABASE_URL; `kvledger up` starts one",
            exit_code=ExitCode.UNAVAILABLE,
        ) from error
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
