"""`kvledger topics ensure|check`: the log's topics as they must be."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated

import typer

from kvledger.failure import CommandError, ExitCode
from kvledger.settings import Settings, load_settings

if TYPE_CHECKING:
    from events.kafka.topic_admin import Finding


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Make and check the log's topics.")
    group.command("ensure")(ensure)
    group.command("check")(check)
    app.add_typer(group, name="topics")


def ensure(as_json: Annotated[bool, typer.Option("--json", help="print one JSON document")] = False) -> None:
    """Make the topics that are missing, then check all; existing topics are never altered.

    Exit 1 if a topic can't serve the log (compacted kv.events, another partition count).

    Example: kvledger topics ensure
    """
    made, findings = asyncio.run(_ensure(load_settings()))
    _report(made, findings, as_json=as_json)


def check(as_json: Annotated[bool, typer.Option("--json", help="print one JSON document")] = False) -> None:
    """Compare partitions, retention, cleanup policy, min.insync and unclean election with what is needed.

    Exit 1 if a topic can't serve the log.

    Example: kvledger topics check --json
    """
    _report([], asyncio.run(_check(load_settings())), as_json=as_json)


def ensure_topics(bootstrap: str) -> None:
    """The step of `kvledger up`; raises CommandError for a topic that can't serve the log."""
    _, findings = asyncio.run(_ensure(load_settings(kafka=bootstrap)))
    _refuse(findings)


async def _ensure(settings: Settings) -> tuple[list[str], list[Finding]]:
    from events.kafka.topic_admin import TopicAdmin
    from kvledger.control import connection, or_unavailable

    admin = TopicAdmin(connection(settings), partitions=settings.partitions, replication=settings.replication)
    return await or_unavailable(admin.ensure)


async def _check(settings: Settings) -> list[Finding]:
    from events.kafka.topic_admin import TopicAdmin
    from kvledger.control import connection, or_unavailable

    admin = TopicAdmin(connection(settings), partitions=settings.partitions, replication=settings.replication)
    return await or_unavailable(admin.check)


def _report(made: list[str], findings: list[Finding], *, as_json: bool) -> None:
    if as_json:
        rows = [
            {"topic": f.topic, "setting": f.setting, "wanted": f.wanted, "found": f.found, "fatal": f.fatal}
            for f in findings
        ]
        typer.echo(json.dumps({"made": made, "findings": rows}))
    else:
        for name in made:
            typer.echo(f"made     {name}")
        for f in findings:
            typer.echo(
                f"{'UNSAFE' if f.fatal else 'differs':8} {f.topic}: {f.setting} is {f.found}, not {f.wanted}"
            )
        if not made and not findings:
            typer.echo("all topics are as they must be")
    _refuse(findings)


def _refuse(findings: list[Finding]) -> None:
    fatal = [f for f in findings if f.fatal]
    if fatal:
        first = fatal[0]
        raise CommandError(
            f"topic {first.topic} can't serve the log: {first.setting} is {first.found}, not {first.wanted}",
            advice="make a new topic under another KVLEDGER_TOPIC_PREFIX, or correct it with Kafka's own tools",
            exit_code=ExitCode.FAILED,
        )
