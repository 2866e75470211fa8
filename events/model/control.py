"""Records of `kv.control`: a signed header line and a body line, so that a proof can show every header
and only the bodies that concern it. A record's number is its offset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Self

from annotated_types import MinLen
from pydantic import Field, model_validator

from events.ids import Role, Tier, Unit
from events.model.field import (
    MAX_COUNT,
    Count,
    Hex16,
    Hex32,
    Name,
    NamePattern,
    Offset,
    PackedIds,
    Rank,
    Record,
    Text,
)

MAX_MEMBERS = 2_000
"""Members of one inventory record, so that it stays far below a record's limit."""
MAX_RINGS = 200
"""Key rings named in one record."""
MAX_PATTERNS = 1_000
"""Names and patterns of one grant, likewise."""
BOUND_ROLES = frozenset({Role.ENROLMENT, Role.SUPERVISOR})
"""Roles whose grants can be bound: all that they say about one worker or store names it, in a body that every proof
shows."""
Patterns = Annotated[tuple[NamePattern, ...], Field(min_length=1, max_length=MAX_PATTERNS)]


class ControlHeader(Record):
    """`log` is the log's id; `signer` a key id; `role` the grant it acts under; `key_scope` the principal
    to which `idempotency_key` belongs. `written_ms` is the writer's wall clock and is information only."""

    v: Literal[1] = 1
    kind: Name
    log: Name
    signer: Name
    role: Role
    body_sha256: Hex32
    idempotency_key: Name | None = None
    key_scope: Name | None = None
    written_ms: Count


class Genesis(Record):
    """Offset 0 of the log: its id and the operator's public key, signed by that key."""

    kind: Literal["genesis"] = "genesis"
    log: Name
    operator_key: Hex32
    partitions: Annotated[int, Field(gt=0, le=4_096)]


class Granted(Record):
    """The operator gives a key its roles, in place of what it held before; `label` is for people.

    `workers` or `stores` bind it: then it counts only in records about these workers (`registered`, `exit_attested`),
    these stores (`holder_destroyed`, `holder_encrypted`) or both (`holder_enrolled`), and in no other. `prefix*` means
    every name that begins so. What is left out while the other is given is none."""

    kind: Literal["granted"] = "granted"
    public_key: Hex32
    roles: Annotated[tuple[Role, ...], Field(min_length=1)]
    label: Text
    workers: Patterns | None = None
    stores: Patterns | None = None

    @model_validator(mode="after")
    def _can_be_bound(self) -> Self:
        bound = self.workers is not None or self.stores is not None
        if bound and not BOUND_ROLES.issuperset(self.roles):
            raise ValueError("only the roles enrolment and supervisor can be bound to workers or stores")
        return self


class Revoked(Record):
    kind: Literal["revoked"] = "revoked"
    public_key: Hex32


class Registered(Record):
    """Opens one epoch of one (worker, rank) and certifies its key; this record's offset is the `epoch_no`.

    In Kubernetes `pod` is the UID of the pod that the engine runs in, `container` the name of its container there
    and `container_id` the id of this very start of it: what a supervisor's attestation is matched with."""

    kind: Literal["registered"] = "registered"
    worker: Name
    rank: Rank
    epoch: Name
    engine_life: Name
    public_key: Hex32
    partition: Count
    endpoint: Text | None = None
    model: Text | None = None
    pod: Name | None = None
    container: Name | None = None
    container_id: Name | None = None


class Fenced(Record):
    """The stream is no longer eligible; it still owes its acks. A time-out is never death."""

    kind: Literal["fenced"] = "fenced"
    worker: Name
    rank: Rank
    epoch: Name
    evidence: Literal["timeout", "operator", "conflict"]


class ExitAttested(Record):
    """An engine life ended, and its volatile memory with it, by the word of a supervisor or its bridge."""

    kind: Literal["exit_attested"] = "exit_attested"
    worker: Name
    engine_life: Name
    attester: Name
    evidence: Text


class DomainCreated(Record):
    """A set within which blocks may be shared; one owner tenant pays. `subject` makes it a sub-domain."""

    kind: Literal["domain_created"] = "domain_created"
    domain: Name
    tenant: Name
    shared: bool = False


class DomainAdmitted(Record):
    kind: Literal["domain_admitted"] = "domain_admitted"
    domain: Name
    tenant: Name


class SaltBound(Record):
    """A gateway's existing salt names a domain; only its keyed hash is stored."""

    kind: Literal["salt_bound"] = "salt_bound"
    domain: Name
    salt_hmac: Hex32


class HolderEnrolled(Record):
    """Names the worker that owns a durable holder: what its stream says of it counts, what others say is kept
    apart. Another owner is obeyed only when every rank of the old one is fenced or its engine's end attested."""

    kind: Literal["holder_enrolled"] = "holder_enrolled"
    durable_id: Name
    tier: Tier
    owner: Name


