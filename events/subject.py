"""Which leaves a data subject's `subject_bound` records name. Pure; writers and readers share it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Protocol

from pydantic import StringConstraints, TypeAdapter

from events.codec import decode_subject
from events.errors import DecodeError
from events.ids import Role
from events.signing import Verify

MAX_LEAVES = 40_000
"""Leaves of one subject that a request can name: its record must stay below the limit of a record's size."""
SubjectName = Annotated[str, StringConstraints(min_length=1, max_length=2_000)]
"""A data subject as its gateway calls it, taken to the letter, or its pseudonym: what can be bound can be deleted."""
_PSEUDONYM = re.compile(r"^[0-9a-f]{64}\Z")


class Granted(Protocol):
    """A grant of either fold of `kv.control`."""

    @property
    def public_key(self) -> bytes: ...

    @property
    def held(self) -> frozenset[Role]:
        """Every role that the key holds or ever held: a newer grant replaces what it may say, not what it has said."""


_NAMES = TypeAdapter[str](SubjectName)


def subject_name(text: str) -> str:
    """The name as it was given, if it can be one. Raises ValueError (pydantic's ValidationError)."""
    return _NAMES.validate_python(text)


def given_pseudonym(subject: str) -> bytes | None:
    """The pseudonym itself, if that is what somebody gave instead of a name."""
    return bytes.fromhex(subject) if _PSEUDONYM.match(subject) else None


@dataclass(slots=True)
class Bindings:
    """Collects one subject's leaves from the raw records of `kv.subjects`, whose order doesn't matter. A record
    counts if a key signed it that holds the control role, or held it: a word too many only widens a scope."""

    domain: str
    pseudonym: bytes
    keys: tuple[bytes, ...]
    verify: Verify
    leaves: set[bytes] = field(default_factory=set)
    ignored: int = 0
    unread: int = 0
    """Of the ignored: those that such a key signed and that can't be read, by a newer version perhaps."""

    @classmethod
    def of(cls, domain: str, pseudonym: bytes, grants: Iterable[Granted], verify: Verify) -> Bindings:
        keys = tuple(grant.public_key for grant in grants if Role.CONTROL in grant.held)
        return cls(domain, pseudonym, keys, verify)

    def take(self, value: bytes, signature: bytes | None) -> None:
        """One record; what nobody signed or nobody can read is counted as ignored."""
        try:
            record = decode_subject(value)
        except DecodeError:
            self.ignored += 1
            self.unread += self._signed(value, signature)
            return
        if record.subject != self.pseudonym or record.domain != self.domain:
            return
        if not self._signed(value, signature):
            self.ignored += 1
            return
        self.leaves.update(record.leaves)

    def _signed(self, value: bytes, signature: bytes | None) -> bool:
        return signature is not None and any(self.verify(key, signature, value) for key in self.keys)
