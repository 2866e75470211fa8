"""The auditor's own fold of `kv.control`, written apart from `events.fold.registry`.

It works from full records and from a bundle's partial ones (a body or a whole record withheld, its digests
given), because every record must advance the running hash whoever it concerns. Whose record counts is the rule of
`auditor.authority`, what one says of a durable store goes to `auditor.durable_store`, and what people are told of it to
`auditor.timeline`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from auditor.authority import Authority
from auditor.durable_store import DurableStores
from auditor.grant import KeyGrant
from auditor.timeline import Timeline
from events.chain import CONTROL_HASH_START, advance_control_hash_by_parts, sha256, split_lines
from events.codec import decode_control
from events.errors import DecodeError
from events.ids import KeyId, Role, StreamKey
from events.model.control import (
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
from events.signing import Verify

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
    authority: Authority = field(init=False)
    partitions: int = 0
    epochs: dict[StreamKey, EpochRegistered] = field(default_factory=dict)
    fences: dict[StreamKey, str] = field(default_factory=dict)
    exits: dict[tuple[str, str], int] = field(default_factory=dict)
    stores: DurableStores = field(default_factory=DurableStores)
    domains: dict[str, str] = field(default_factory=dict)
    admissions: set[tuple[str, str]] = field(default_factory=set)
    holds: dict[str, HoldSet] = field(default_factory=dict)
    inventories: dict[int, InventoryStated] = field(default_factory=dict)
    requests: dict[int, RequestRead] = field(default_factory=dict)
    nonces: dict[int, int] = field(default_factory=dict)
    timeline: Timeline = field(default_factory=Timeline)
    ignored: list[Ignored] = field(default_factory=list)
    withheld: int = 0
    _newest: dict[tuple[str, int], StreamKey] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.authority = Authority(self.verify)

    @property
    def log(self) -> str:
        """Which log it is, by its genesis record; "" before that."""
        return self.authority.log

    @property
    def operator_key(self) -> bytes:
        """Whose log it is, by its genesis record."""
        return self.authority.operator_key

    @property
    def grants(self) -> Mapping[KeyId, KeyGrant]:
        """Every key that was ever granted, by its newest grant."""
        return self.authority.grants

    @property
    def contiguous(self) -> bool:
        """Whether every record from the genesis record on was seen."""
        return self.start == 0 and not self.holes and bool(self.log)

    def feed(self, offset: int, value: bytes, signature: bytes | None) -> str:
        """Folds one whole record; "" if obeyed, else why it was ignored. A repeated offset is a no-op."""
        if self.start is not None and offset < self.next_offset:
            return "redelivered"
        head, rest = split_lines(value)
        head_sha256 = sha256(head)
        self._advance(offset, head_sha256, sha256(rest), sha256(signature or b""))
        why = self.authority.copied(head_sha256)
        if why:
            return self._ignore(Ignored(offset, why))
        try:
            record = decode_control(value)
        except DecodeError as error:
            ours = self.authority.signed_by_ours(head, signature)
            return self._ignore(Ignored(offset, error.reason, unread=ours))
        header, body = record.header, record.body
        why = self.authority.unauthorised(offset, header, record.header_line, signature, body)
        if why:
            return self._ignore(Ignored(offset, why, broken=True))
        why = self.authority.count(header, head_sha256)
        why = why or self._obey(offset, header, body, record.record_sha256)
        if why:
            return self._ignore(Ignored(offset, why))
        self.timeline.take(offset, header, body)
        return ""

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
        head_sha256 = sha256(header_line)
        self._advance(offset, head_sha256, header.body_sha256, sha256(signature or b""))
        self.withheld += 1
        why = self.authority.copied(head_sha256)
        if why:
            return self._ignore(Ignored(offset, why))
        why = self.authority.unauthorised(offset, header, header_line, signature, None)
        if why:
            return self._ignore(Ignored(offset, why, broken=True))
        why = self.authority.count(header, head_sha256) or passed_over
        return self._ignore(Ignored(offset, why)) if why else ""

    def feed_sealed(self, offset: int, digests: tuple[bytes, bytes, bytes], ignored: Ignored | None) -> None:
        """Folds a record of which only the digests (header line, rest, signature) are shown; what was wrong
        with it, if anything, is the word of whoever sealed it."""
        self._advance(offset, *digests)
        self.withheld += 1
        if ignored is not None:
            self._ignore(ignored)
        else:
            self.authority.note(digests[0])

    def reach(self, end: int) -> None:
        """The log ends at `end`: what lies between the last record and there holds none, and nobody can read what
        it held, if it wasn't a transaction's mark. So it is a hole like any other."""
        if self.start is not None and end > self.next_offset:
            self.holes.append((self.next_offset, end - 1))
            self.next_offset = end

    def why_not(self, signer: KeyId, role: Role, body: ControlBody | None) -> str:
        """See `Authority.why_not`: a writer asks its fold."""
        return self.authority.why_not(signer, role, body)

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

    def _ignore(self, ignored: Ignored) -> str:
        self.ignored.append(ignored)
        return ignored.why

    def _obey(self, offset: int, header: ControlHeader, body: ControlBody, record_sha256: bytes) -> str:
        match body:
            case Genesis():
                self.authority.begin(body)
                self.partitions = body.partitions
            case Granted():
                self.authority.grant(body)
            case Revoked():
                return self.authority.revoke(offset, body)
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
                return self.stores.enrol(offset, body, self._answers)
            case HolderDestroyed():
                self.stores.destroy(offset, body)
            case HolderEncrypted():
                self.stores.encrypt(offset, body)
            case KeyListed():
                self.stores.list_key(offset, body)
            case KeyDestroyed():
                return self.stores.end_key(offset, header.signer, body)
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
        return ""

    def _answers(self, worker: str) -> bool:
        """Whether some rank's newest epoch of the worker is neither fenced nor of an ended engine."""
        newest = [self.epochs[stream] for (name, _), stream in self._newest.items() if name == worker]
        return any(
            epoch.stream not in self.fences and (worker, epoch.body.engine_life) not in self.exits
            for epoch in newest
        )
