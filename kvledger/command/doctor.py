"""`kvledger doctor`: is what lookups predict what the engine delivers, and if not, why."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvledger.attachment.address import is_socket
from kvledger.command.bridge import is_http
from kvledger.failure import CommandError, ExitCode
from kvledger.settings import load_settings

if TYPE_CHECKING:
    from kvledger.attachment.doctor import Examined
    from kvledger.attachment.report import EngineReport


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(
    url: Annotated[
        str | None, typer.Argument(help="the engine's HTTP server; default: the only one that is attached")
    ] = None,
    events: Annotated[
        str | None, typer.Option(help="publisher of rank 0, for engines before vLLM 0.32: tcp://host:5557")
    ] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="file with the engine's API key")] = None,
    lookup_url: Annotated[
        str | None, typer.Option(help="the lookup service; default: the local stack's")
    ] = None,
    token_file: Annotated[Path | None, typer.Option(help="file with the service's bearer token")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON document")] = False,
) -> None:
    """Send a prompt twice and compare the hit that a lookup predicts between with the engine's own.

    The prompt is random; each rank gets a few of them, of a few blocks. Where both differ the cause is named:
    publisher_off, port, topic, not_attached, left_out, wrong_profile, block_size, hash_mode,
    speculative_decoding, prefix_caching_off, not_told (the engine doesn't say what it found), unknown.

    Exit codes: 0 both agree on every rank, 1 they differ or it can't be told, 64 wrong usage, 69 the engine or
    the lookup service can't be asked, 78 a key is missing.

    Example: kvledger doctor http://127.0.0.1:8000
    """
    from kvledger.attachment.doctor import Lookups, choose, examine
    from kvledger.keyfile import read_key

    if url is not None and not is_http(url):
        raise _usage(f"{url!r} must be an http:// or https:// URL, as in http://127.0.0.1:8000")
    if events is not None and not is_socket(events):
        raise _usage(f"--events {events!r} is no tcp://host:port and no ipc://path")
    if lookup_url is not None and not is_http(lookup_url):
        raise _usage(f"--lookup-url {lookup_url!r} must be an http:// or https:// URL")
    settings = load_settings()
    lookups = Lookups(
        (lookup_url or f"http://127.0.0.1:{settings.lookup_port}").rstrip("/"), read_key(token_file)
    )

    async def run() -> tuple[EngineReport, list[Examined]]:
        engine = await choose(url, lookups)
        return await examine(engine, lookups, settings.home, read_key(api_key_file), events)

    report, ranks = asyncio.run(run())
    document = document_of(report, ranks)
    if as_json:
        typer.echo(json.dumps(document))
    else:
        for line in lines_of(document):
            typer.echo(line)
    if document["outcome"] != "agree":
        raise typer.Exit(ExitCode.FAILED)


def document_of(report: EngineReport, ranks: list[Examined]) -> dict[str, Any]:
    """What was found, as a program may read it."""
    rows = [
        {
            "rank": one.rank,
            "prompt_tokens": one.second.prompt_tokens,
            "predicted_tokens": one.prediction.matched,
            "staleness_ms": one.prediction.staleness_ms,
            "basis": one.prediction.basis or None,
            "identity": one.prediction.identity or None,
            "cached_tokens": one.second.cached,
            "cached_first": one.first.cached,
            "cached_from": one.second.source or None,
            "outcome": "agree" if one.diagnosis.cause is None else "differ",
            "cause": one.diagnosis.cause.value if one.diagnosis.cause is not None else None,
            "why": one.diagnosis.why or None,
            "cure": one.diagnosis.cure or None,
        }
        for one in ranks
    ]
    agree = bool(rows) and all(row["outcome"] == "agree" for row in rows)
    return {
        "url": report.url,
        "version": report.version,
        "model": report.model.id,
        "ranks": rows,
        "outcome": "agree" if agree else "differ",
    }


def lines_of(document: dict[str, Any]) -> list[str]:
    """The same for a person."""
    lines = [f"{document['model']} at {document['url']} (vLLM {document['version'] or 'of no version'})"]
    for row in document["ranks"]:
        predicted, cached = row["predicted_tokens"], row["cached_tokens"]
        age = (
            f"  ({row['staleness_ms']:,.0f} ms old, {row['basis']}, {row['identity']})"
            if predicted is not None
            else ""
        )
        source = {"usage": "usage.prompt_tokens_details", "metrics": "vllm:prefix_cache_hits"}
        lines += [
            f"  rank {row['rank']}: a new prompt of {row['prompt_tokens']} tokens, twice",
            f"    predicted matched_tokens  {'nothing' if predicted is None else predicted}{age}",
            f"    delivered cached_tokens   {'not told' if cached is None else cached}"
            f"  ({source.get(row['cached_from'] or '', 'the engine')})",
        ]
        if row["cause"] is None:
            lines.append("    they agree")
        else:
            lines += [f"    {row['cause']}: {row['why']}", f"    what to do: {row['cure']}"]
    return lines


def _usage(message: str) -> CommandError:
    return CommandError(message, advice="kvledger doctor --help", exit_code=ExitCode.USAGE)
