"""Learns of a running engine all that a bridge needs: its ranks' sockets, its name, its blocks' identity."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from events.hooks.engine_http import EngineHttp
from kvledger.attachment.address import RankAddress, SourceUnreachableError, given, is_local, resolve
from kvledger.attachment.identity import Learned, learn
from kvledger.attachment.model_file import DigestBook, ModelFiles, ModelFolderError, read_adapter, read_model
from kvledger.attachment.profile_merge import merge
from kvledger.attachment.report import (
    UNNAMED_WEIGHTS,
    EngineRefusedError,
    EngineReport,
    EngineUnreachableError,
    NotAnEngineError,
    read_report,
)
from kvledger.engine_profile import EngineProfile
from kvledger.failure import CommandError, ExitCode

EVENTS_CONFIG = (
    '--kv-events-config \'{"enable_kv_cache_events": true, "publisher": "zmq", '
    '"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657"}\''
)
"""What vLLM is to be started with."""
DIGESTS = "file-digests.json"
NAME = re.compile(r"^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$")
"""A model's name on the Hugging Face hub."""

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a person said of the engine. `events` and `replay` stand for rank 0 of an older engine, `ranks` for
    how many it has. `weights`: what weights are called that were changed in place, where the engine doesn't name
    them. `given`: what is configured of its profile."""

    url: str
    worker: str | None = None
    events: str | None = None
    replay: str | None = None
    topic: str | None = None
    ranks: int = 1
    model_dir: Path | None = None
    weights: str | None = None
    given: EngineProfile = field(default_factory=EngineProfile)
    api_key: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """`worker` and the ranks' sockets; `profile` is what was learned and configured; `why`: for each mandatory
    field that is missing, what would tell it."""

    worker: str
    report: EngineReport
    ranks: tuple[RankAddress, ...]
    profile: EngineProfile
    why: dict[str, str]

    @property
    def missing(self) -> tuple[str, ...]:
        return self.profile.missing()


async def make_plan(wanted: Wanted, home: Path, note: Note = lambda _: None) -> Plan:
    """Raises CommandError with what to do: nothing answers (69), no vLLM (69), a key is wanted, the publisher is
    off or can't be reached (78), an older engine's sockets weren't passed (2)."""
    report = await ask(wanted.url, wanted.api_key)
    if wanted.weights is not None:
        named = () if report.weight_version in (None, UNNAMED_WEIGHTS) else (report.weight_version,)
        report = replace(report, weight_version="+".join((*named, wanted.weights)))
    ranks = await addresses(wanted, report)
    book = DigestBook(home / DIGESTS, progress=lambda path, size: note(f"reading {path} ({size:,} bytes)"))
    files = await _files(wanted, report, book, note)
    adapters = await read_adapters(wanted, report, book)
    try:
        learned: Learned = learn(report, files, adapters, len(ranks))
    except NotAnEngineError as error:
        raise _no_engine(error) from error
    profile = merge(learned.profile, wanted.given)
    why = {name: reason for name, reason in learned.why.items() if name in profile.missing()}
    worker = worker_name(wanted.url) if wanted.worker is None else wanted.worker
    return Plan(worker, report, ranks, profile, why)


async def ask(url: str, api_key: str | None = None) -> EngineReport:
    """The engine's report; raises CommandError."""
    try:
        return await read_report(EngineHttp(url, api_key=api_key))
    except EngineUnreachableError as error:
        advice = "is it the engine's HTTP server, and has it loaded its model?"
        raise CommandError(str(error), advice=advice, exit_code=ExitCode.UNAVAILABLE) from error
    except NotAnEngineError as error:
        raise _no_engine(error) from error
    except EngineRefusedError as error:
        advice = "put the engine's --api-key into a file and pass --api-key-file FILE"
        raise CommandError(str(error), advice=advice, exit_code=ExitCode.CONFIGURATION) from error


async def addresses(wanted: Wanted, report: EngineReport) -> tuple[RankAddress, ...]:
    """The sockets of every rank, in order. Raises CommandError."""
    try:
        if wanted.events is not None:
            topic = wanted.topic or ""
            ranks = range(wanted.ranks)
            return tuple(given(wanted.url, rank, wanted.events, wanted.replay, topic) for rank in ranks)
        if report.sources is None:
            raise CommandError(
                f"{_name(report)} does not say where it publishes (no /kv_event_sources before vLLM 0.32)",
                advice="pass what it was started with: --events tcp://HOST:5557 --replay tcp://HOST:5657 "
                "(and --ranks N with data parallelism)",
                exit_code=ExitCode.USAGE,
            )
        on = {
            rank: source
            for rank, source in report.sources.items()
            if source.enable_kv_cache_events and source.publisher == "zmq"
        }
        if not on:
            raise CommandError(
                f"{_name(report)} publishes no cache events",
                advice=f"start it with {EVENTS_CONFIG}",
                exit_code=ExitCode.CONFIGURATION,
            )
        return tuple([await resolve(wanted.url, rank, source) for rank, source in on.items()])
    except SourceUnreachableError as error:
        raise CommandError(str(error), advice=error.advice, exit_code=ExitCode.CONFIGURATION) from error


async def read_adapters(wanted: Wanted, report: EngineReport, book: DigestBook) -> dict[str, str]:
    """Revisions of the adapters whose files are here; the others stay unverified."""
    found: dict[str, str] = {}
    for name, path in report.adapters.items():
        folder = here(path, wanted.url)
        if folder is None:
            continue
        try:
            revision = await asyncio.to_thread(read_adapter, folder, book)
        except ModelFolderError:
            continue
        if revision is not None:
            found[name] = revision
    return found


def worker_name(url: str) -> str:
    """A stable name of an engine that nobody named: its address, as a worker's name may be."""
    bare = url.partition("://")[2].rstrip("/")
    return "".join(
        char if (char.isascii() and char.isalnum()) or char in "._:@/+-" else "_" for char in bare
    )[:200]


async def _files(wanted: Wanted, report: EngineReport, book: DigestBook, note: Note) -> ModelFiles | None:
    folder = wanted.model_dir or here(report.model.root, wanted.url)
    if folder is None:
        for path in cached_snapshots(report.model.root or ""):
            note(f"if the engine loaded it from there: --model-dir {path}")
        return None
    try:
        found = await asyncio.to_thread(read_model, folder, book)
        # When a copy on another machine was written says nothing of the engine's.
        return found if is_local(wanted.url) else replace(found, newest_s=0.0)
    except ModelFolderError as error:
        if wanted.model_dir is not None:
            raise CommandError(str(error), exit_code=ExitCode.CONFIGURATION) from error
        note(f"{error}; --model-dir names another folder")
        return None


def cached_snapshots(name: str) -> list[Path]:
    """Where this machine's Hugging Face cache has a model of that name, if it does."""
    if not NAME.match(name):
        return []
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    try:
        return sorted((home / "hub" / f"models--{name.replace('/', '--')}" / "snapshots").iterdir())
    except OSError:
        return []


def here(path: str | None, url: str) -> Path | None:
    """A folder that the engine names, where it surely means this machine's."""
    if path is None or not path.startswith("/") or not is_local(url):
        return None
    # A folder that this user may not look into is as unknown as one that isn't there.
    return Path(path) if os.path.isdir(path) else None


def _no_engine(error: NotAnEngineError) -> CommandError:
    advice = "give the address that clients send /v1/completions to"
    return CommandError(str(error), advice=advice, exit_code=ExitCode.UNAVAILABLE)


def _name(report: EngineReport) -> str:
    return f"vLLM {report.version} at {report.url}" if report.version else f"the engine at {report.url}"
