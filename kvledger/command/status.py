"""`kvledger status`: what of the local stack runs, and where."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit, urlunsplit

import typer

from kvledger.failure import ExitCode
from kvledger.settings import load_settings
from kvledger.wording import counted

if TYPE_CHECKING:
    from kvledger.stack.state import StackState


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("status")(status)


def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    reveal: Annotated[bool, typer.Option("--reveal", help="Show the database's password.")] = False,
) -> None:
    """Show every process and address of the local stack, and how its lookup service stands to its bounds.

    Exit code 0 when everything is ready, 69 when nothing runs or something is not ready.

    Example: kvledger status --json
    """
    from kvledger.stack.session import read_running
    from kvledger.stack.state import Home

    state = read_running(Home(load_settings().home))
    if not show(state, as_json=as_json, reveal=reveal):
        raise typer.Exit(ExitCode.UNAVAILABLE)


def show(state: StackState, *, as_json: bool, reveal: bool = False) -> bool:
    """Prints the state, the database's password masked; True when everything is ready."""
    from kvledger.command.figure import document_of, lines_of, read_figures
    from kvledger.stack.state import Phase, ServiceState

    at = state.endpoints
    database_url = at.database_url if reveal else masked(at.database_url)
    figures = read_figures(at.lookup_url)
    good = (ServiceState.READY, ServiceState.EXTERNAL)
    is_ready = state.phase is Phase.READY and all(service.state in good for service in state.services)
    if as_json:
        document = {
            "ready": is_ready,
            "phase": state.phase,
            "home": str(at.home),
            "kafka": at.kafka,
            "database_url": database_url,
            "lookup_url": at.lookup_url,
            "supervisor": {"pid": state.supervisor.pid},
            "lookup": document_of(figures),
            "services": [
                {
                    "name": service.name,
                    "state": service.state,
                    "address": service.address,
                    "pid": service.process.pid if service.process else None,
                    "restarts": service.restarts,
                    "last_exit": service.last_exit,
                    "log": str(service.log) if service.log else None,
                }
                for service in state.services
            ],
        }
        typer.echo(json.dumps(document))
        return is_ready
    for service in state.services:
        pid = f"process {service.process.pid}" if service.process else ""
        restarts = (
            f"{counted(service.restarts, 'restart')}, last {service.last_exit}" if service.restarts else ""
        )
        typer.echo(f"{service.name:<11}{service.state:<11}{service.address:<24}{pid:<16}{restarts}".rstrip())
    typer.echo("")
    for name, address in (("Lookup", at.lookup_url), ("Kafka", at.kafka), ("PostgreSQL", database_url)):
        if address:
            typer.echo(f"{name:<11}{address}")
    typer.echo(f"{'State':<11}{at.home}")
    for line in lines_of(figures):
        typer.echo(line)
    return is_ready


def masked(url: str) -> str:
    """The URL with its password, if it has one, as `***`."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    where = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:***@{where}"))
