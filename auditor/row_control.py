"""What `kv.control`, `kv.audit` and `kv.quota` make of the index's tables, by the auditor's own reading.

A row is a dictionary named like its columns; `offset` is that of the record that last touched it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from auditor.registry import ControlFold, EpochRegistered
from events.chain import sha256
from events.codec import decode_audit, decode_control, decode_quota
from events.errors import DecodeError
from events.ids import KeyId, Role, StreamKey
from events.kafka.connection import RawRecord
from events.model.audit import AuditStatement, Checkpoint, QuotaState, VerdictGiven
from events.model.control import (
    ControlRecord,
    DeletionRequested,
    DomainAdmitted,
    DomainCreated,
    DomainScope,
    ExitAttested,
    Fenced,
    HolderDestroyed,
    HolderEnrolled,
    IdsScope,
    InvalidationRequested,
    LimitSet,
    PrefixScope,
    Registered,
    Scope,
    SubjectScope,
    TenantScope,
)
from events.scope import scoped_ids
from events.signing import Verify

LAST_MS = 253_402_300_799_000
_STATEMENT: TypeAdapter[AuditStatement] = TypeAdapter(AuditStatement)


class RowOf(NamedTuple):
    """A row as it has to be. A value may be a set: any of them will do."""

    offset: int
    values: Mapping[str, Any]


def moment(ms: int) -> datetime:
    """A writer's clock inside what a timestamp can hold."""
    return datetime.fromtimestamp(min(max(ms, 0), LAST_MS) / 1_000, UTC)


@dataclass(slots=True)
class ControlRows:
    """`kv.control` up to `fold.next_offset`, and the rows that it makes, by key."""

    verify: Verify
    fold: ControlFold = field(init=False)
    last_sha256: bytes = b""
    domains: dict[str, RowOf] = field(default_factory=dict)
    limits: dict[tuple[str, str, str], RowOf] = field(default_factory=dict)
    stores: dict[str, RowOf] = field(default_factory=dict)
    orders: dict[int, tuple[ControlRecord, Scope]] = field(default_factory=dict)
    touched: dict[StreamKey, int] = field(default_factory=dict)
    written_ms: dict[StreamKey, int] = field(default_factory=dict)
    newest: dict[tuple[str, int], int] = field(default_factory=dict)
    """The epoch_no that stands, by (worker, rank)."""

    def __post_init__(self) -> None:
        self.fold = ControlFold(self.verify)

    def feed(self, record: RawRecord) -> None:
        """Folds the next record; one that was fed is a no-op."""
        why = self.fold.feed(record.offset, record.value, record.signature)
        if why == "redelivered":
            return
        if why not in ("", "conflicting_registration"):
            return
        told = decode_control(record.value)
        body, offset = told.body, record.offset
        if why:
            assert isinstance(body, Registered)
            self._touch(lambda epoch: epoch.stream == StreamKey(body.worker, body.rank, body.epoch), offset)
            return
        match body:
            case DomainCreated():
                row = {
                    "tenant": body.tenant,
                    "shared": body.shared,
                    "admitted": [],
                    "created_at_offset": offset,
                }
                self.domains[body.domain] = RowOf(offset, row)
            case DomainAdmitted() if body.domain in self.domains:
                known = self.domains[body.domain].values
                admitted = sorted({*known["admitted"], body.tenant})
                self.domains[body.domain] = RowOf(offset, {**known, "admitted": admitted})
            case Registered():
                stream = StreamKey(body.worker, body.rank, body.epoch)
                self.written_ms[stream] = told.header.written_ms
                self.newest[body.worker, body.rank] = offset
                self._touch(lambda epoch: epoch.life[:2] == (body.worker, body.rank), offset)
            case Fenced():
                self.touched[StreamKey(body.worker, body.rank, body.epoch)] = offset
            case ExitAttested():
                self._touch(
                    lambda e: (e.body.worker, e.body.engine_life) == (body.worker, body.engine_life), offset
                )
            case LimitSet():
                row = {"soft": body.soft, "hard": body.hard, "set_at_offset": offset}
                self.limits[body.tenant, body.tier.value, body.unit.value] = RowOf(offset, row)
            case HolderEnrolled():
                gone = body.durable_id in self.fold.stores.destroyed
                row = {"tier": body.tier.value, "owner": body.owner, "destroyed": gone}
                self.stores[body.durable_id] = RowOf(offset, row)
            case HolderDestroyed():
                known_store = self.stores.get(body.durable_id)
                nobody: Mapping[str, Any] = {"tier": None, "owner": None}
                row = {**(nobody if known_store is None else known_store.values), "destroyed": True}
                self.stores[body.durable_id] = RowOf(offset, row)
            case DeletionRequested() | InvalidationRequested():
                self.orders[offset] = (told, body.scope)
            case _:
                return

    def _touch(self, concerned: Callable[[EpochRegistered], bool], offset: int) -> None:
        for stream, epoch in self.fold.epochs.items():
            if concerned(epoch):
                self.touched[stream] = offset

    def superseded(self, stream: StreamKey) -> bool:
        """Whether a later registration of the same (worker, rank) stands."""
        epoch = self.fold.epochs.get(stream)
        return epoch is not None and self.newest[stream.worker, stream.rank] != epoch.epoch_no

    def registrations(self) -> dict[int, RowOf]:
        """By epoch_no."""
        rows: dict[int, RowOf] = {}
        for stream, epoch in self.fold.epochs.items():
            body = epoch.body
            rows[epoch.epoch_no] = RowOf(
                self.touched[stream],
                {
                    "worker": body.worker,
                    "rank": body.rank,
                    "epoch": body.epoch,
                    "engine_life": body.engine_life,
                    "partition": body.partition,
                    "model": body.model,
                    "superseded": self.superseded(stream),
                    "fenced": self.fold.fences.get(stream),
                    "exit_attested": (body.worker, body.engine_life) in self.fold.exits,
                    "registered_at": moment(self.written_ms[stream]),
                },
            )
        return rows

    def requests(self) -> dict[int, RowOf]:
        """Deletions and invalidations, by number."""
        return {number: RowOf(number, self._request(*told)) for number, told in self.orders.items()}

    def _request(self, told: ControlRecord, scope: Scope) -> dict[str, Any]:
        body = told.body
        assert isinstance(body, DeletionRequested | InvalidationRequested)
        tenants, domain = self._place(scope)
        return {
            "kind": "deletion" if isinstance(body, DeletionRequested) else "invalidation",
            "scope_type": scope.type,
            "scope": scope.model_dump(mode="json"),
            "tenant": tenants,
            "domain": domain,
            "scope_ids": sorted(scoped_ids(scope)),
            "requester": body.requester,
            "reason": body.reason,
            "deadline_s": getattr(body, "deadline_s", None),
            "requested_at": moment(told.header.written_ms),
            "record_sha256": told.record_sha256,
        }

    def _place(self, scope: Scope) -> tuple[frozenset[str | None], str | None]:
        """Whose a scope is, and its domain. A sub-domain may get an owner of its own after the request."""
        owner = self.fold.domains.get
        if isinstance(scope, TenantScope):
            return frozenset({scope.tenant}), None
        if isinstance(scope, SubjectScope):
            domain = f"{scope.domain}/{scope.subject}"
            owners = {owner(domain), owner(scope.domain)} - {None}
            return frozenset(owners or {None}), domain
        if isinstance(scope, DomainScope | PrefixScope | IdsScope):
            return frozenset({owner(scope.domain)}), scope.domain
        return frozenset({None}), None


