"""Entries of the registry: grants, registrations, domains, deletions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from events.ids import Role, StreamKey
from events.model.control import (
    ControlBody,
    ControlHeader,
    DeletionRequested,
    ExitAttested,
    HolderDestroyed,
    HolderEncrypted,
    HolderEnrolled,
    HoldSet,
    InvalidationRequested,
    PolicySet,
    Registered,
    Scope,
)


@dataclass(slots=True)
class Grant:
    """`revoked_at` is the offset from which the key no longer counts; what it signed before stands. `workers` and
    `stores` as in `Granted`: None in both is a key that isn't bound."""

    public_key: bytes
    roles: frozenset[Role]
    revoked_at: int | None = None
    workers: tuple[str, ...] | None = None
    stores: tuple[str, ...] | None = None
    before: frozenset[Role] = frozenset()

    @property
    def held(self) -> frozenset[Role]:
        """`roles`, and those that older grants gave the key."""
        return self.roles | self.before

    @property
    def bound(self) -> bool:
        return self.workers is not None or self.stores is not None

    def covers(self, body: ControlBody) -> bool:
        """Whether the key may say this, as far as the workers and stores go that it is bound to."""
        if not self.bound:
            return True
        workers, stores = self.workers or (), self.stores or ()
        match body:
            case Registered() | ExitAttested():
                return named(workers, body.worker)
            case HolderEnrolled():
                return named(workers, body.owner) and named(stores, body.durable_id)
            case HolderDestroyed() | HolderEncrypted():
                return named(stores, body.durable_id)
            case _:
                return False


def named(patterns: Sequence[str], name: str) -> bool:
    """Whether one of a grant's patterns is this name, or begins it."""
    return any(name.startswith(one[:-1]) if one.endswith("*") else name == one for one in patterns)


@dataclass(frozen=True, slots=True)
class Registration:
    """`epoch_no` is the record's offset; `record_sha256` is what the stream's record 0 names as `prev`."""

    epoch_no: int
    body: Registered
    record_sha256: bytes

    @property
    def stream(self) -> StreamKey:
        return StreamKey(self.body.worker, self.body.rank, self.body.epoch)


@dataclass(slots=True)
class Domain:
    """`tenant` owns it and pays; `admitted` tenants may read it."""

    name: str
    tenant: str
    shared: bool
    created_at: int
    admitted: set[str] = field(default_factory=set)

    def readable_by(self, tenant: str) -> bool:
        return tenant == self.tenant or tenant in self.admitted


@dataclass(slots=True)
class StorageKey:
    """A key under which durable stores keep blocks. `rings`: the newest listing of each ring, as (offset, key that
    alone may attest); `ended`: the offset of the newest destruction in each that was obeyed."""

    rings: dict[str, tuple[int, bytes | None]] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)

    @property
    def left(self) -> list[str]:
        """Rings that may still hold it."""
        return sorted(ring for ring, (at, _) in self.rings.items() if self.ended.get(ring, -1) < at)


@dataclass(frozen=True, slots=True)
class Hold:
    """A legal hold that stands; `number` is its offset, `header` says who placed it and when."""

    number: int
    body: HoldSet
    header: ControlHeader


@dataclass(frozen=True, slots=True)
class Policy:
    """The newest policy of a domain or tenant; `number` is its offset."""

    number: int
    body: PolicySet
    header: ControlHeader


@dataclass(frozen=True, slots=True)
class Deletion:
    """One numbered request; `number` is its offset in `kv.control`."""

    number: int
    body: DeletionRequested | InvalidationRequested
    header: ControlHeader
    record_sha256: bytes

    @property
    def scope(self) -> Scope:
        return self.body.scope

    @property
    def proves(self) -> bool:
        """Deletions are audited; invalidations are carried out only."""
        return isinstance(self.body, DeletionRequested)
