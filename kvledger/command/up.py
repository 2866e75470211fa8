"""`kvledger up`: start the local stack and leave it running."""

from __future__ import annotations

from typing import Annotated

import typer

from kvledger.settings import configured_settings


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("up")(up)


def up(
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay; Ctrl-C stops the stack.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the addresses as one JSON object.")] = False,
) -> None:
    """Start Kafka, PostgreSQL and kvledger's processes on this machine.

    Makes keys and grants, migrates and makes topics on the way; what is there already is left as it is.
    KVLEDGER_KAFKA and KVLEDGER_DATABASE_URL name services to use instead of starting them.

    Example: kvledger up
    """
    import signal

    from kvledger.command.status import show
    from kvledger.stack.session import read_running, running_stack, start_detached
    from kvledger.stack.state import Home

    settings = configured_settings()
    home = Home(settings.home)

    def progress(text: str) -> None:
        typer.echo(f"  {text}", err=True)

    if foreground:
        with running_stack(settings, progress=progress):
            show(read_running(home), as_json=as_json)
            signal.pause()
    else:
        start_detached(settings, progress=progress)
        show(read_running(home), as_json=as_json)
        if not as_json:
            typer.echo("`kvledger logs`, `kvledger status`, `kvledger down`")
