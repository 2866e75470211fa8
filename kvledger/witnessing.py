"""The witnesses that a home folder names in `witnesses.json`, and asking all of them at once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field

from auditor.anchoring import PolicyError, WitnessPolicy, make_policy
from auditor.checkpoint import Note, NoteSignature
from auditor.main_log import MainLog
from auditor.witness_client import WitnessAddress, WitnessError, ask_witness
from events.model.field import Count, Record
from kvledger.failure import CommandError, ExitCode

FILE = "witnesses.json"
TIMEOUT_S = 10.0


class _Listed(Record):
    url: str
    key: str


class _Listing(Record):
    quorum: Count
    witnesses: tuple[_Listed, ...] = Field(default=())


@dataclass(frozen=True, slots=True)
class Witnesses:
    """Whom to ask, and what a verdict needs of them."""

    policy: WitnessPolicy
    addresses: tuple[WitnessAddress, ...]

    async def ask(self, main: MainLog, head: Note) -> tuple[list[NoteSignature], list[str]]:
        """Cosignatures that the head hasn't got yet, and one line for each witness that gave none."""
        missing = [one for one in self.addresses if not head.signed_by(one.key)]
        answers = await asyncio.gather(
            *(
                asyncio.to_thread(ask_witness, one, head, _last_seen(main, one), main.consistency, TIMEOUT_S)
                for one in missing
            ),
            return_exceptions=True,
        )
        given: list[NoteSignature] = []
        complaints: list[str] = []
        for answer in answers:
            if isinstance(answer, WitnessError):
                complaints.append(str(answer))
            elif isinstance(answer, BaseException):
                raise answer
            else:
                given += answer
        return given, complaints


def _last_seen(main: MainLog, witness: WitnessAddress) -> int:
    """The largest tree that the log knows the witness to have cosigned."""
    return max((size for size, note in main.checkpoints.items() if note.signed_by(witness.key)), default=0)


def load_witnesses(home: Path) -> Witnesses:
    """None at all if there is no file. Raises CommandError for one that can't be used."""
    path = home / FILE
    if not path.exists():
        return Witnesses(WitnessPolicy(), ())
    try:
        listing = _Listing.model_validate_json(path.read_text())
        policy = make_policy([one.key for one in listing.witnesses], listing.quorum)
    except (OSError, ValueError, PolicyError) as error:
        detail = str(error) if isinstance(error, PolicyError) else type(error).__name__
        raise _unusable(path, detail) from error
    addresses = []
    for one, key in zip(listing.witnesses, policy.keys, strict=True):
        if not _is_address(one.url):
            raise _unusable(path, f"{one.url!r} is no http:// or https:// address")
        addresses.append(WitnessAddress(one.url, key))
    return Witnesses(policy, tuple(addresses))


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        return False


def _unusable(path: Path, detail: str) -> CommandError:
    return CommandError(
        f"{path} names no witnesses that can be used: {detail}",
        advice='it holds {"quorum": 1, "witnesses": [{"url": "https://…", "key": "name+id+key"}]}',
        exit_code=ExitCode.CONFIGURATION,
    )
