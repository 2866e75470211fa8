"""Where a bridge gets an engine's stream from: a gapless order of messages, and a word on what is missing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from events.hooks.engine_position import Anchor, EngineMessage
from events.hooks.engine_recovery import EngineSnapshot, Heartbeat


@dataclass(frozen=True, slots=True)
class MessagesLost:
    """Messages `first_seq`…`last_seq` were published and can't be had: the engine's inventory is unknown."""

    first_seq: int
    last_seq: int


class RestartSign(StrEnum):
    """How a new engine life showed. `proven`: the life that was held has surely ended. HISTORY_CUT (the
    engine's buffer begins after our newest record) may also be one life that ran far ahead, and OLD_NUMBER
    (a number passed without its bytes, and nobody to ask) a message overtaken by a replay; they are treated
    alike, because nothing can prove the contrary. NAMED: the engine itself names its lives, and named another.
    """

    SEQ_REUSED = "seq_reused"
    OTHER_BYTES = "other_bytes"
    NO_RECORD = "no_record"
    HISTORY_CUT = "history_cut"
    OLD_NUMBER = "old_number"
    NAMED = "named"

    @property
    def proven(self) -> bool:
        return self not in (RestartSign.HISTORY_CUT, RestartSign.OLD_NUMBER)


@dataclass(frozen=True, slots=True)
class EngineRestarted:
    """A new engine life: all that was held before is void. What follows belongs to the new life."""

    sign: RestartSign
    last_seq: int | None


@dataclass(frozen=True, slots=True)
class ForeignTopic:
    """Somebody else publishes here under `topic`; said once a topic, its messages are left out."""

    topic: str


@dataclass(frozen=True, slots=True)
class UnreadableFrames:
    """A message that isn't one of an engine (frame count only; never its bytes)."""

    frame_count: int


SourceItem = (
    EngineMessage
    | MessagesLost
    | EngineRestarted
    | ForeignTopic
    | UnreadableFrames
    | Heartbeat
    | EngineSnapshot
)


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The engine answered with our newest record byte for byte; `items` are newer: number them, then echo.

    `seq` is the engine's newest sequence number, None if it has published nothing yet.
    """

    seq: int | None
    items: tuple[SourceItem, ...]


@dataclass(frozen=True, slots=True)
class NewEngineLife:
    """A record that we hold isn't the engine's; `items` has the `EngineRestarted`. No echo: ask again."""

    items: tuple[SourceItem, ...]


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """No complete answer in time (or no replay socket). `items` are valid but may be too few: no echo."""

    items: tuple[SourceItem, ...]


Confirmation = Confirmed | NewEngineLife | NoAnswer


class Continuity(StrEnum):
    """Whether the engine is the life that `resume` named: not asked yet, the same, another, or nobody can
    tell, as its buffer begins later."""

    UNASKED = "unasked"
    SAME = "same"
    OTHER = "other"
    UNKNOWABLE = "unknowable"


class EngineSource(Protocol):
    """One engine's messages in its own order, numbered from 0 in each of its lives. Used by one task at a time;
    what a cancelled call has taken is handed out by the next one. See `ZmqSource`, which asks an engine's
    sockets, and `LmcacheSource`, which is fed."""

    @property
    def has_replay(self) -> bool:
        """Whether `confirm` can ever say `Confirmed`."""
        ...

    @property
    def newest(self) -> EngineMessage | None:
        """The newest message taken in this engine life."""
        ...

    @property
    def continuity(self) -> Continuity:
        """Whether the engine is the life that `resume` named."""
        ...

    def resume(self, anchor: Anchor) -> None:
        """Before the first call: a former reader held this record."""
        ...

    def ended(self) -> None:
        """The life that was read is known to be over: what comes next is another one's, from its first record on."""
        ...

    async def receive(self, timeout_s: float) -> list[SourceItem]:
        """What came, in order; empty after `timeout_s` of silence. Holes are told in their place."""
        ...

    async def snapshot(self, timeout_s: float) -> list[EngineMessage] | None:
        """The engine's own whole inventory: batches under the number at which its stream goes on. None: there is
        none to be had."""
        ...

    async def confirm(self, timeout_s: float) -> Confirmation:
        """Whether what was handed out, and the items of the answer, is all that was published when asked."""
        ...
