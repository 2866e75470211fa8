"""Tokens: opaque strings that a client carries and that stand for a log and positions in it."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from pydantic import ValidationError

from events.codec import dump
from events.errors import KvledgerError
from events.model.audit import SnapshotToken


class TokenError(KvledgerError):
    """The string is no token of this kind; the caller drops it and asks without one."""


@dataclass(frozen=True, slots=True)
class Token:
    """`events[p]` and `control` are offsets of the next record to read; an absent partition is 0."""

    log: str
    events: tuple[int, ...] = ()
    control: int = 0

    def encode(self) -> str:
        raw = dump(SnapshotToken(log=self.log, events=self.events, control=self.control))
        return "kvt1." + base64.urlsafe_b64encode(raw).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> Token:
        """Raises TokenError for anything that `encode` did not make."""
        if not text.startswith("kvt1.") or len(text) > 20_000:
            raise TokenError("not a token")
        body = text[5:]
        try:
            raw = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
            parsed = SnapshotToken.model_validate_json(raw)
        except (binascii.Error, ValueError, ValidationError) as error:
            raise TokenError("not a token") from error
        return cls(parsed.log, parsed.events, parsed.control)

    def reached_by(self, other: Token) -> bool:
        """Whether `other` is at or beyond this token everywhere (same log assumed)."""
        events = all(
            at <= (other.events[p] if p < len(other.events) else 0) for p, at in enumerate(self.events)
        )
        return events and self.control <= other.control
