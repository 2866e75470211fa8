"""What a proof tells people of `kv.control`: when something was ordered or attested, and by whose word. No verdict
rests on it."""

from __future__ import annotations

from dataclasses import dataclass, field

from events.ids import StreamKey
from events.model.control import (
    AuditNonce,
    ControlBody,
    ControlHeader,
    DeletionRequested,
    ExitAttested,
    Fenced,
    HolderDestroyed,
    KeyDestroyed,
    KeyListed,
    Registered,
)

TIMED_KINDS = frozenset(
    {
        "registered",
        "fenced",
        "exit_attested",
        "holder_destroyed",
        "key_listed",
        "key_destroyed",
        "deletion_requested",
        "audit_nonce",
    }
)
"""Kinds that a proof's timeline names."""

WORD_KINDS = frozenset({"exit_attested", "holder_destroyed", "key_destroyed", "hold_set", "hold_released"})
"""Kinds of which a proof tells what was said, and by whom."""


@dataclass(frozen=True, slots=True)
class Told:
    """An obeyed record that a timeline may name; `written_ms` is its writer's wall clock, for people."""

    offset: int
    kind: str
    subject: str
    written_ms: int


@dataclass(frozen=True, slots=True)
class Word:
    """An obeyed record of WORD_KINDS."""

    offset: int
    header: ControlHeader
    body: ControlBody


@dataclass(slots=True)
class Timeline:
    """In offset order."""

    told: list[Told] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)

    def take(self, offset: int, header: ControlHeader, body: ControlBody) -> None:
        """Takes an obeyed record in, if it is one to tell of."""
        if body.kind in WORD_KINDS:
            self.words.append(Word(offset, header, body))
        subject = _timed(body)
        if subject:
            self.told.append(Told(offset, body.kind, subject, header.written_ms))


def _timed(body: ControlBody) -> str:
    """Whom a record concerns that every bundle shows and a timeline names; "" for all others."""
    match body:
        case Registered() | Fenced():
            return str(StreamKey(body.worker, body.rank, body.epoch))
        case ExitAttested():
            return f"{body.worker} {body.engine_life}"
        case HolderDestroyed():
            return body.durable_id
        case KeyListed():
            return body.key.hex()
        case KeyDestroyed():
            return f"{body.key.hex()} in {body.ring}"
        case DeletionRequested():
            return body.requester
        case AuditNonce():
            return f"request {body.request}"
        case _:
            return ""
