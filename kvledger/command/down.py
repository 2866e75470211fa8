"""`kvledger down`: stop the local stack, and remove its data if told to."""

from __future__ import annotations

from typing import Annotated

import typer

from kvledger.settings import configured_settings


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("down")(down)


def down(
    wipe: Annotated[bool, typer.Option("--wipe", help="Remove all local data, keys included.")] = False,
) -> None:
    """Stop the local stack; also what an earlier one left running.

    Stopping what does not run is not an error.

    Example: kvledger down --wipe
    """
    from kvledger.stack import session
    from kvledger.stack.state import Home

    settings = configured_settings()
    typer.echo("stopped" if session.stop(settings) else f"nothing runs in {settings.home}")
    if wipe:
        was_there = session.wipe(Home(settings.home))
        typer.echo(f"removed {settings.home}" if was_there else "there was no data")
