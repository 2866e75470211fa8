"""`kvledger logs`: what the local stack's processes wrote."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import Annotated

import typer

from kvledger.failure import CommandError, ExitCode
from kvledger.settings import load_settings

_POLL_S = 0.3


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("logs")(logs)


def logs(
    names: Annotated[
        list[str] | None, typer.Argument(help="Services; all of them when none is named.")
    ] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Last lines of each.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
) -> None:
    """Show the last lines of the local stack's logs.

    Example: kvledger logs indexer serve --follow
    """
    from kvledger.stack.state import Home

    home = Home(load_settings().home)
    known = {path.stem: path for path in sorted(home.logs.glob("*.log"))}
    chosen = names or list(known)
    for name in chosen:
        if name not in known:
            raise CommandError(
                f"there is no log of {name!r}",
                advice=f"there are {', '.join(known) or 'none yet'}",
                exit_code=ExitCode.USAGE,
            )
    ends = {name: _show_tail(name, known[name], lines) for name in chosen}
    while follow:
        for name, end in ends.items():
            ends[name] = _show_from(name, known[name], end)
        time.sleep(_POLL_S)


def _show_tail(name: str, path: Path, lines: int) -> int:
    with path.open(errors="replace") as file:
        for line in deque(file, maxlen=lines):
            typer.echo(f"{name:<11}{line.rstrip()}")
        return file.tell()


def _show_from(name: str, path: Path, start: int) -> int:
    if path.stat().st_size < start:  # put aside and begun anew
        start = 0
    with path.open(errors="replace") as file:
        file.seek(start)
        while line := file.readline():
            typer.echo(f"{name:<11}{line.rstrip()}")
        return file.tell()
