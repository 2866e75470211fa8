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


def digest(payload: bytes) -> bytes:
    """Names a message's bytes; they hold token ids, so only this is kept of them."""
    return hashlib.sha256(b"kvledger engine message v1|" + payload).digest()


@dataclass(frozen=True, slots=True)
class Anchor:
    """A record of the life that a reader was attached to, by number and digest."""

    seq: int
    digest: bytes


class Sighting(StrEnum):
    """What a message is to a reader: see `EnginePosition.sight`."""

    NEXT = "next"
    KNOWN = "known"
    AHEAD = "ahead"
    RESTARTED = "restarted"
    UNREMEMBERED = "unremembered"


class EnginePosition:
    """The newest message taken, and digests of the last `remembered` ones to tell repeats from restarts.

    `anchor`: an older record that whoever answers from now on must have, too, to be the same life: nobody
    has vouched for what lies between it and the newest one.
    """

    __slots__ = ("_digests", "_remembered", "anchor", "newest")

    def __init__(self, remembered: int = 16_384) -> None:
        self._digests: OrderedDict[int, bytes] = OrderedDict()
        self._remembered = remembered
        self.anchor: Anchor | None = None
        self.newest: EngineMessage | None = None

    @property
    def next_seq(self) -> int:
        """The sequence number that would continue this life."""
        return 0 if self.newest is None else self.newest.seq + 1

    def sight(self, message: EngineMessage) -> Sighting:
        """Classify a message and change nothing.

        NEXT continues; KNOWN was taken before, byte for byte (replay and subscription overlap); AHEAD
        leaves a hole from `next_seq` to it; RESTARTED has a number that was used with other bytes.
        UNREMEMBERED has one that was passed without its bytes, or so long ago that they are forgotten: a
        new life, or a message that was overtaken by a replay.
        """
        if message.seq > self.next_seq:
            return Sighting.AHEAD
        if message.seq == self.next_seq:
            return Sighting.NEXT
        known = self._digests.get(message.seq)
        if known is None:
            return Sighting.UNREMEMBERED
        return Sighting.KNOWN if known == digest(message.payload) else Sighting.RESTARTED

    def take(self, message: EngineMessage) -> None:
        """Stand at `message`; the caller has sighted it as NEXT, or has reported the hole before it."""
        self._digests[message.seq] = digest(message.payload)
        if len(self._digests) > self._remembered:
            self._digests.popitem(last=False)
        self.newest = message

    def reset(self) -> None:
        """Forget all: a new engine life begins at sequence 0."""
        self._digests.clear()
        self.anchor = self.newest = None

    def doubt(self) -> None:
        """A hole follows that nobody has vouched for: the newest record becomes the anchor, unless an older
        one is."""
        if self.newest is not None and self.anchor is None:
            self.anchor = Anchor(self.newest.seq, digest(self.newest.payload))
