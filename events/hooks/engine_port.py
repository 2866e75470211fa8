"""What a hook needs of the engine beside its events: a confirmation, removals, load. Ports, no adapter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal, Protocol

from events.errors import KvledgerError
from events.hooks.engine_event import EngineBatch, EngineHash
from events.ids import Basis, Capability, InvalidateReason, Tier
from events.model.control import Scope
from events.model.part import DomainEvent, EngineLoss, Opened, RequestStanding, Statement, StreamEvent
from events.model.signal import Load, PulseChecksum

Parts = Mapping[str, Sequence[DomainEvent]]
"""Events by domain name; the stream's writer turns names into aliases."""
RefusalReason = Literal["no_delete_path", "blocks_in_use", "engine_error", "not_authorised"]


class RestatementOverrunError(KvledgerError):
    """More was stored while a snapshot was being written than can be watched for: begin another one."""

    def __init__(self, snapshot: str) -> None:
        super().__init__(f"snapshot {snapshot} was overrun")
        self.snapshot = snapshot


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The engine had nothing that the hook wasn't fed, at some moment after the question was asked.

    `upto` is the engine's own newest sequence number where its word may be faster than its events (an
    agent): the echo waits until that batch was fed.
    """

    basis: Basis
    upto: int | None = None


@dataclass(frozen=True, slots=True)
class Unanswered:
    """No word in time, or another engine life: no echo."""


Confirmation = Confirmed | Unanswered


@dataclass(frozen=True, slots=True)
class RemovalResult:
    """Outcome of an order to remove. `removed`: no copy of these can be hit any more, those that were not
    there included. `refused` says why nothing could be done and `cure` what would help."""

    removed: tuple[EngineHash, ...] = ()
    refused: RefusalReason | None = None
    cure: str = ""


@dataclass(frozen=True, slots=True)
class ResetResult:
    """Outcome of a whole reset. Unless `refused`, the engine's clear was fed and everything that was fed
    behind it was computed after the reset had begun. `holders`: which the clear emptied; it says nothing of
    others."""

    refused: RefusalReason | None = None
    cure: str = ""
    holders: tuple[str, ...] = (Tier.GPU.value,)


class EnginePort(Protocol):
    """One engine rank, seen by its hook. Every call ends within `timeout_s`, if need be by `Unanswered` or
    `refused`; before it returns it has fed the hook with whatever it learned of the engine's stream."""

    @property
    def capability(self) -> Capability: ...

    @property
    def admission_known(self) -> bool:
        """Whether `feed` is told under which control offset each batch's blocks were admitted."""
        ...

    async def confirm(self, timeout_s: float) -> Confirmation:
        """Whether the hook has all that the engine mutated (`basis: engine`) or published. The question
        begins now: no answer to an earlier one may be reused."""
        ...

    async def remove(self, hashes: Sequence[EngineHash], timeout_s: float, *, request: int) -> RemovalResult:
        """Takes every copy of these out of the cache; only with `Capability.EVICT_BLOCKS`. `request`: number of
        the order, so that who holds such a block now counts as admitted before it."""
        ...

    async def reset(self, timeout_s: float) -> ResetResult:
        """Empties the whole cache and sees it on the wire; only with `Capability.RESET`."""
        ...

    def oldest_running(self) -> int | None:
        """The oldest control offset under which a request that still runs was admitted; None if none runs.
        Meaningful only if `admission_known`."""
        ...

    def load(self) -> Load | None: ...


class Translation(Protocol):
    """What one engine batch, removal or range means in the log: one record's events. `snapshot_due`: the
    stream must be restated soon, a holder or group turned up that record 0 did not declare. `epoch_due`: a
    group is another than the epoch has declared, which would be illegal in it: another epoch must begin."""

    @property
    def stream_events(self) -> Sequence[StreamEvent]: ...

    @property
    def parts(self) -> Parts: ...

    @property
    def snapshot_due(self) -> bool: ...

    @property
    def epoch_due(self) -> bool: ...


class ScopedCopy(Protocol):
    """A hash that a scope covers or may cover; `domain` and `block` None: unassigned or an orphan."""

    @property
    def hash(self) -> EngineHash: ...

    @property
    def holder(self) -> str: ...

    @property
    def group(self) -> int: ...

    @property
    def domain(self) -> str | None: ...

    @property
    def block(self) -> bytes | None: ...


class Translator(Protocol):
    """What a hook uses of an `EngineStream`: the engine's events in the log's words, and the inventory that
    they leave."""

    def open(self, engine_life: str, *, from_birth: bool = True) -> Opened:
        """Begins an epoch; the same life again keeps the inventory, another one begins empty."""
        ...

    def translate(self, batch: EngineBatch, admitted_after: int | None) -> Translation: ...

    def lost(self, first: int, last: int | None) -> EngineLoss: ...

    def whole(self) -> None:
        """All of this life is translated from here on: the volatile holders are known, not partial."""
        ...

    def snapshot(self, name: str) -> Iterator[Translation]:
        """Lazily: each range is as of the moment at which it is yielded. Raises RestatementOverrunError."""
        ...

    def in_scope(self, scope: Scope, domains: Iterable[str]) -> Sequence[ScopedCopy]: ...

    def old(
        self, request: int, scope: Scope, domains: Iterable[str], *, barrier: bool = False
    ) -> Iterator[ScopedCopy]:
        """Lazily, those of `in_scope` that are from before the request; see `deletion_scope.is_old`."""
        ...

    def standing(
        self,
        request: int,
        scope: Scope,
        domains: Sequence[str],
        removed: Mapping[str, int],
        *,
        barrier: bool = False,
    ) -> Mapping[str, RequestStanding]:
        """How the request stands by what is held now, by domain."""
        ...

    def foreign_landings(self) -> Set[str]:
        """Domains in which copies landed, since the last call, that may not have been computed here."""
        ...

    def removed(
        self, hashes: Iterable[EngineHash], request: int | None, *, reason: InvalidateReason
    ) -> Translation: ...

    def checksums(self) -> Sequence[PulseChecksum]: ...

    def statements(self) -> Mapping[str, Sequence[Statement]]: ...

    def orphan_counts(self) -> tuple[int, int]:
        """(orphans, unassigned) over all holders."""
        ...

    def inventory_known(self) -> bool:
        """False while a holder is `partial`: then nobody can say that a copy isn't there."""
        ...

    def durable_known(self) -> bool:
        """The same of the holders that outlive the engine."""
        ...

    def retire_profiles(self, adapter: str | None = None) -> Translation | None:
        """The copies of an adapter, or of all, are void: it was changed in place."""
        ...

    def inspected(self, resident: Mapping[int, Mapping[EngineHash, int]]) -> Translation:
        """The engine's pool was looked at after the last batch translated: copies by group and hash."""
        ...

    def doubtful(self) -> bool:
        """Whether that would teach something."""
        ...

    def reachable_by(self, removal: Capability, *, admission_known: bool) -> bool:
        """Another way to the engine than was declared; True if another `open` must follow."""
        ...

    def retire(self) -> Translation | None:
        """Copies of domains that have left the key ring become `unassigned`; None if no domain has left."""
        ...
