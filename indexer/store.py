"""The port of the projection: what every store of the index must do. Implementations: `MemoryStore`,
`PostgresStore`; one conformance suite runs on both.

KvledgerError
└── StoreError
    ├── LeaseLostError        another term writes this partition now: drop its state, stop writing
    ├── StoreRefusedError     the store can't hold a value: nothing was written, repeating it is in vain
    └── StoreUnavailableError the store can't be reached: nothing was written or it is not known; retry
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from events.errors import KvledgerError
from events.fold.registry import Registry
from events.fold.state import StreamState, Usage
from events.ids import StreamKey, Tier
from indexer.delta import Delta


class StoreError(KvledgerError):
    """Root of what a store raises."""


class LeaseLostError(StoreError):
    """The partition belongs to a later term; whoever holds this lease forgets it and writes no more."""

    def __init__(self, topic: str, partition: int, term: int) -> None:
        super().__init__(f"{topic}[{partition}] is no longer written by term {term}")
        self.topic, self.partition, self.term = topic, partition, term


class StoreRefusedError(StoreError):
    """The store can't hold what it was given. Nothing was written: the fold's state is ahead of the store's and
    must be loaded again; what was refused goes to the dead letters."""


class StoreUnavailableError(StoreError):
    """The store didn't answer. The same `write` may be repeated: it is applied once."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write one partition until somebody claims it again, and where it stood when claimed."""

    topic: str
    partition: int
    term: int
    next_offset: int
    log_id: str
    last_record_sha256: bytes
    rebuild_until: int = 0


@dataclass(slots=True)
class Snapshot:
    """The whole index at one moment: `positions[p]` is the next offset of partition p of `kv.events`, and
    `last_sha256[p]` the SHA-256 of the record before it, where that is known."""

    log_id: str
    positions: dict[int, int] = field(default_factory=dict)
    states: list[tuple[int, StreamState]] = field(default_factory=list)
    """(partition, state)."""
    last_sha256: dict[int, bytes] = field(default_factory=dict)


UsageRow = tuple[StreamKey, bytes, Tier]
"""(stream, alias, tier)."""


class Store(Protocol):
    """Where the fold's result is kept. All positions are offsets of the next record."""

    async def claim(self, topic: str, partition: int) -> Lease:
        """Takes the partition over: waits for an open transaction of the old owner, adds 1 to the term.
        Every earlier lease of the partition is void from here on."""

    async def holds(self, lease: Lease) -> bool:
        """Whether nobody has claimed the partition since."""

    async def load(self, lease: Lease) -> list[StreamState]:
        """The fold states exactly as the last written delta left them."""

    async def write(self, lease: Lease, delta: Delta) -> None:
        """Applies the delta with its position, all or nothing and once, however often it is repeated.

        Raises LeaseLostError when the partition has a later term or stands elsewhere than
        `delta.first_offset`; StoreRefusedError when a value of it can't be held; StoreUnavailableError when
        the outcome isn't known.
        """

    async def reset(self, lease: Lease, *, log_id: str, start: int, rebuild_until: int) -> Lease:
        """Empties the partition and sets it to `start` of log `log_id`, for a rebuild."""

    async def digest(self, registry: Registry) -> str:
        """`index_digest` over the rows: superseded streams are left out, but for what they reported of durable
        holders."""

    async def usage(self) -> dict[UsageRow, Usage]:
        """All usage rows that aren't zero."""

    async def snapshot(self, topic: str) -> Snapshot:
        """A consistent copy of everything, for readers that then tail the log from its positions."""
