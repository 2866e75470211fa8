"""`kvledger config check`: what is wrong with the settings or the installation, and where."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from kvledger.failure import ExitCode


def register(app: typer.Typer) -> None:
    """Adds the group."""
    group = typer.Typer(no_args_is_help=True, help="Look at the settings.")
    group.command("check")(check)
    app.add_typer(group, name="config")


def check(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what is wrong with the settings and the installation, and where.

    Looks at KVLEDGER_* variables, at kvledger.toml (or what KVLEDGER_CONFIG names) and at whether our
    import names are ours. Exit code 0 when nothing is wrong, 78 otherwise.

    Example: kvledger config check
    """
    from kvledger.config import findings

    found = findings()
    if as_json:
        typer.echo(json.dumps({"ok": not found, "findings": [finding.model_dump() for finding in found]}))
    else:
        for finding in found:
            typer.echo(f"{finding.where}: {finding.what}")
        if not found:
            typer.echo("nothing is wrong")
    if found:
        raise typer.Exit(ExitCode.CONFIGURATION)
