"""`kvledger audit checkpoint`: seals the log's new records under a checkpoint of the main log."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Annotated

import typer

from kvledger.failure import CommandError, ExitCode
from kvledger.settings import load_settings
from kvledger.wording import counted


def checkpoint(
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON document")] = False,
) -> None:
    """Seal the records that are new since the last checkpoint, sign the main log's head and have it cosigned.

    Reads only what is new of kv.events, and kv.control whole. Prints the checkpoint, a C2SP signed note that
    anybody may keep; the witnesses are those of witnesses.json below the home folder. Run it as often as records
    should become tamper-evident. Exit code 1 if the log contradicts what was sealed before, or if fewer witnesses
    than the quorum have cosigned.

    Example: kvledger audit checkpoint
    """
    from kvledger.checkpointing import make_checkpoint
    from kvledger.control import or_unavailable

    settings = load_settings()
    made = asyncio.run(or_unavailable(lambda: make_checkpoint(settings)))
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(made)))
    else:
        typer.echo(made.note, nl=False)
        witnessed = (
            f", cosigned by {made.witnessed} of {counted(made.witnesses, 'witness', 'witnesses')}"
            if made.witnesses
            else ""
        )
        typer.echo(
            f"{counted(made.added, 'segment')} added, {made.size} in all{witnessed}; key {made.key}", err=True
        )
    for complaint in made.complaints:
        typer.echo(f"kvledger: {complaint}", err=True)
    if made.problems:
        raise CommandError(
            f"the log contradicts its checkpoints: {made.problems[0]}",
            advice="find out who changed it; restore it from an archive or begin a new log",
            exit_code=ExitCode.FAILED,
        )
    if made.witnessed < made.quorum:
        needed = counted(made.quorum, "witness", "witnesses")
        raise CommandError(
            f"the checkpoint is cosigned by {made.witnessed} of the {needed} needed",
            advice="run it again when they answer",
            exit_code=ExitCode.FAILED,
        )
