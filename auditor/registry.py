"""The auditor's own fold of `kv.control`, written apart from `events.fold.registry`.

It works from full records and from a bundle's partial ones (a body or a whole record withheld, its digests
given), because every record must advance the running hash whoever it concerns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from auditor.grant import KeyGrant
from events.chain import CONTROL_HASH_START, advance_control_hash_by_parts, sha256, split_lines
from events.codec import decode_control
from events.errors import DecodeError
from events.ids import KeyId, Role, StreamKey
from events.model.control import (
    ROLE_OF_KIND,
    AuditNonce,
    ControlBody,
    ControlHeader,
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
    InventoryStated,
    KeyDestroyed,
    KeyListed,
    Registered,
    Revoked,
    Scope,
)
from events.signing import Verify, key_id

REGISTRY_KINDS = frozenset(
    {
        "genesis",
        "granted",
        "revoked",
        "registered",
        "fenced",
        "exit_attested",
        "holder_enrolled",
        "holder_destroyed",
        "holder_encrypted",
        "key_listed",
        "key_destroyed",
        "audit_nonce",
        "inventory_stated",
        "schema_enabled",
        "controller_started",
    }
)
"""Kinds whose bodies every proof shows; the others belong to a tenant."""

COPIED = "repeated_record"
TIMED_KINDS = frozenset(
    {
        "registered",
        "fenced",
        "exit_attested",
        "holder_destroyed",
        "key_listed",
        "key_destroyed",
        "deletion_requested",
        "audit_nonce",
    }
)
"""Kinds that a proof's timeline names."""

WORD_KINDS = frozenset({"exit_attested", "holder_destroyed", "key_destroyed", "hold_set", "hold_released"})
"""Kinds of which a proof tells what was said, and by whom."""


Memory = tuple[str, int, str, int]
"""(worker, rank, engine life, partition)"""


@dataclass(frozen=True, slots=True)
class EpochRegistered:
    """`epoch_no` is the record's offset; `record_sha256` what the stream's record 0 must name as `prev`."""

    epoch_no: int
    body: Registered
    record_sha256: bytes

    @property
    def stream(self) -> StreamKey:
        return StreamKey(self.body.worker, self.body.rank, self.body.epoch)

    @property
    def life(self) -> tuple[str, int, str]:
        """(worker, rank, engine life): whose memory the stream reports."""
        return self.body.worker, self.body.rank, self.body.engine_life

    @property
    def memory(self) -> Memory:
        """Its life, as far as one partition tells of it: what two of them tell has no order."""
        return *self.life, self.body.partition


@dataclass(frozen=True, slots=True)
class RequestRead:
    """A deletion request as obeyed; `number` is its offset."""

    number: int
    scope: Scope
    requester: str
    written_ms: int
    deadline_s: int | None
    key_scope: str | None
    record_sha256: bytes
    reason: str = ""


class RingListed(NamedTuple):
    """A ring that holds a storage key, by the newest record that lists it there. `attester` None: whoever has the
    supervisor's role may attest the key's destruction in it."""

    offset: int
    attester: bytes | None


@dataclass(frozen=True, slots=True)
class Told:
    """An obeyed record that a timeline may name; `written_ms` is its writer's wall clock, for people."""

    offset: int
    kind: str
    subject: str
    written_ms: int


@dataclass(frozen=True, slots=True)
class Word:
    """An obeyed record of WORD_KINDS."""

    offset: int
    header: ControlHeader
    body: ControlBody


@dataclass(frozen=True, slots=True)
class Ignored:
    """A record that no fold obeys. `broken` says that its signature or role didn't hold, `unread` that it
    was signed by a key of ours and yet couldn't be read; either is a fault of the log, the rest is noise."""

    offset: int
    why: str
    broken: bool = False
    unread: bool = False


