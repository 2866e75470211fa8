"""`kvledger attach`: a bridge beside a running engine, by its address alone."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvledger.attachment.address import is_socket
from kvledger.command.bridge import is_http, sentence
from kvledger.failure import CommandError, ExitCode
from kvledger.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kvledger.attachment.plan import Plan, Wanted
    from kvledger.bridging import EngineAddress
    from kvledger.engine_profile import EngineProfile
    from kvledger.settings import Settings

AGAIN_S = 3.0
"""How often an engine that has become another one is asked while it doesn't answer."""


def register(app: typer.Typer) -> None:
    app.command("attach")(attach)


def attach(
    url: Annotated[str, typer.Argument(help="the engine's HTTP server, for example http://127.0.0.1:8000")],
    worker: Annotated[
        str | None, typer.Option(help="stable name of the engine replica; default: its host and port")
    ] = None,
    domain: Annotated[str, typer.Option(help="domain of requests without a cache_salt")] = "default",
    events: Annotated[
        str | None, typer.Option(help="publisher of rank 0, for engines before vLLM 0.32: tcp://host:5557")
    ] = None,
    replay: Annotated[str | None, typer.Option(help="replay socket of rank 0, with --events")] = None,
    topic: Annotated[str | None, typer.Option(help="the engine's topic, with --events")] = None,
    ranks: Annotated[int, typer.Option(min=1, max=1024, help="data-parallel ranks, with --events")] = 1,
    profile: Annotated[
        Path | None, typer.Option(help="from `kvledger profile init`: fills what can't be learned")
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="one field that can't be learned, as in --set attention=flash-attn-3"),
    ] = None,
    model_dir: Annotated[Path | None, typer.Option(help="the folder that the engine loaded")] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="a name for weights that were changed in place, if the engine names none"),
    ] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="file with the engine's API key")] = None,
    agent: Annotated[
        Path | None,
        typer.Option(help="socket of the agent in the engine: its KVLEDGER_AGENT_SOCKET"),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="print what is learned and start nothing")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line per event")] = False,
) -> None:
    """Learn what a running vLLM says of itself and carry its cache events into the log until told to stop.

    The engine stays as it is; it must have been started with --kv-events-config. Its model's files are read
    for their digests where they lie on this machine. What can't be learned leaves the identity unverified,
    with the fields named; --set or --profile fills them.

    Exit codes: 0 stopped, 64 wrong usage or an older engine without --events, 69 the engine, the log or the
    engine's sockets can't be reached, 78 the engine's settings or yours don't allow it.

    Example: kvledger attach http://127.0.0.1:8000
    """
    wanted = _wanted(
        url,
        worker,
        events,
        replay,
        topic,
        ranks,
        _given(profile, setting or []),
        model_dir,
        weights,
        api_key_file,
    )
    settings = load_settings()
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    logging.getLogger("httpx").setLevel(logging.WARNING)

    def say(document: dict[str, object]) -> None:
        typer.echo(json.dumps(document) if as_json else told(document))

    asyncio.run(_attach(settings, wanted, domain, api_key_file, agent, say, only_check=check))


async def _attach(
    settings: Settings,
    wanted: Wanted,
    domain: str,
    key_file: Path | None,
    agent: Path | None,
    say: Any,
    *,
    only_check: bool,
) -> None:
    from kvledger.attachment.plan import make_plan
    from kvledger.attachment.watch import IdentityChangedError
    from kvledger.command.domain import ensure_domain
    from kvledger.control import or_unavailable

    if not only_check:
        await ensure_domain(settings, domain)

    def note(text: str) -> None:
        say({"state": "note", "note": text})

    plan = await make_plan(wanted, settings.home, note)
    while True:
        engines = engines_of(plan, domain, key_file, agent)
        say(document_of(plan))
        if only_check:
            return
        try:
            await or_unavailable(partial(_run, settings, wanted, plan, engines, say))
        except IdentityChangedError as error:
            note(f"{error}; learning it anew")
        else:
            return
        plan = await _again(partial(make_plan, wanted, settings.home, note), note)


