"""`kvledger profile init|check`: what an engine's blocks are identified by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from kvledger.failure import CommandError, ExitCode

Json = Annotated[bool, typer.Option("--json", help="print one JSON document")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Profiles: what determines the tensors of a model.")
    group.command("init")(init)
    group.command("check")(check)
    app.add_typer(group, name="profile")


def init(
    model: Annotated[str, typer.Option(help="model id, as in its repository")],
    file: Annotated[Path, typer.Option(help="where to write it")] = Path("profile.toml"),
    force: Annotated[bool, typer.Option("--force", help="replace an existing file")] = False,
    as_json: Json = False,
) -> None:
    """Write a profile to edit: fill in what you know, leave out what you don't.

    Example: kvledger profile init --model meta-llama/Llama-3.1-8B --file llama.toml
    """
    from kvledger.engine_profile import mandatory, template

    if file.exists() and not force:
        raise CommandError(f"{file} exists", advice="--force replaces it", exit_code=ExitCode.USAGE)
    try:
        file.write_text(template(model))
    except OSError as error:
        raise CommandError(f"{file} can't be written: {error.strerror}") from error
    to_fill = [name for name in mandatory() if name != "model"]
    if as_json:
        typer.echo(json.dumps({"file": str(file), "to_fill": to_fill}))
    else:
        typer.echo(
            f"wrote {file}; until these are filled in, the identity is unverified: {', '.join(to_fill)}"
        )


def check(
    file: Annotated[Path, typer.Argument(help="a profile")],
    as_json: Json = False,
) -> None:
    """Say whether a profile can be used and what it leaves open. Exit 1 if it is unverified.

    Example: kvledger profile check llama.toml
    """
    from kvledger.engine_profile import load_profile

    missing = load_profile(file).missing()
    if as_json:
        typer.echo(json.dumps({"file": str(file), "verified": not missing, "missing": list(missing)}))
    elif missing:
        typer.echo(f"{file}: unverified, missing {', '.join(missing)}")
    else:
        typer.echo(f"{file}: verified")
    if missing:
        raise typer.Exit(ExitCode.FAILED)
