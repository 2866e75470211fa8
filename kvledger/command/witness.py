"""`kvledger witness`: cosigns other people's checkpoints, so that a log can't have two histories unnoticed."""

from __future__ import annotations

import json
import secrets
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvledger.failure import CommandError, ExitCode

if TYPE_CHECKING:
    from auditor.checkpoint import NoteKey
    from events.signing import Signer

KEY_FILE = "witness.json"
Folder = Annotated[Path, typer.Option(help="The witness's own folder: its key, and what it has cosigned.")]


def register(app: typer.Typer) -> None:
    """Adds the group."""
    group = typer.Typer(no_args_is_help=True, help="Cosign checkpoints of logs that others keep.")
    group.command("key")(key)
    group.command("serve")(serve)
    app.add_typer(group, name="witness")


def key(
    name: Annotated[
        str | None, typer.Option(help="The witness's name, like witness.example/1; needed once.")
    ] = None,
    folder: Folder = Path("witness"),
) -> None:
    """Print the witness's public key, which those who trust it list; makes the key if there is none.

    Example: kvledger witness key --name witness.example/1
    """
    typer.echo(str(_key(folder, name)[0]))


def serve(
    log: Annotated[
        list[str],
        typer.Option(
            help="A log's public key as `kvledger audit checkpoint` prints it; repeatable, also for a new key of "
            "the same log."
        ),
    ],
    folder: Folder = Path("witness"),
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 for any free one.")] = 8_440,
) -> None:
    """Answer POST /add-checkpoint as https://c2sp.org/tlog-witness says, until SIGTERM or Ctrl-C.

    A checkpoint is cosigned if a listed log's key signed it and it extends the newest one cosigned here, which is
    on disk before the answer. Needs no Kafka and nothing else of kvledger; put a TLS proxy before it.

    Example: kvledger witness serve --log kvledger.audit/log-1+1a2b3c4d+AZ…
    """
    from auditor.checkpoint import KeyKind, NoteError, parse_key
    from auditor.witness_server import Witness, WitnessMemory, WitnessServer, WitnessStateError

    logs: dict[str, list[NoteKey]] = {}
    for text in log:
        try:
            known = parse_key(text)
        except NoteError as error:
            raise _usage(f"--log {text}: {error}") from error
        if known.kind is not KeyKind.ED25519:
            raise _usage(f"--log {text}: this is a witness's key")
        logs.setdefault(known.name, []).append(known)
    own, signer = _key(folder, None)
    memory = WitnessMemory(folder)
    try:
        memory.open()
        server = WitnessServer((host, port), Witness(own, signer, logs, memory, now_s))
    except WitnessStateError as error:
        raise CommandError(
            str(error),
            advice="restore the folder, or begin anew under another name",
            exit_code=ExitCode.CONFIGURATION,
        ) from error
    except OSError as error:
        raise CommandError(
            f"{host}:{port} can't be listened on: {error.strerror}",
            advice="stop what listens there, or give --port",
            exit_code=ExitCode.UNAVAILABLE,
        ) from error
    # A thread of its own each time: who tells it twice to stop doesn't interrupt the stopping.
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown, daemon=True).start())
    typer.echo(f"witness {own.name} listens on http://{host}:{server.server_port}")
    try:
        server.serve_forever()
    finally:
        server.server_close()
        memory.close()


def now_s() -> int:
    """The witness's wall clock: a cosignature says when it was given."""
    return time.time_ns() // 1_000_000_000


def _key(folder: Path, name: str | None) -> tuple[NoteKey, Signer]:
    from auditor.checkpoint import KeyKind, NoteKey, is_name
    from events.errors import SignatureError
    from events.signing import Signer
    from kvledger.keyfile import write_private

    path = folder / KEY_FILE
    if not path.exists():
        if name is None or not is_name(name):
            raise _usage(
                "a new witness needs --name without spaces and plus signs, once: `kvledger witness key`"
            )
        write_private(path, json.dumps({"name": name, "seed": secrets.token_bytes(32).hex()}) + "\n")
    try:
        document = json.loads(path.read_text())
        signer = Signer.from_seed(bytes.fromhex(document["seed"]))
        own = NoteKey(str(document["name"]), signer.public_key, KeyKind.COSIGNATURE)
    except (OSError, ValueError, KeyError, TypeError, SignatureError) as error:
        raise CommandError(
            f"the witness's key {path} can't be read ({type(error).__name__})",
            advice="restore it, or use another folder and name",
            exit_code=ExitCode.CONFIGURATION,
        ) from error
    if name is not None and name != own.name:
        raise _usage(f"the witness in {folder} is called {own.name}")
    return own, signer


def _usage(message: str) -> CommandError:
    return CommandError(message, advice="kvledger witness --help", exit_code=ExitCode.USAGE)