class HolderDestroyed(Record):
    kind: Literal["holder_destroyed"] = "holder_destroyed"
    durable_id: Name
    evidence: Text


class HolderEncrypted(Record):
    """All that a durable holder ever held of a domain lies under this key, or under one that was declared before;
    without a `key`, some of it lies unencrypted. Written before anything is stored so. `alias` is the domain's name
    in this store (`events.chain.store_alias`); without one it is whatever belongs to no domain that can be named
    (orphans, unassigned copies). `key` is a storage key's id (`events.keyring.storage_key_id`)."""

    kind: Literal["holder_encrypted"] = "holder_encrypted"
    durable_id: Name
    alias: Hex16 | None = None
    key: Hex16 | None = None


class RingNamed(Record):
    """A key ring (a file, a secret manager, an HSM). Only the `attester`'s key may attest a destruction in it, if one
    is named; else any key with the supervisor's role may."""

    ring: Name
    attester: Hex32 | None = None


class KeyListed(Record):
    """These rings hold a storage key, besides those that earlier records list. What was attested before of a ring
    that is named here no longer counts: so a destruction is taken back."""

    kind: Literal["key_listed"] = "key_listed"
    key: Hex16
    rings: Annotated[tuple[RingNamed, ...], Field(min_length=1, max_length=MAX_RINGS)]

    @model_validator(mode="after")
    def _each_once(self) -> KeyListed:
        if len({one.ring for one in self.rings}) < len(self.rings):
            raise ValueError("a ring is named twice")
        return self


class KeyDestroyed(Record):
    """A storage key is gone from one ring, with every copy of it that was made from there."""

    kind: Literal["key_destroyed"] = "key_destroyed"
    key: Hex16
    ring: Name
    evidence: Text


class LimitSet(Record):
    """None removes that bound."""

    kind: Literal["limit_set"] = "limit_set"
    tenant: Name
    tier: Tier
    unit: Unit
    soft: Count | None = None
    hard: Count | None = None

    @model_validator(mode="after")
    def _ordered(self) -> LimitSet:
        if self.soft is not None and self.hard is not None and self.soft > self.hard:
            raise ValueError("the soft limit lies above the hard one")
        return self


class Placed(Record):
    """Names one domain, or every domain that a tenant owns."""

    domain: Name | None = None
    tenant: Name | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.domain is None) == (self.tenant is None):
            raise ValueError("name either a domain or a tenant")
        return self

    def covers(self, domain: str, owner_tenant: str | None) -> bool:
        """Whether it stands on a domain that this tenant owns."""
        return self.domain == domain if self.tenant is None else self.tenant == owner_tenant


class PolicySet(Placed):
    """Takes the place of the one before for the same domain or tenant; what it leaves out isn't asked for.
    `retain_s`: nothing stays longer, a deletion is requested that often (at least a minute). `prove_within_s`: the
    deadline of deletion requests that name none."""

    kind: Literal["policy_set"] = "policy_set"
    retain_s: Annotated[int, Field(ge=60, le=MAX_COUNT)] | None = None
    prove_within_s: Count | None = None


class HoldSet(Placed):
    """A legal hold: deletion requests that reach the domain, or the tenant's domains, wait visibly while it
    stands."""

    kind: Literal["hold_set"] = "hold_set"
    hold: Name
    reason: Text


class HoldReleased(Record):
    kind: Literal["hold_released"] = "hold_released"
    hold: Name


class TenantScope(Record):
    type: Literal["tenant"] = "tenant"
    tenant: Name


class DomainScope(Record):
    type: Literal["domain"] = "domain"
    domain: Name


class SubjectScope(Record):
    """The sub-domain `domain/subject`, if there is one, and in `domain` itself everything at or below `leaves`: what
    `subject_bound` records name for the `pseudonym` up to `bound_to`, the offset in `kv.subjects` behind the last
    one that was looked at. Without a pseudonym it is the sub-domain alone."""

    type: Literal["subject"] = "subject"
    domain: Name
    subject: Name
    pseudonym: Hex32 | None = None
    leaves: Annotated[PackedIds, MinLen(1)] | None = None
    bound_to: Offset | None = None

    @model_validator(mode="after")
    def _leaves_of_somebody(self) -> Self:
        if self.leaves is not None and self.pseudonym is None:
            raise ValueError("leaves are bound to a pseudonym")
        return self


class PrefixScope(Record):
    """Everything at or below these ids; token ids are hashed before they get here."""

    type: Literal["prefix"] = "prefix"
    domain: Name
    ids: Annotated[PackedIds, MinLen(1)]


class ProfileScope(Record):
    """One content profile, or also `others`: all that were declared of one model revision, say."""

    type: Literal["profile"] = "profile"
    profile: Hex32
    others: Annotated[tuple[Hex32, ...], Field(min_length=1, max_length=1_000)] | None = None


class IdsScope(Record):
    type: Literal["ids"] = "ids"
    domain: Name
    ids: Annotated[PackedIds, MinLen(1)]


