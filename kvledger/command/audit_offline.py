"""`kvledger audit run --archive URL --offline`: judges from an archive alone, as of its end, no broker reached."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import unquote

import typer

from auditor.archive.alone import ArchivedControl, judge_alone, read_control
from auditor.archive.failure import ArchiveError
from auditor.archive.log_archive import LogArchive
from auditor.archive.store import FsspecStore
from auditor.finding import Verdict
from auditor.live import UnknownRequestError
from events.ids import Role
from events.signing import verify
from kvledger.command.archive import refused
from kvledger.command.audit import chosen, write_bundle
from kvledger.failure import CommandError, ExitCode
from kvledger.keyfile import load_ring, load_signer
from kvledger.settings import Settings
from kvledger.witnessing import load_witnesses


async def audit_offline(
    settings: Settings,
    url: str,
    numbers: list[int] | None,
    *,
    key: bytes | None = None,
    bundle: Path | None = None,
) -> list[Verdict]:
    """Verdicts on requests (None: all; empty: the newest) as of the archive's end. Nothing is asked, written to the
    log or waited for. `key`: the operator's or auditor's public key; None: that of this home's auditor.

    Raises CommandError for an archive that can't be used, an unknown request, or a missing key."""
    trusted = load_signer(settings.home, Role.AUDITOR).public_key if key is None else key
    try:
        store = await asyncio.to_thread(FsspecStore, url)
        found = await asyncio.to_thread(_log_of, store, trusted)
        return await _judge(settings, found, numbers, bundle)
    except ArchiveError as error:
        raise refused(url, error) from error
    except UnknownRequestError as error:
        raise CommandError(
            f"{error}, as far as it is archived", advice="kvledger audit --help", exit_code=ExitCode.USAGE
        ) from error


def _log_of(store: FsspecStore, trusted: bytes) -> ArchivedControl:
    """The one log in the archive that the key vouches for. Raises ArchiveError."""
    why = ArchiveError("archive_missing", "it holds no log")
    for folder in store.folders():
        try:
            return read_control(LogArchive(store, unquote(folder)), trusted, verify)
        except ArchiveError as error:
            if error.reason != "archive_missing" or why.reason == "archive_missing":
                why = error
    raise why


async def _judge(
    settings: Settings, found: ArchivedControl, numbers: list[int] | None, bundle: Path | None
) -> list[Verdict]:
    keys = {name: known.alias_key for name, known in load_ring(settings.home).items()}
    wanted = chosen(numbers, found.main.registry.requests)
    done = await judge_alone(found, wanted, keys, load_witnesses(settings.home).policy, verify)
    for line in done.begins:
        typer.echo(f"kvledger: {line}", err=True)
    positions = ", ".join(f"{at.topic}/{at.partition}@{at.offset}" for at in done.audit.frontier)
    typer.echo(f"kvledger: judged from the archive alone, as of {positions}", err=True)
    if bundle is not None:
        await write_bundle(settings, done.audit, done.verdicts[0], done.anchor, bundle)
    return done.verdicts
