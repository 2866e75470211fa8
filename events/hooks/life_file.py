"""Remembers, across restarts of a bridge, which life of its engine it was attached to.

An engine names no life of its own. The bridge invents a name and keeps it with a record of that life: if the
engine still answers with that record's bytes, it is the same life.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from events.hooks import engine_position

DISCHARGED_KEPT = 10_000
"""Orders told to the next process; an older one that is left out is owed again there."""


@dataclass(frozen=True, slots=True)
class KnownLife:
    """`seq` and `digest` are of one message of that life, as received. `confirmed_after`: newest control
    offset installed when the engine last confirmed, so a later life began after it. `discharged`: orders that
    were discharged in this life; asking the engine for them again could cost a whole reset."""

    life: str
    seq: int
    digest: str
    confirmed_after: int = -1
    discharged: tuple[int, ...] = ()


def digest(payload: bytes) -> str:
    """Names a message's bytes; they hold token ids, so only the digest is kept."""
    return engine_position.digest(payload).hex()


class LifeFile:
    """One file per engine rank. A file that can't be read or written is as good as none: the next start
    takes the engine for a new life, which is safe."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> KnownLife | None:
        try:
            document = json.loads(self._path.read_text())
            seq, named = int(document["seq"]), bytes.fromhex(document["digest"])
            if not 0 <= seq < 1 << 64:
                return None
            return KnownLife(
                str(document["life"]),
                seq,
                named.hex(),
                int(document["confirmed_after"]),
                tuple(int(number) for number in document["discharged"]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def store(self, known: KnownLife) -> None:
        """Replaces the file as a whole; readable by its owner only."""
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            partial = self._path.with_name(f".{self._path.name}.{os.getpid()}")
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                document = asdict(known)
                document["discharged"] = known.discharged[-DISCHARGED_KEPT:]
                json.dump(document, file)
            partial.replace(self._path)
