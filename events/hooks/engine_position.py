"""Where a reader stands in an engine's own sequence, and what the next message means there. Pure.

An engine's sequence starts at 0 with each of its lives and names no life, so a number alone says little:
the same number with other bytes is another life.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class EngineMessage:
    """One message as received; `payload` holds token ids: never logged, never stored."""

    topic: str
    seq: int
    payload: bytes = field(repr=False)


class Sighting(StrEnum):
    """What a message is to a reader: see `EnginePosition.sight`."""

    NEXT = "next"
    KNOWN = "known"
    AHEAD = "ahead"
    RESTARTED = "restarted"


class EnginePosition:
    """The newest message taken, and digests of the last `remembered` ones to tell repeats from restarts."""

    __slots__ = ("_digests", "_remembered", "newest")

    def __init__(self, remembered: int = 16_384) -> None:
        self._digests: OrderedDict[int, bytes] = OrderedDict()
        self._remembered = remembered
        self.newest: EngineMessage | None = None

    @property
    def next_seq(self) -> int:
        """The sequence number that would continue this life."""
        return 0 if self.newest is None else self.newest.seq + 1

    def sight(self, message: EngineMessage) -> Sighting:
        """Classify a message and change nothing.

        NEXT continues; KNOWN was taken before, byte for byte (replay and subscription overlap); AHEAD
        leaves a hole from `next_seq` to it; RESTARTED has a number that was used with other bytes, or
        one so old that its bytes are no longer remembered, which cannot be a repeat within one life
        unless the subscription lags by more than `remembered` messages.
        """
        if message.seq > self.next_seq:
            return Sighting.AHEAD
        if message.seq == self.next_seq:
            return Sighting.NEXT
        known = self._digests.get(message.seq) == hashlib.sha256(message.payload).digest()
        return Sighting.KNOWN if known else Sighting.RESTARTED

    def take(self, message: EngineMessage) -> None:
        """Stand at `message`; the caller has sighted it as NEXT, or has reported the hole before it."""
        self._digests[message.seq] = hashlib.sha256(message.payload).digest()
        if len(self._digests) > self._remembered:
            self._digests.popitem(last=False)
        self.newest = message

    def reset(self) -> None:
        """Forget all: a new engine life begins at sequence 0."""
        self._digests.clear()
        self.newest = None