Scope = Annotated[
    TenantScope | DomainScope | SubjectScope | PrefixScope | ProfileScope | IdsScope,
    Field(discriminator="type"),
]


class DeletionRequested(Record):
    """`deadline_s` after `written_ms` is when it should be PROVEN; only the deadline line reads clocks."""

    kind: Literal["deletion_requested"] = "deletion_requested"
    scope: Scope
    requester: Name
    reason: Text = ""
    deadline_s: Count | None = None


class InvalidationRequested(Record):
    """Like a deletion, for another reason: a model rollout, an integrity fault, a quota."""

    kind: Literal["invalidation_requested"] = "invalidation_requested"
    scope: Scope
    requester: Name
    reason: Literal["model_rollout", "integrity", "quota", "operator"]


class AuditNonce(Record):
    """Written after every owing holder's ack was read; each live holder answers with a fresh `ack`."""

    kind: Literal["audit_nonce"] = "audit_nonce"
    request: Offset
    nonce: Name


class InventoryMember(Record):
    """A worker that somebody outside saw; with `pod` it was the pod of this UID."""

    worker: Name
    pod: Name | None = None


class MemberGone(Record):
    """Whom an earlier inventory named, and who never ran an engine of this fleet or whose engine has ended without
    having registered: a name that was mistyped, a pod that never started. Without a `pod` all of the worker's."""

    worker: Name
    pod: Name | None = None
    evidence: Text


class InventoryStated(Record):
    """What an outside inventory (a cluster's pods, a list that is kept elsewhere) names as the fleet. A log that
    holds one wants one behind each deletion request, and a member that nobody registered makes it unprovable, until a
    later inventory says that it is `gone`."""

    kind: Literal["inventory_stated"] = "inventory_stated"
    source: Name
    members: Annotated[tuple[InventoryMember, ...], Field(max_length=MAX_MEMBERS)]
    gone: Annotated[tuple[MemberGone, ...], Field(min_length=1, max_length=MAX_MEMBERS)] | None = None


class SchemaEnabled(Record):
    """Hooks write no newer version than the newest of these allows."""

    kind: Literal["schema_enabled"] = "schema_enabled"
    record: Literal["event_batch", "pulse"]
    version: Annotated[int, Field(gt=0)]


class ControllerStarted(Record):
    """This record's offset is the controller's term."""

    kind: Literal["controller_started"] = "controller_started"
    controller: Name


ControlBody = Annotated[
    Genesis
    | Granted
    | Revoked
    | Registered
    | Fenced
    | ExitAttested
    | DomainCreated
    | DomainAdmitted
    | SaltBound
    | HolderEnrolled
    | HolderDestroyed
    | HolderEncrypted
    | KeyListed
    | KeyDestroyed
    | LimitSet
    | PolicySet
    | HoldSet
    | HoldReleased
    | DeletionRequested
    | InvalidationRequested
    | AuditNonce
    | InventoryStated
    | SchemaEnabled
    | ControllerStarted,
    Field(discriminator="kind"),
]

ROLE_OF_KIND: dict[str, frozenset[Role]] = {
    "genesis": frozenset({Role.OPERATOR}),
    "granted": frozenset({Role.OPERATOR}),
    "revoked": frozenset({Role.OPERATOR}),
    "registered": frozenset({Role.ENROLMENT}),
    "holder_enrolled": frozenset({Role.ENROLMENT}),
    "fenced": frozenset({Role.CONTROL}),
    "exit_attested": frozenset({Role.SUPERVISOR}),
    "domain_created": frozenset({Role.CONTROL}),
    "domain_admitted": frozenset({Role.CONTROL}),
    "salt_bound": frozenset({Role.CONTROL}),
    "holder_destroyed": frozenset({Role.SUPERVISOR}),
    "holder_encrypted": frozenset({Role.ENROLMENT}),
    "key_listed": frozenset({Role.CONTROL, Role.OPERATOR}),
    "key_destroyed": frozenset({Role.SUPERVISOR}),
    "limit_set": frozenset({Role.CONTROL}),
    "policy_set": frozenset({Role.CONTROL}),
    "hold_set": frozenset({Role.CONTROL}),
    "hold_released": frozenset({Role.CONTROL}),
    "deletion_requested": frozenset({Role.CONTROL}),
    "invalidation_requested": frozenset({Role.CONTROL}),
    "audit_nonce": frozenset({Role.AUDITOR}),
    "inventory_stated": frozenset({Role.SUPERVISOR}),
    "schema_enabled": frozenset({Role.OPERATOR}),
    "controller_started": frozenset({Role.CONTROL}),
}
"""Who may say what; a record whose signer lacks the role is ignored and reported by every fold."""


@dataclass(frozen=True, slots=True)
class ControlRecord:
    """A decoded record, still unverified; `record_sha256` (of the whole value) is what a receipt or a
    stream's first `prev` names."""

    header: ControlHeader
    header_line: bytes
    body: ControlBody
    record_sha256: bytes
