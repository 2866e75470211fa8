"""Time stamps of checkpoints: asked for as the settings say, and checked for a reader with the certificate he gives."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kvledger.failure import CommandError, ExitCode
from kvledger.settings import Settings

if TYPE_CHECKING:
    from auditor.anchoring import Anchor
    from auditor.proof import StampStated
    from auditor.timestamp import Authority

TIMEOUT_S = 15.0


async def stamped(settings: Settings, anchor: Anchor | None) -> tuple[Anchor | None, StampStated | None]:
    """The anchor with a time stamp of its checkpoint, and what that says, if an authority is configured. One that
    gives none is a complaint on standard error and no failure. Raises CommandError for settings that can't be used."""
    if settings.tsa_url is None or anchor is None:
        return anchor, None
    from auditor.timestamp import StampError, ask, read_stamp

    if settings.tsa_certificate is None:
        raise CommandError(
            "tsa_url is set and tsa_certificate is not: a stamp that nobody can check is worth nothing",
            advice="set KVLEDGER_TSA_CERTIFICATE to the authority's certificates (PEM)",
            exit_code=ExitCode.CONFIGURATION,
        )
    authority = _authority(settings.tsa_certificate, ExitCode.CONFIGURATION)
    text = anchor.note.text
    try:
        raw = await asyncio.to_thread(ask, settings.tsa_url, text, authority, TIMEOUT_S)
        said = read_stamp(raw, text)
    except StampError as error:
        typer.echo(f"kvledger: no time stamp: {error}", err=True)
        return anchor, None
    typer.echo(f"time-stamped by {said.authority} at {said.time}", err=True)
    return replace(anchor, stamp=raw), said


@dataclass(frozen=True, slots=True)
class StampFound:
    """What came of a file's time stamp. `fault` says why it doesn't count for a reader who asked for it."""

    line: str
    fault: str = ""


def look(anchor: Anchor | None, stated: StampStated | None, certificate: Path | None) -> StampFound:
    """What a verified file's time stamp is worth: checked with the certificate, if the reader gave one. `stated` is
    what the file says of it. Raises CommandError for a certificate that can't be read."""
    from auditor.proof import BundleError

    authority = None if certificate is None else _authority(certificate, ExitCode.USAGE)
    raw = b"" if anchor is None else anchor.stamp
    if anchor is None or not raw:
        if stated is not None:
            raise BundleError("the statement speaks of a time stamp that isn't there")
        missing = "time_stamp_missing: the file carries no time stamp"
        return StampFound("" if certificate is None else f"  {missing}", missing)
    if authority is None and find_spec("rfc3161_client") is None:
        return StampFound(
            "  it carries a time stamp, not looked at: that needs kvledger[timestamp] and --tsa"
        )
    from auditor.timestamp import StampError, check_stamp, read_stamp

    text = anchor.note.text
    try:
        said = read_stamp(raw, text)
        if authority is not None:
            check_stamp(raw, text, authority)
    except StampError as error:
        return StampFound(f"  its time stamp is bad: {error}", f"time_stamp_invalid: {error}")
    if said != stated:
        raise BundleError("the statement says something else of the time stamp than the stamp itself")
    if authority is None:
        return StampFound(f"  says that {said.authority} time-stamped it at {said.time}; --tsa checks that")
    return StampFound(f"  time-stamped by {said.authority} at {said.time}")


def require(found: StampFound, certificate: Path | None) -> None:
    """Raises CommandError if a reader asked for a time stamp that isn't there or doesn't hold."""
    if certificate is not None and found.fault:
        raise CommandError(
            found.fault,
            advice="ask for a file that this authority has stamped",
            exit_code=ExitCode.UNPROVABLE,
        )


def _authority(path: Path, code: ExitCode) -> Authority:
    from auditor.timestamp import Authority, StampError

    try:
        return Authority.from_pem(path.read_bytes())
    except (OSError, StampError) as error:
        raise CommandError(
            f"{path} holds no certificate of a time-stamping authority", exit_code=code
        ) from error
