"""What one record changed, in order: the fold's only output, which every store writes its own way."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from events.fold.state import CopyAttributes
from events.ids import StreamKey, Tier


class Outcome(StrEnum):
    """How a record met its stream. ILLEGAL and UNDECODABLE records also go whole to the dead letters."""

    APPLIED = "applied"
    DUPLICATE = "duplicate"
    EQUIVOCATION = "equivocation"
    CHAIN_BREAK = "chain_break"
    GAP = "gap"
    ILLEGAL = "illegal"
    UNDECODABLE = "undecodable"


@dataclass(frozen=True, slots=True)
class CopiesPut:
    """These copies now exist with these attributes: inserted, or overwritten where they were resident."""

    holder: str
    group: int
    attributes: CopyAttributes
    ids: tuple[bytes, ...]
    parents: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class CopiesDropped:
    """These copies, all resident until now, ended. `reason` keeps apart evicted, deleted, cleared, replaced."""

    holder: str
    group: int
    ids: tuple[bytes, ...]
    reason: str
    request: int | None = None


CopyChange = CopiesPut | CopiesDropped


@dataclass(slots=True)
class Changes:
    """Idempotent by position: a store applies them together with the record's offset or not at all.

    `usage`, `holders`, `profiles`, `standings` name the rows that changed; their values are in the state.
    `resync` asks that somebody with a producer writes a `ResyncRequested`. `overflow`: copies that weren't kept,
    because their holder or stream is at its bound.
    """

    stream: StreamKey
    outcome: Outcome
    detail: str = ""
    copies: list[CopyChange] = field(default_factory=list)
    usage: set[tuple[bytes, Tier]] = field(default_factory=set)
    holders: set[str] = field(default_factory=set)
    profiles: set[tuple[bytes, int]] = field(default_factory=set)
    standings: set[tuple[bytes, int]] = field(default_factory=set)
    block_operations: int = 0
    resync: bool = False
    overflow: int = 0

    @property
    def dead(self) -> bool:
        """Whether the record must be written whole to the dead letters."""
        return self.outcome in (Outcome.ILLEGAL, Outcome.UNDECODABLE)
