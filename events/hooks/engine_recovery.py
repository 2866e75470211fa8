"""What engines are about to say beside their events, in one form whatever wire it comes by. Pure.

Open proposals that this fits, none of them in a release: vllm-project/vllm #57789 (an id for a publisher's
lifetime, numbered heartbeats while idle, a compacted snapshot with the number at which the stream goes on),
vllm-project/vllm #50134 (a snapshot on the replay socket, its frames numbered with that number), sgl-project/sglang
#33394 and #34407 (the same by worker: epoch, rank, `resume_seq`). An `EngineAdapter` says how each is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from events.hooks.engine_event import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineBatch,
    EngineHash,
    EngineTier,
)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The publisher lives: `epoch` names its life, everything below `next_seq` was published in it."""

    epoch: str
    next_seq: int


ReadHeartbeat = Callable[[Sequence[bytes]], Heartbeat | None]
"""The frames of a published message -> what they say, None if they are none. Raises nothing: frames that can't be
read are none, and are then read as a message."""


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """The engine's own whole inventory as of just before its message `resume_seq`: `batches` hold its stores,
    parents first, and take helpers among them away again."""

    resume_seq: int
    batches: tuple[EngineBatch, ...] = field(repr=False)

    def resident(self) -> dict[int, dict[EngineHash, int]]:
        """What the GPU holds, by group: how many copies of each hash. What isn't named isn't there."""
        held: dict[int, Counter[EngineHash]] = {}
        for batch in self.batches:
            for event in batch.events:
                if isinstance(event, BlockStored) and event.tier is EngineTier.GPU:
                    held.setdefault(event.group or 0, Counter()).update(event.hashes)
                elif isinstance(event, BlockRemoved) and event.tier is EngineTier.GPU:
                    held.setdefault(event.group or 0, Counter()).subtract(event.hashes)
        return {group: dict(+counter) for group, counter in held.items() if +counter}


def read_snapshot(batches: Sequence[EngineBatch]) -> EngineSnapshot:
    """A snapshot out of its parts, all under the number at which the stream goes on. The clear that a part may
    begin with is for readers that keep nothing: it was no clear of the engine, and must never be told as one."""
    kept = [
        replace(b, events=tuple(e for e in b.events if not isinstance(e, AllBlocksCleared))) for b in batches
    ]
    return EngineSnapshot(batches[0].engine_seq, tuple(kept))
