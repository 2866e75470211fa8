"""The fold of `kv.control`: who may speak, which streams exist, and every order, in their total order.

Records whose signature or role doesn't hold, or that make no sense, are ignored and counted with a reason;
they still advance the running hash. Pure: the signature check is injected.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from heapq import merge

from events.chain import CONTROL_HASH_START, advance_control_hash, sha256
from events.codec import decode_control
from events.errors import DecodeError
from events.fold.registry_state import (
    Deletion,
    Domain,
    Grant,
    Hold,
    Policy,
    Registration,
    StorageKey,
)
from events.ids import KeyId, Role, StreamKey, Tier, Unit
from events.model.control import (
    ROLE_OF_KIND,
    AuditNonce,
    ControlBody,
    ControlHeader,
    ControllerStarted,
    ControlRecord,
    DeletionRequested,
    DomainAdmitted,
    DomainCreated,
    ExitAttested,
    Fenced,
    Genesis,
    Granted,
    HolderDestroyed,
    HolderEncrypted,
    HolderEnrolled,
    HoldReleased,
    HoldSet,
    InvalidationRequested,
    InventoryStated,
    KeyDestroyed,
    KeyListed,
    LimitSet,
    PolicySet,
    ProfileScope,
    Registered,
    Revoked,
    SaltBound,
    SchemaEnabled,
    Scope,
    SubjectScope,
    TenantScope,
)
from events.signing import Verify, key_id

REMEMBERED_HASHES = 65_536
"""Running hashes kept by offset, for comparison with what others say they were."""


@dataclass(slots=True)
class Registry:
    """State of `kv.control` up to `next_offset`. Ask it; `fold` alone changes it."""

    verify: Verify
    next_offset: int = 0
    hash: bytes = CONTROL_HASH_START
    log: str = ""
    partitions: int = 0
    operator: KeyId | None = None
    grants: dict[KeyId, Grant] = field(default_factory=dict)
    registrations: dict[StreamKey, Registration] = field(default_factory=dict)
    current: dict[tuple[str, int], StreamKey] = field(default_factory=dict)
    fenced: dict[StreamKey, str] = field(default_factory=dict)
    exits: dict[tuple[str, str], ExitAttested] = field(default_factory=dict)
    domains: dict[str, Domain] = field(default_factory=dict)
    bound_salts: dict[bytes, str] = field(default_factory=dict)
    durable_owners: dict[str, HolderEnrolled] = field(default_factory=dict)
    destroyed: set[str] = field(default_factory=set)
    encrypted: dict[tuple[str, bytes | None], dict[bytes | None, int]] = field(default_factory=dict)
    """By (durable id, alias): every key that was ever declared, None for none, with the newest offset."""
    storage_keys: dict[bytes, StorageKey] = field(default_factory=dict)
    limits: dict[tuple[str, Tier, Unit], LimitSet] = field(default_factory=dict)
    policies: dict[tuple[str, str], Policy] = field(default_factory=dict)
    """By ("domain", name) or ("tenant", name)."""
    holds: dict[str, Hold] = field(default_factory=dict)
    deletions: dict[int, Deletion] = field(default_factory=dict)
    nonces: dict[int, AuditNonce] = field(default_factory=dict)
    schema: dict[str, int] = field(default_factory=dict)
    controller_term: int = -1
    idempotency: dict[tuple[str, str], int] = field(default_factory=dict)
    signed: set[bytes] = field(default_factory=set)
    """SHA-256 of every header line whose signature held. A copy of one, which anybody who can write to the topic
    can make, is no order of its signer's."""
    ignored: Counter[str] = field(default_factory=Counter)
    hashes: dict[int, bytes] = field(default_factory=dict)
    orders: dict[tuple[str, str], list[Deletion]] = field(default_factory=dict)
    """By what a scope names: ("domain", name), ("tenant", name) or ("everywhere", "")."""

    def fold(self, offset: int, value: bytes, signature: bytes | None) -> tuple[ControlRecord | None, str]:
        """Folds the record at `offset`: (the record, "") if obeyed, else (it or None, why it was ignored).

        An offset below `next_offset` is a redelivery and changes nothing; a jump means that the log has
        lost records and raises ValueError: the caller must stop, kv.control is contiguous.
        """
        if offset < self.next_offset:
            return None, "redelivered"
        if offset > self.next_offset:
            raise ValueError(f"kv.control jumps from {self.next_offset} to {offset}")
        self.hash = advance_control_hash(self.hash, value, signature)
        self.next_offset = offset + 1
        self.hashes[offset] = self.hash
        if len(self.hashes) > REMEMBERED_HASHES:
            del self.hashes[next(iter(self.hashes))]
        record: ControlRecord | None = None
        try:
            record = decode_control(value)
        except DecodeError as error:
            why = error.reason
        else:
            line_sha256 = sha256(record.header_line)
            why = "repeated_record" if line_sha256 in self.signed else ""
            why = why or self._unauthorised(offset, record, signature)
            if not why:
                self.signed.add(line_sha256)
                why = self._obey(offset, record)
        if why:
            self.ignored[why] += 1
        return record, why

    def owner(self, domain: str) -> str | None:
        """The tenant that owns a domain; None if nobody created it."""
        known = self.domains.get(domain)
        return known.tenant if known else None

    def registration_of(self, stream: StreamKey) -> Registration | None:
        return self.registrations.get(stream)

    def superseded(self, stream: StreamKey) -> bool:
        """Whether a later registration of the same (worker, rank) stands."""
        return self.current.get((stream.worker, stream.rank)) != stream

    def ended(self, stream: StreamKey) -> bool:
        """Whether the end of the engine life that the stream was registered with is attested."""
        known = self.registrations.get(stream)
        return known is not None and (stream.worker, known.body.engine_life) in self.exits

    def stands(self, worker: str) -> bool:
        """Whether any rank of the worker is registered, not fenced, and not of an engine whose end is attested:
        then the durable holders it owns don't move. A worker that has closed is fenced before they do."""
        return any(
            name == worker and stream not in self.fenced and not self.ended(stream)
            for (name, _), stream in self.current.items()
        )

    def contradicts(self, offset: int, running: bytes) -> bool:
        """Whether somebody's running hash at an offset is of another log than this one; an offset that isn't
        read yet, or no longer remembered, contradicts nothing."""
        return self.hashes.get(offset, running) != running

    def deletions_of(self, domain: str) -> list[Deletion]:
        """Deletions and invalidations whose scope can cover blocks of the domain, oldest first. The cost is
        that of the domain's own orders."""
        return list(merge(*self.order_lists(domain), key=lambda order: order.number))

    def order_lists(self, domain: str) -> tuple[list[Deletion], list[Deletion], list[Deletion]]:
        """What `deletions_of` is made from: each list is in order and only grows. A domain without an owner
        yet has the same places."""
        owner = self.owner(domain)
        return (
            self.orders.get(("domain", domain), []),
            self.orders.get(("tenant", owner), []) if owner is not None else [],
            self.orders.get(("everywhere", ""), []),
        )

    def held(self, domain: str) -> bool:
        """Whether a legal hold stands on the domain."""
        return bool(self.holds) and bool(self.holds_on(domain))

    def holds_on(self, domain: str) -> list[Hold]:
        """Legal holds that stand on the domain, oldest first."""
        owner = self.owner(domain)
        return [hold for hold in self.holds.values() if hold.body.covers(domain, owner)]

    def policy(self, domain: str) -> Policy | None:
        """The policy that stands on a domain: its own, else its tenant's."""
        own = self.policies.get(("domain", domain))
        return own if own is not None else self.policies.get(("tenant", self.owner(domain) or ""))

    def _unauthorised(self, offset: int, record: ControlRecord, signature: bytes | None) -> str:
        header, body = record.header, record.body
        if signature is None:
            return "unsigned"
        if header.role not in ROLE_OF_KIND[header.kind]:
            return "wrong_role"
        if isinstance(body, Genesis):
            if offset != 0:
                return "second_genesis"
            if key_id(body.operator_key) != header.signer or header.log != body.log:
                return "genesis_malformed"
            return "" if self.verify(body.operator_key, signature, record.header_line) else "bad_signature"
        if self.log and header.log != self.log:
            return "foreign_log"
        why = self.why_not(KeyId(header.signer), header.role, body)
        if why:
            return why
        key = self.grants[KeyId(header.signer)].public_key
        return "" if self.verify(key, signature, record.header_line) else "bad_signature"

    def why_not(self, signer: KeyId, role: Role, body: ControlBody) -> str:
        """Why a record that this key signs now would be ignored for its signer's sake, "" if it would not:
        `events.kafka.control.ControlWriter` asks before it writes, since an ignored record costs later proofs."""
        if isinstance(body, Genesis):  # the one record whose key nobody has granted anything
            if self.next_offset:
                return "second_genesis"
            return "" if key_id(body.operator_key) == signer else "genesis_malformed"
        if not self.log:
            return "no_genesis"
        grant = self.grants.get(signer)
        if grant is None:
            return "unknown_signer"
        if grant.revoked_at is not None:
            return "revoked_signer"
        if role not in grant.roles or role not in ROLE_OF_KIND[body.kind]:
            return "role_not_granted"
        return "" if grant.covers(body) else "outside_grant"

    def _principal(self, header: ControlHeader) -> str:
        """Whose an idempotency key is. A bound key speaks for nobody but itself, so that it can't use up another's."""
        grant = self.grants.get(KeyId(header.signer))
        bound = grant is not None and grant.bound
        return header.signer if bound else header.key_scope or header.signer

    def _obey(self, offset: int, record: ControlRecord) -> str:
        header, body = record.header, record.body
        if header.idempotency_key is not None:
            scoped = (self._principal(header), header.idempotency_key)
            if scoped in self.idempotency:
                return "repeated_idempotency_key"
            self.idempotency[scoped] = offset
        match body:
            case Genesis():
                self.log, self.partitions = body.log, body.partitions
                self.operator = key_id(body.operator_key)
                self.grants[self.operator] = Grant(body.operator_key, frozenset({Role.OPERATOR}))
            case Granted():
                granted = self.grants.get(key_id(body.public_key))
                self.grants[key_id(body.public_key)] = Grant(
                    body.public_key,
                    frozenset(body.roles),
                    workers=body.workers,
                    stores=body.stores,
                    before=granted.held if granted is not None else frozenset(),
                )
            case Revoked():
                grant = self.grants.get(key_id(body.public_key))
                if grant is None or key_id(body.public_key) == self.operator:
                    return "not_revocable"
                grant.revoked_at = offset
            case Registered():
                return self._register(offset, body, record)
            case Fenced():
                stream = StreamKey(body.worker, body.rank, body.epoch)
                if stream not in self.registrations:
                    return "unknown_stream"
                self.fenced.setdefault(stream, body.evidence)
            case ExitAttested():
                self.exits.setdefault((body.worker, body.engine_life), body)
            case DomainCreated():
                if body.domain in self.domains:
                    return "domain_exists"
                self.domains[body.domain] = Domain(body.domain, body.tenant, body.shared, offset)
            case DomainAdmitted():
                if body.domain not in self.domains:
                    return "unknown_domain"
                self.domains[body.domain].admitted.add(body.tenant)
            case SaltBound():
                if body.domain not in self.domains:
                    return "unknown_domain"
                self.bound_salts[body.salt_hmac] = body.domain
            case HolderEnrolled():
                known = self.durable_owners.get(body.durable_id)
                if known is not None and known.owner != body.owner and self.stands(known.owner):
                    return "owner_stands"
                self.durable_owners[body.durable_id] = body
            case HolderDestroyed():
                self.destroyed.add(body.durable_id)
            case HolderEncrypted():
                self.encrypted.setdefault((body.durable_id, body.alias), {})[body.key] = offset
            case KeyListed():
                known_key = self.storage_keys.setdefault(body.key, StorageKey())
                known_key.rings.update((one.ring, (offset, one.attester)) for one in body.rings)
            case KeyDestroyed():
                return self._key_destroyed(offset, body, header.signer)
            case LimitSet():
                self.limits[body.tenant, body.tier, body.unit] = body
            case PolicySet():
                where = ("domain", body.domain) if body.domain is not None else ("tenant", body.tenant or "")
                self.policies[where] = Policy(offset, body, header)
            case HoldSet():
                self.holds[body.hold] = Hold(offset, body, header)
            case HoldReleased():
                if self.holds.pop(body.hold, None) is None:
                    return "unknown_hold"
            case DeletionRequested() | InvalidationRequested():
                order = Deletion(offset, body, header, record.record_sha256)
                self.deletions[offset] = order
                for reached in _reach(body.scope):
                    self.orders.setdefault(reached, []).append(order)
            case AuditNonce():
                if body.request not in self.deletions:
                    return "unknown_request"
                self.nonces[offset] = body
            case InventoryStated():
                pass  # who is missing is the auditor's to say
            case SchemaEnabled():
                self.schema[body.record] = max(body.version, self.schema.get(body.record, 0))
            case ControllerStarted():
                self.controller_term = offset
        return ""

    def _key_destroyed(self, offset: int, body: KeyDestroyed, signer: str) -> str:
        key = self.storage_keys.get(body.key)
        if key is None or body.ring not in key.rings:
            return "unlisted_ring"
        attester = key.rings[body.ring][1]
        if attester is not None and key_id(attester) != signer:
            return "not_its_attester"
        key.ended[body.ring] = offset
        return ""

    def _register(self, offset: int, body: Registered, record: ControlRecord) -> str:
        stream = StreamKey(body.worker, body.rank, body.epoch)
        known = self.registrations.get(stream)
        if known is not None:
            if known.body == body:
                return "repeated_registration"
            self.fenced.setdefault(stream, "conflict")
            return "conflicting_registration"
        if body.partition >= self.partitions:
            return "unknown_partition"
        self.registrations[stream] = Registration(offset, body, record.record_sha256)
        self.current[body.worker, body.rank] = stream
        return ""


def _reach(scope: Scope) -> list[tuple[str, str]]:
    """Where a scope's orders are kept; the same rule as `events.scope.covers_domain`."""
    match scope:
        case TenantScope():
            return [("tenant", scope.tenant)]
        case ProfileScope():
            return [("everywhere", "")]
        case SubjectScope():
            around = [] if scope.leaves is None else [("domain", scope.domain)]
            return [("domain", f"{scope.domain}/{scope.subject}"), *around]
        case _:
            return [("domain", scope.domain)]