@dataclass(slots=True)
class AuditRows:
    """`kv.audit`: what an auditor's key signed. A key that was revoked since counted for who read it before, so
    that such rows may be there or not (`doubtful`)."""

    verify: Verify
    verdicts: dict[int, RowOf] = field(default_factory=dict)
    checkpoints: dict[int, RowOf] = field(default_factory=dict)
    doubtful: set[int] = field(default_factory=set)
    next_offset: int = 0
    last_sha256: bytes = b""

    def feed(self, record: RawRecord, control: ControlFold) -> None:
        """`control` is read at least as far as when the record was written."""
        self.next_offset, self.last_sha256 = record.offset + 1, sha256(record.value)
        try:
            told = decode_audit(record.value)
            statement = _STATEMENT.validate_json(told.statement)
        except (DecodeError, ValidationError):
            return
        grant = control.grants.get(KeyId(told.signer))
        if grant is None or Role.AUDITOR not in grant.roles:
            return
        if not self.verify(grant.public_key, told.signature, told.statement):
            return
        if grant.revoked_at is not None:
            self.doubtful.add(record.offset)
        if isinstance(statement, VerdictGiven):
            values = {
                "request": statement.request,
                "verdict": statement.verdict.value,
                "reasons": [one.model_dump(mode="json") for one in statement.reasons],
                "frontier": [one.model_dump(mode="json") for one in statement.frontier],
                "bundle_sha256": statement.bundle_sha256,
                "given_at": moment(statement.given_ms),
                "signer": told.signer,
            }
            self.verdicts[record.offset] = RowOf(record.offset, values)
        elif isinstance(statement, Checkpoint):
            values = {
                "positions": [one.model_dump(mode="json") for one in statement.positions],
                "control_hash": statement.control_hash,
                "signer": told.signer,
            }
            self.checkpoints[record.offset] = RowOf(record.offset, values)


QuotaKey = tuple[str, str, str]


@dataclass(slots=True)
class QuotaRows:
    """`kv.quota`: the newest state of each (tenant, tier, unit), and every record as a change of level might show
    it (`told`), with those that were one (`changes`). The topic is compacted, and a controller that was deposed
    may have written late: then which changes the index has seen can't be known (`vague`)."""

    newest: dict[QuotaKey, RowOf] = field(default_factory=dict)
    told: dict[int, RowOf] = field(default_factory=dict)
    changes: set[int] = field(default_factory=set)
    levels: dict[QuotaKey, str] = field(default_factory=dict)
    vague: bool = False
    next_offset: int = 0
    last_sha256: bytes = b""

    def feed(self, record: RawRecord) -> None:
        self.vague = self.vague or record.offset != self.next_offset
        self.next_offset, self.last_sha256 = record.offset + 1, sha256(record.value)
        try:
            quota = decode_quota(record.value)
        except DecodeError:
            return
        key = (quota.tenant, quota.tier.value, quota.unit.value)
        row, before = RowOf(record.offset, _quota(quota)), self.newest.get(key)
        named = dict(zip(("tenant", "tier", "unit"), key, strict=True))
        change = {name: row.values[name] for name in ("used", "soft", "hard", "level")}
        self.told[record.offset] = RowOf(record.offset, {**named, **change})
        if self.levels.get(key) != quota.level.value:
            self.levels[key] = quota.level.value
            self.changes.add(record.offset)
        if before is None or before.values["term"] <= quota.term:
            self.newest[key] = row
        else:
            self.vague = True


def _quota(quota: QuotaState) -> dict[str, Any]:
    return {
        "used": quota.used,
        "soft": quota.soft,
        "hard": quota.hard,
        "level": quota.level.value,
        "shares": [share.model_dump(mode="json") for share in quota.shares],
        "term": quota.term,
    }