async def _again(make: Callable[[], Awaitable[Plan]], note: Callable[[str], None]) -> Plan:
    """A plan of an engine that was there; it may be on its way to be so again. Raises CommandError."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        # The bridge's own handlers would only tell the one that has ended.
        loop.remove_signal_handler(number)
    told = False
    while True:
        try:
            return await make()
        except CommandError as error:
            if error.exit_code is not ExitCode.UNAVAILABLE:
                raise
            if not told:
                note(f"{error.message}; it is asked again every {AGAIN_S:g} s")
                told = True
        await asyncio.sleep(AGAIN_S)


async def _run(
    settings: Settings, wanted: Wanted, plan: Plan, engines: tuple[EngineAddress, ...], say: Any
) -> None:
    from kvledger.attachment.relearn import Relearner
    from kvledger.bridging import run_bridges

    await run_bridges(settings, engines, say, lambda: Relearner(wanted, settings.home, plan))


def engines_of(
    plan: Plan, domain: str, key_file: Path | None, agent: Path | None = None
) -> tuple[EngineAddress, ...]:
    """What `kvledger bridge` would be told, rank by rank."""
    from pydantic import ValidationError

    from kvledger.bridging import EngineAddress, explain

    try:
        return tuple(
            EngineAddress(
                worker=plan.worker,
                model=plan.report.model.id,
                endpoint=at.endpoint,
                replay=at.replay,
                rank=at.rank,
                topic=at.topic,
                domain=domain,
                engine_url=plan.report.url if plan.report.resets else None,
                watch_url=plan.report.url,
                agent=agent,
                api_key_file=key_file,
                advertise=plan.report.url,
                # A copy each: a rank's watch writes the adapters' revisions that it learns into it.
                identity=plan.profile.model_copy(deep=True),
            )
            for at in plan.ranks
        )
    except ValidationError as error:
        raise CommandError(explain(error), exit_code=ExitCode.USAGE) from error


def document_of(plan: Plan) -> dict[str, object]:
    """What was learned, as a program may read it."""
    report, profile = plan.report, plan.profile
    return {
        "state": "learned",
        "worker": plan.worker,
        "url": report.url,
        "version": report.version,
        "model": report.model.id,
        "adapters": {name: profile.adapters.get(name) for name in report.adapters},
        "ranks": [
            {
                "rank": at.rank,
                "endpoint": at.endpoint,
                "replay": at.replay,
                "topic": at.topic,
                "binds": at.binds,
            }
            for at in plan.ranks
        ],
        "content": profile.content.model_dump(exclude_none=True),
        "layout": profile.layout.model_dump(exclude_none=True),
        "connectors": list(profile.engine.connectors),
        "identity": "unverified" if plan.missing else "verified",
        "missing": {name: plan.why.get(name, "") for name in plan.missing},
    }


def told(document: dict[str, Any]) -> str:
    """One event of `kvledger attach` for a person."""
    if document["state"] == "note":
        return str(document["note"])
    if document["state"] != "learned":
        return sentence(document)
    lines = [f"{document['worker']}: vLLM {document['version'] or '(no version)'}, model {document['model']}"]
    for at in document["ranks"]:
        replay = at["replay"] or "none: nothing can be confirmed, lookups need basis unconfirmed"
        lines.append(f"  rank {at['rank']}: events {at['endpoint']}, replay {replay}, topic {at['topic']!r}")
    for name, revision in document["adapters"].items():
        lines.append(f"  adapter {name}: {revision or 'revision not known, unverified'}")
    lines += [f"  {name} = {value}" for name, value in document["content"].items()]
    lines.append(f"  identity {document['identity']}")
    lines += [f"    {name} is not known: {why}; --set {name}=…" for name, why in document["missing"].items()]
    return "\n".join(lines)


def _given(profile: Path | None, settings: list[str]) -> EngineProfile:
    from kvledger.attachment.profile_merge import with_settings
    from kvledger.engine_profile import EngineProfile, load_profile

    return with_settings(load_profile(profile) if profile is not None else EngineProfile(), settings)


def _wanted(
    url: str,
    worker: str | None,
    events: str | None,
    replay: str | None,
    topic: str | None,
    ranks: int,
    given: EngineProfile,
    model_dir: Path | None,
    weights: str | None,
    api_key_file: Path | None,
) -> Wanted:
    from kvledger.attachment.plan import Wanted
    from kvledger.keyfile import read_key

    if not is_http(url):
        raise _usage(f"{url!r} must be an http:// or https:// URL, as in http://127.0.0.1:8000")
    for name, address in (("--events", events), ("--replay", replay)):
        if address is not None and not is_socket(address):
            raise _usage(f"{name} {address!r} is no tcp://host:port and no ipc://path")
    if weights is not None and not (weights.isprintable() and 0 < len(weights) <= 200):
        raise _usage("--weights is a name of at most 200 characters")
    if events is None and (replay is not None or topic is not None or ranks != 1):
        raise _usage("--replay, --topic and --ranks go with --events; without it the engine is asked")
    return Wanted(
        url=url.rstrip("/"),
        worker=worker,
        events=events,
        replay=replay,
        topic=topic,
        ranks=ranks,
        model_dir=model_dir,
        weights=weights,
        given=given,
        api_key=read_key(api_key_file),
    )


def _usage(message: str) -> CommandError:
    return CommandError(message, advice="kvledger attach --help", exit_code=ExitCode.USAGE)
