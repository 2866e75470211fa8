"""Where a bridge gets an engine's stream from: a gapless order of messages, and a word on what is missing."""

from __future__ import annotations

from typing import Protocol

from events.hooks.engine_position import Anchor, EngineMessage
from events.hooks.zmq_source import Confirmation, Continuity, SourceItem


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
