"""`kvledger bridge`: carry engines' cache events into the log."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from kvledger.attachment.address import is_socket
from kvledger.failure import CommandError, ExitCode
from kvledger.settings import load_settings

if TYPE_CHECKING:
    from kvledger.bridging import EngineAddress


Address = tuple[str, str | None]
"""What an address is called and what it is."""


def register(app: typer.Typer) -> None:
    app.command("bridge")(bridge)


def bridge(
    worker: Annotated[str | None, typer.Option(help="stable name of the engine replica")] = None,
    model: Annotated[str | None, typer.Option(help="model id")] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="ZMQ publisher, for example tcp://127.0.0.1:5557")
    ] = None,
    replay: Annotated[
        str | None, typer.Option(help="ZMQ replay socket; without it nothing is confirmed")
    ] = None,
    rank: Annotated[int, typer.Option(min=0, help="data-parallel rank")] = 0,
    profile: Annotated[
        Path | None, typer.Option(help="from `kvledger profile init`; without it the identity is unverified")
    ] = None,
    domain: Annotated[str, typer.Option(help="domain of requests without a cache_salt")] = "default",
    topic: Annotated[str, typer.Option(help="the engine's topic where several share a socket")] = "",
    engine_url: Annotated[
        str | None, typer.Option(help="the engine's HTTP server, to reset its cache for deletions")
    ] = None,
    agent: Annotated[
        Path | None,
        typer.Option(help="socket of the agent in the engine: its KVLEDGER_AGENT_SOCKET"),
    ] = None,
    advertise: Annotated[str | None, typer.Option(help="the address that routers send requests to")] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file with one [[engine]] table per engine instead of the options"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line per event of the bridge")] = False,
) -> None:
    """Subscribe to engines and write their streams until told to stop (SIGTERM or Ctrl-C).

    A vLLM engine is started with
    --kv-events-config '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557",
    "replay_endpoint": "tcp://*:5558"}'. Its event socket carries prompts: keep it on this machine.

    Example: kvledger bridge --worker w0 --model tiny --endpoint tcp://127.0.0.1:5557 --replay tcp://127.0.0.1:5558
    """
    from kvledger.bridging import run_bridges
    from kvledger.control import or_unavailable

    engines = _engines(
        config, worker, model, endpoint, replay, rank, profile, domain, topic, engine_url, agent, advertise
    )
    settings = load_settings()
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # The client repeats every refused connection; what it means for the stream is said by the hooks.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    logging.getLogger("httpx").setLevel(logging.WARNING)

    def say(document: dict[str, object]) -> None:
        typer.echo(json.dumps(document) if as_json else sentence(document))

    asyncio.run(or_unavailable(lambda: run_bridges(settings, engines, say)))


def _engines(
    config: Path | None,
    worker: str | None,
    model: str | None,
    endpoint: str | None,
    replay: str | None,
    rank: int,
    profile: Path | None,
    domain: str,
    topic: str,
    engine_url: str | None,
    agent: Path | None,
    advertise: str | None,
) -> tuple[EngineAddress, ...]:
    from pydantic import ValidationError

    from kvledger.bridging import EngineAddress, explain, load_engines

    if config is not None:
        if worker or model or endpoint:
            raise CommandError(
                "--config names the engines; leave the other options out", exit_code=ExitCode.USAGE
            )
        engines = load_engines(config)
        for engine in engines:
            _check_addresses(
                f"{config}: engine {engine.worker}: ",
                ("endpoint", engine.endpoint),
                ("replay", engine.replay),
                ("engine_url", engine.engine_url),
            )
        return engines
    if worker is None or model is None or endpoint is None:
        raise CommandError(
            "--worker, --model and --endpoint are needed, or --config",
            advice="kvledger bridge --help",
            exit_code=ExitCode.USAGE,
        )
    _check_addresses("", ("--endpoint", endpoint), ("--replay", replay), ("--engine-url", engine_url))
    try:
        return (
            EngineAddress(
                worker=worker,
                model=model,
                endpoint=endpoint,
                replay=replay,
                rank=rank,
                topic=topic,
                profile=profile,
                domain=domain,
                engine_url=engine_url,
                agent=agent,
                advertise=advertise,
            ),
        )
    except ValidationError as error:
        raise CommandError(explain(error), exit_code=ExitCode.USAGE) from error


def _check_addresses(place: str, endpoint: Address, replay: Address, engine_url: Address) -> None:
    """Raises CommandError for an address that no socket can be connected to."""
    from kvledger.lmcache_input import is_input

    for name, address in (endpoint, replay):
        listens = (name, address) == endpoint and address is not None and is_input(address)
        if address is not None and not is_socket(address) and not listens:
            what = f"{place}{name} {address!r} is no tcp://host:port and no ipc://path"
            raise CommandError(what, advice="kvledger bridge --help", exit_code=ExitCode.USAGE)
    name, url = engine_url
    if url is not None and not is_http(url):
        what = f"{place}{name} must be an http:// or https:// URL, as in http://127.0.0.1:8000"
        raise CommandError(what, advice="kvledger bridge --help", exit_code=ExitCode.USAGE)


def is_http(url: str) -> bool:
    """Whether an HTTP client could ask there. One with a password in it can't be given: the address goes into the
    log, and from there to whoever asks for it."""
    try:
        parts = urlsplit(url)
        plain = "@" not in parts.netloc and not any(char.isspace() or not char.isprintable() for char in url)
        return plain and parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def sentence(document: dict[str, object]) -> str:
    """One event of a bridge for a person."""
    who = f"{document['worker']}/{document['rank']}"
    counts = document.get("counts")
    if isinstance(counts, dict):
        return f"{who}: " + (", ".join(f"{name} {value}" for name, value in counts.items()) or "all is well")
    if document["state"] != "open":
        return f"{who}: {document['state']}"
    missing = document["missing"]
    identity = f"identity {document['identity']}"
    if isinstance(missing, list) and missing:
        identity += f" (missing in the profile: {', '.join(str(name) for name in missing)})"
    return (
        f"{who}: stream {document['stream']} is open; {identity}; basis {document['basis']}; "
        f"history {document['history']}; deletion by {document['deletion']}"
    )