@dataclass(slots=True)
class ControlFold:
    """State of `kv.control` from its first readable offset; feed it in offset order."""

    verify: Verify
    start: int | None = None
    next_offset: int = 0
    hash: bytes = CONTROL_HASH_START
    hashes: dict[int, bytes] = field(default_factory=dict)
    holes: list[tuple[int, int]] = field(default_factory=list)
    log: str = ""
    partitions: int = 0
    operator_key: bytes = b""
    grants: dict[KeyId, KeyGrant] = field(default_factory=dict)
    epochs: dict[StreamKey, EpochRegistered] = field(default_factory=dict)
    fences: dict[StreamKey, str] = field(default_factory=dict)
    exits: dict[tuple[str, str], int] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    destroyed: dict[str, int] = field(default_factory=dict)
    enrolled: dict[str, int] = field(default_factory=dict)
    owned_since: dict[str, int] = field(default_factory=dict)
    encrypted: dict[tuple[str, bytes | None], list[tuple[int, bytes | None]]] = field(default_factory=dict)
    rings: dict[bytes, dict[str, RingListed]] = field(default_factory=dict)
    key_ends: dict[tuple[bytes, str], int] = field(default_factory=dict)
    domains: dict[str, str] = field(default_factory=dict)
    admissions: set[tuple[str, str]] = field(default_factory=set)
    holds: dict[str, HoldSet] = field(default_factory=dict)
    inventories: dict[int, InventoryStated] = field(default_factory=dict)
    requests: dict[int, RequestRead] = field(default_factory=dict)
    nonces: dict[int, int] = field(default_factory=dict)
    told: list[Told] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    ignored: list[Ignored] = field(default_factory=list)
    withheld: int = 0
    _keys_used: set[tuple[str, str]] = field(default_factory=set)
    _signed: set[bytes] = field(default_factory=set)
    _newest: dict[tuple[str, int], StreamKey] = field(default_factory=dict)

    @property
    def contiguous(self) -> bool:
        """Whether every record from the genesis record on was seen."""
        return self.start == 0 and not self.holes and bool(self.log)

    def feed(self, offset: int, value: bytes, signature: bytes | None) -> str:
        """Folds one whole record; "" if obeyed, else why it was ignored. A repeated offset is a no-op."""
        if self.start is not None and offset < self.next_offset:
            return "redelivered"
        head, rest = split_lines(value)
        self._advance(offset, sha256(head), sha256(rest), sha256(signature or b""))
        if self._copied(sha256(head)):
            return self._ignore(Ignored(offset, COPIED))
        try:
            record = decode_control(value)
        except DecodeError as error:
            ours = any(
                self.verify(grant.public_key, signature or b"", head) for grant in self.grants.values()
            )
            return self._ignore(Ignored(offset, error.reason, unread=ours))
        why = self._unauthorised(offset, record.header, record.header_line, signature, record.body)
        if why:
            return self._ignore(Ignored(offset, why, broken=True))
        self._signed.add(sha256(head))
        why = self._repeated(record.header) or self._obey(
            offset, record.header, record.body, record.record_sha256
        )
        return self._ignore(Ignored(offset, why)) if why else ""

    def feed_withheld(
        self,
        offset: int,
        header: ControlHeader,
        header_line: bytes,
        signature: bytes | None,
        passed_over: str = "",
    ) -> str:
        """Folds a record whose body isn't shown: its signature, role and place in the hash are checked. `passed_over`
        says why its body wasn't obeyed, by the word of whoever withheld it."""
        self._advance(offset, sha256(header_line), header.body_sha256, sha256(signature or b""))
        self.withheld += 1
        if self._copied(sha256(header_line)):
            return self._ignore(Ignored(offset, COPIED))
        why = self._unauthorised(offset, header, header_line, signature, None)
        if why:
            return self._ignore(Ignored(offset, why, broken=True))
        self._signed.add(sha256(header_line))
        why = self._repeated(header) or passed_over
        return self._ignore(Ignored(offset, why)) if why else ""

    def feed_sealed(self, offset: int, digests: tuple[bytes, bytes, bytes], ignored: Ignored | None) -> None:
        """Folds a record of which only the digests (header line, rest, signature) are shown; what was wrong
        with it, if anything, is the word of whoever sealed it."""
        self._advance(offset, *digests)
        self.withheld += 1
        if ignored is not None:
            self._ignore(ignored)
        else:
            self._signed.add(digests[0])

    def reach(self, end: int) -> None:
        """The log ends at `end`: what lies between the last record and there holds none, and nobody can read what
        it held, if it wasn't a transaction's mark. So it is a hole like any other."""
        if self.start is not None and end > self.next_offset:
            self.holes.append((self.next_offset, end - 1))
            self.next_offset = end

    def _answers(self, worker: str) -> bool:
        """Whether some rank's newest epoch of the worker is neither fenced nor of an ended engine."""
        newest = [self.epochs[stream] for (name, _), stream in self._newest.items() if name == worker]
        return any(
            epoch.stream not in self.fences and (worker, epoch.body.engine_life) not in self.exits
            for epoch in newest
        )

    def lives(self) -> Mapping[tuple[str, int, str], list[EpochRegistered]]:
        """Every engine life with its epochs, oldest first."""
        found: dict[tuple[str, int, str], list[EpochRegistered]] = {}
        for epoch in sorted(self.epochs.values(), key=lambda known: known.epoch_no):
            found.setdefault(epoch.life, []).append(epoch)
        return found

    def newest(self, worker: str, rank: int) -> EpochRegistered:
        """The registration that stands for a (worker, rank)."""
        return self.epochs[self._newest[worker, rank]]

    def _advance(self, offset: int, head: bytes, rest: bytes, signature: bytes) -> None:
        if self.start is None:
            self.start = self.next_offset = offset
        if offset > self.next_offset:
            self.holes.append((self.next_offset, offset - 1))
        self.hash = advance_control_hash_by_parts(self.hash, head, rest, signature)
        self.hashes[offset] = self.hash
        self.next_offset = offset + 1

    def _copied(self, head_sha256: bytes) -> bool:
        """Whether the header line has stood in the log before under a signature that held. Anybody who can write to
        the topic can write it again: an order counts where its signer put it, and nowhere else."""
        return head_sha256 in self._signed

    def _ignore(self, ignored: Ignored) -> str:
        self.ignored.append(ignored)
        return ignored.why

    def _repeated(self, header: ControlHeader) -> str:
        if header.idempotency_key is None:
            return ""
        grant = self.grants.get(KeyId(header.signer))
        itself = grant is not None and grant.binding is not None
        used = (header.signer if itself else header.key_scope or header.signer, header.idempotency_key)
        if used in self._keys_used:
            return "repeated_idempotency_key"
        self._keys_used.add(used)
        return ""

    def _unauthorised(
        self,
        offset: int,
        header: ControlHeader,
        line: bytes,
        signature: bytes | None,
        body: ControlBody | None,
    ) -> str:
        if signature is None:
            return "unsigned"
        if header.role not in ROLE_OF_KIND.get(header.kind, frozenset()):
            return "wrong_role"
        if isinstance(body, Genesis):
            if offset != 0:
                return "second_genesis"
            if key_id(body.operator_key) != header.signer or header.log != body.log:
                return "genesis_malformed"
            return "" if self.verify(body.operator_key, signature, line) else "bad_signature"
        if header.log != self.log:
            return "foreign_log" if self.log else "no_genesis"
        why = self.why_not(KeyId(header.signer), header.role, body)
        if why:
            return why
        key = self.grants[KeyId(header.signer)].public_key
        return "" if self.verify(key, signature, line) else "bad_signature"

    def why_not(self, signer: KeyId, role: Role, body: ControlBody | None) -> str:
        """Why a record behind the first, if this key signs it now, is ignored for its signer's sake; "" if it isn't."""
        grant = self.grants.get(signer)
        if grant is None:
            return "unknown_signer"
        if grant.revoked_at is not None:
            return "revoked_signer"
        if role not in grant.roles:
            return "role_not_granted"
        return "" if grant.reaches(body) else "outside_grant"

    def _obey(self, offset: int, header: ControlHeader, body: ControlBody, record_sha256: bytes) -> str:
        match body:
            case Genesis():
                self.log, self.partitions, self.operator_key = body.log, body.partitions, body.operator_key
                self.grants[key_id(body.operator_key)] = KeyGrant(
                    body.operator_key, frozenset({Role.OPERATOR})
                )
            case Granted():
                signer = key_id(body.public_key)
                self.grants[signer] = KeyGrant.of(body, self.grants.get(signer))
            case Revoked():
                grant = self.grants.get(key_id(body.public_key))
                if grant is None or body.public_key == self.operator_key:
                    return "not_revocable"
                grant.revoked_at = offset
            case Registered():
                stream = StreamKey(body.worker, body.rank, body.epoch)
                known = self.epochs.get(stream)
                if known is not None:
                    if known.body == body:
                        return "repeated_registration"
                    self.fences.setdefault(stream, "conflict")
                    return "conflicting_registration"
                if body.partition >= self.partitions:
                    return "unknown_partition"
                self.epochs[stream] = EpochRegistered(offset, body, record_sha256)
                self._newest[body.worker, body.rank] = stream
            case Fenced():
                stream = StreamKey(body.worker, body.rank, body.epoch)
                if stream not in self.epochs:
                    return "unknown_stream"
                self.fences.setdefault(stream, body.evidence)
            case ExitAttested():
                self.exits[body.worker, body.engine_life] = offset
            case HolderEnrolled():
                known_owner = self.owners.get(body.durable_id, body.owner)
                if known_owner != body.owner and self._answers(known_owner):
                    return "owner_stands"
                if self.owners.get(body.durable_id) != body.owner:
                    self.owned_since[body.durable_id] = offset
                self.owners[body.durable_id] = body.owner
                self.enrolled[body.durable_id] = offset
            case HolderDestroyed():
                self.destroyed[body.durable_id] = offset
            case HolderEncrypted():
                self.encrypted.setdefault((body.durable_id, body.alias), []).append((offset, body.key))
            case KeyListed():
                listed = ((one.ring, RingListed(offset, one.attester)) for one in body.rings)
                self.rings.setdefault(body.key, {}).update(listed)
            case KeyDestroyed():
                ring = self.rings.get(body.key, {}).get(body.ring)
                if ring is None:
                    return "unlisted_ring"
                if ring.attester is not None and key_id(ring.attester) != header.signer:
                    return "not_its_attester"
                self.key_ends[body.key, body.ring] = offset
            case DomainCreated():
                if body.domain in self.domains:
                    return "domain_exists"
                self.domains[body.domain] = body.tenant
            case DomainAdmitted():
                self.admissions.add((body.domain, body.tenant))
            case HoldSet():
                self.holds[body.hold] = body
            case HoldReleased():
                if self.holds.pop(body.hold, None) is None:
                    return "unknown_hold"
            case DeletionRequested():
                self.requests[offset] = RequestRead(
                    offset,
                    body.scope,
                    body.requester,
                    header.written_ms,
                    body.deadline_s,
                    header.key_scope,
                    record_sha256,
                    body.reason,
                )
            case AuditNonce():
                self.nonces[offset] = body.request
            case InventoryStated():
                self.inventories[offset] = body
            case _:
                pass  # limits, policies, salts, invalidations, schema and terms decide no verdict
        if body.kind in WORD_KINDS:
            self.words.append(Word(offset, header, body))
        subject = _timed(body)
        if subject:
            self.told.append(Told(offset, body.kind, subject, header.written_ms))
        return ""


def _timed(body: ControlBody) -> str:
    """Whom a record concerns that every bundle shows and a timeline names; "" for all others."""
    match body:
        case Registered() | Fenced():
            return str(StreamKey(body.worker, body.rank, body.epoch))
        case ExitAttested():
            return f"{body.worker} {body.engine_life}"
        case HolderDestroyed():
            return body.durable_id
        case KeyListed():
            return body.key.hex()
        case KeyDestroyed():
            return f"{body.key.hex()} in {body.ring}"
        case DeletionRequested():
            return body.requester
        case AuditNonce():
            return f"request {body.request}"
        case _:
            return ""
