"""Whole logs made by hand for the auditor: real signed bytes of `kv.control` and `kv.events`, in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from auditor.evidence import Evidence
from auditor.finding import Verdict
from auditor.record import read_record
from auditor.registry import ControlFold
from auditor.verdict import judge
from events.chain import CONTROL_HASH_START, MODULUS, advance_control_hash, sha256
from events.codec import decode_control, encode_batch
from events.ids import Capability, CopyState, GroupKind, InvalidateReason, Inventory, Lineage, Role, Tier
from events.keyring import KeyRing
from events.model.audit import PartitionPosition
from events.model.batch import ControlPosition
from events.model.control import (
    AuditNonce,
    ControlBody,
    DeletionRequested,
    DomainCreated,
    ExitAttested,
    Fenced,
    Registered,
    Scope,
    SubjectScope,
    TenantScope,
)
from events.model.part import (
    Ack,
    BlockInvalidated,
    BlockStored,
    CopyRun,
    DomainEvent,
    Group,
    HolderDeclared,
    HolderInventory,
    Opened,
    RequestStanding,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotPart,
    SnapshotRange,
    Statement,
    StreamEvent,
)
from events.signing import Signer, verify
from tests.support.log import HIGH, LOW, ControlLog, block, declared

DOMAINS = {"acme": "acme", "acme/eu": "acme", "umbrella": "umbrella"}
RING = KeyRing({domain: sha256(b"secret of " + domain.encode()) for domain in DOMAINS})
NEWEST = -1


@dataclass(frozen=True)
class RawEvent:
    value: bytes
    signature: bytes | None


@dataclass
class AuditLog:
    """A log with three domains of two tenants. `events[p]` is partition p, in offset order."""

    control: ControlLog = field(default_factory=ControlLog)
    events: dict[int, list[RawEvent]] = field(default_factory=dict)
    hooks: list[HookStub] = field(default_factory=list)
    starts: dict[int, int] = field(default_factory=dict)
    bound: set[bytes] | None = field(default_factory=set)
    """Leaves that kv.subjects binds to the subject of a request; None: nobody has read it."""
    cut: int = 0
    missing: int = 0
    """What of kv.subjects nobody could read: at which offset it begins, and how many are gone behind that."""

    def __post_init__(self) -> None:
        for domain, tenant in DOMAINS.items():
            self.control.append(DomainCreated(domain=domain, tenant=tenant), Role.CONTROL)

    def say(self, body: ControlBody, role: Role, **more: object) -> int:
        return self.control.append(body, role, **more)  # type: ignore[arg-type]

    def delete(self, scope: Scope | None = None) -> int:
        body = DeletionRequested(scope=scope or TenantScope(tenant="acme"), requester="test")
        return self.say(body, Role.CONTROL)

    def scope_of(self, request: int) -> Scope:
        body = decode_control(self.control.records[request][0]).body
        assert isinstance(body, DeletionRequested)
        return body.scope

    def nonce(self, request: int) -> int:
        return self.say(AuditNonce(request=request, nonce=f"n{len(self.control.records)}"), Role.AUDITOR)

    def hook(
        self,
        worker: str = "w0",
        *,
        rank: int = 0,
        life: str = "life-1",
        epoch: str = "",
        partition: int | None = None,
        signed_by: Signer | None = None,
    ) -> HookStub:
        """Registers an epoch, by the enrolment key or another; the stub writes its stream."""
        epoch = epoch or f"{worker}-e{len(self.hooks)}"
        signer = Signer.from_seed(sha256(epoch.encode()))
        body = Registered(
            worker=worker,
            rank=rank,
            epoch=epoch,
            engine_life=life,
            public_key=signer.public_key,
            partition=len(worker) % 4 if partition is None else partition,
        )
        epoch_no = self.say(body, Role.ENROLMENT, signer=signed_by)
        stub = HookStub(self, worker, epoch, life, epoch_no, body.partition, signer, rank=rank)
        stub.prev = sha256(self.control.records[epoch_no][0])
        self.hooks.append(stub)
        return stub

    def fence(self, hook: HookStub, evidence: str = "timeout", role: Role = Role.CONTROL) -> int:
        body = Fenced(worker=hook.worker, rank=hook.rank, epoch=hook.epoch, evidence=evidence)  # type: ignore[arg-type]
        return self.say(body, role)

    def attest(self, hook: HookStub, role: Role = Role.SUPERVISOR, **more: object) -> int:
        body = ExitAttested(
            worker=hook.worker, engine_life=hook.life, attester="supervisor", evidence="exit 0"
        )
        return self.say(body, role, **more)

    def control_hash(self, offset: int) -> bytes:
        running = CONTROL_HASH_START
        for value, signature in self.control.records[: offset + 1]:
            running = advance_control_hash(running, value, signature)
        return running

    def evidence(
        self,
        request: int,
        ring: Mapping[str, object] | None = None,
        *,
        lost: frozenset[int] = frozenset(),
        backwards: bool = False,
    ) -> Evidence:
        """`backwards`: the partitions are read from the last to the first."""
        registry = ControlFold(verify)
        for offset, (value, signature) in enumerate(self.control.records):
            if offset not in lost:
                registry.feed(offset, value, signature)
        shown = RING if ring is None else ring
        keys = {domain: RING[domain].alias_key for domain in shown}
        evidence = Evidence(registry.requests[request], registry, keys, verify)
        evidence.partition_starts = self.starts
        scope = evidence.request.scope
        if isinstance(scope, SubjectScope) and scope.pseudonym is not None and self.bound is not None:
            known = evidence.scope
            known.bound, known.cut, known.missing = frozenset(self.bound), self.cut, self.missing
        for partition, records in sorted(self.events.items(), reverse=backwards):
            for offset, raw in enumerate(records):
                if offset >= self.starts.get(partition, 0):
                    evidence.feed(read_record(partition, offset, raw.value, raw.signature, evidence.wanted))
        return evidence

    def frontier(self) -> tuple[PartitionPosition, ...]:
        ends = {("kv.control", 0): len(self.control.records)}
        ends |= {("kv.events", p): len(records) for p, records in self.events.items()}
        return tuple(PartitionPosition(topic=t, partition=p, offset=o) for (t, p), o in sorted(ends.items()))

    def verdict(self, request: int) -> Verdict:
        return judge(self.evidence(request), self.frontier())


@dataclass
class HookStub:
    """A truthful hook of one epoch, unless a test makes it lie. `held` is its own inventory by
    (holder, domain); `installed` NEWEST follows the control log's end."""

    log: AuditLog
    worker: str
    epoch: str
    life: str
    epoch_no: int
    partition: int
    signer: Signer
    rank: int = 0
    seq: int = 0
    prev: bytes = b""
    installed: int = NEWEST
    held: dict[tuple[str, str], dict[bytes, int | None]] = field(default_factory=dict)
    keys: KeyRing = field(default_factory=lambda: RING)

    def position(self) -> ControlPosition:
        offset = len(self.log.control.records) - 1 if self.installed == NEWEST else self.installed
        return ControlPosition(offset=offset, hash=self.log.control_hash(offset))

    def write(
        self,
        *stream_events: StreamEvent,
        parts: Mapping[str, Sequence[DomainEvent]] | None = None,
        lost: bool = False,
        signed: bool | None = None,
        signer: Signer | None = None,
        prev: bytes | None = None,
    ) -> RawEvent:
        """The next record; `lost` burns its number, `signed` None signs what the hook would sign."""
        domains = parts or {}
        encoded = encode_batch(
            worker=self.worker,
            rank=self.rank,
            epoch=self.epoch,
            epoch_no=self.epoch_no,
            seq=self.seq,
            prev=self.prev if prev is None else prev,
            control=self.position(),
            stream_events=stream_events,
            parts=[
                (self.keys[domain].alias(self.worker, self.rank, self.epoch_no), events)
                for domain, events in domains.items()
            ],
        )
        kinds = {event.type for event in stream_events} | {e.type for es in domains.values() for e in es}
        if signed is None:
            signed = bool(kinds & {"opened", "snapshot_end", "ack", "refused", "statement", "closed"})
        signature = (signer or self.signer).sign(encoded.header_line) if signed else None
        raw = RawEvent(encoded.value, signature)
        self.seq += 1
        if not lost:
            self.prev = encoded.header_sha256
            self.log.events.setdefault(self.partition, []).append(raw)
        return raw

    def opening(
        self,
        *,
        inventory: Inventory = Inventory.EMPTY,
        durable_id: str | None = None,
        connectors: tuple[str, ...] = (),
        admission_known: bool = True,
        second_tier: bool = False,
    ) -> Opened:
        group = Group(index=0, kind=GroupKind.FULL, block_tokens=16)
        holders = [HolderDeclared(name="gpu", tier=Tier.GPU, groups=(group,), inventory=inventory)]
        if durable_id is not None:
            holders.append(
                HolderDeclared(
                    name="disk", tier=Tier.DISK, durable_id=durable_id, groups=(group,), inventory=inventory
                )
            )
        if second_tier:
            holders.append(HolderDeclared(name="cpu", tier=Tier.CPU, groups=(group,), inventory=inventory))
        return Opened(
            engine_life=self.life,
            engine="test",
            engine_version="1",
            removal=Capability.EVICT_BLOCKS,
            admission_known=admission_known,
            connectors=connectors,
            holders=tuple(holders),
        )

    def open(self, **more: object) -> HookStub:
        self.write(
            self.opening(**more),  # type: ignore[arg-type]
            parts={domain: [declared()] for domain in DOMAINS},
        )
        return self

    def store(
        self,
        domain: str,
        *names: object,
        admitted: int | str | None = "now",
        holder: str = "gpu",
        parent: bytes | None = None,
        lineage: Lineage = Lineage.PREFILL,
        **more: object,
    ) -> list[bytes]:
        """Stores the named blocks as one chain; `admitted` "now" is the newest order installed."""
        ids = [block(domain, name) for name in names]
        after = self.position().offset if admitted == "now" else admitted
        event = BlockStored(
            holder=holder,
            group=0,
            profile=0,
            ids=tuple(ids),
            parent=parent,
            lineage=lineage,
            admitted_after=after,  # type: ignore[arg-type]
        )
        for one in ids:
            self.held.setdefault((holder, domain), {}).setdefault(one, after)  # type: ignore[arg-type]
        self.write(parts={domain: [event]}, **more)  # type: ignore[arg-type]
        return ids

    def remove(
        self, domain: str, ids: Sequence[bytes], request: int | None = None, holder: str = "gpu"
    ) -> None:
        for one in ids:
            self.held.get((holder, domain), {}).pop(one, None)
        event = BlockInvalidated(
            holder=holder, group=0, ids=tuple(ids), reason=InvalidateReason.DELETION, request=request
        )
        self.write(parts={domain: [event]})

    def statement(
        self, domain: str, holder: str = "gpu", *, claimed: Sequence[bytes] | None = None
    ) -> Statement:
        ids = list(self.held.get((holder, domain), {})) if claimed is None else list(claimed)
        total = sum(int.from_bytes(one, "big") for one in ids) % MODULUS
        return Statement(
            holder=holder, group=0, count=len(ids), checksum=total.to_bytes(16, "big"), source="pool"
        )

    def say_state(self, domain: str = "acme") -> RawEvent:
        """A signed statement, which vouches for all that the stream has said before."""
        return self.write(parts={domain: [self.statement(domain)]})

    def obey(self, request: int, *domains: str, keep: Sequence[bytes] = (), **more: Any) -> None:
        """Removes everything older than the request from each domain and acks."""
        for domain in domains or ("acme", "acme/eu"):
            for (holder, name), copies in self.held.items():
                old = [b for b, after in copies.items() if after is None or after < request]
                old = [b for b in old if b not in keep]
                if name == domain and old:
                    self.remove(domain, old, request, holder)
        self.ack(request, *domains, **more)

    def ack(
        self,
        request: int,
        *domains: str,
        nonce: int | None = None,
        old_left: int = 0,
        orphans: int = 0,
        unassigned: int = 0,
        **more: object,
    ) -> RawEvent:
        standing = RequestStanding(
            request=request, removed=0, old_left=old_left, orphans=orphans, unassigned=unassigned
        )
        ack = Ack(requests=(standing,), nonce=nonce)
        parts = {domain: [self.statement(domain), ack] for domain in domains or ("acme", "acme/eu")}
        return self.write(parts=parts, **more)  # type: ignore[arg-type]

    def snapshot(
        self,
        listed: Mapping[str, Mapping[bytes, int | None]] | None = None,
        *,
        inventory: Inventory = Inventory.KNOWN,
        state: CopyState = CopyState.COMMITTED,
        pending: Mapping[bytes, str] | None = None,
        source: Literal["pool"] | None = None,
        between: Sequence[DomainEvent] | None = None,
    ) -> None:
        """Restates `gpu` whole: what the hook holds, or what `listed` claims, by domain. `pending` names the
        transfers of those that haven't landed. With `between`, which acme's part tells next, `cpu` is listed as
        well, behind that and empty."""
        name = f"s{self.seq}"
        copies = listed
        if copies is None:
            copies = {domain: held for (holder, domain), held in self.held.items() if holder == "gpu"}
        start = self.opening(second_tier=between is not None)
        self.write(
            SnapshotBegin(snapshot=name, opened=start, source=source),
            parts={d: [declared()] for d in DOMAINS},
        )
        mark = SnapshotRange(snapshot=name, holder="gpu", group=0, low=LOW, high=HIGH)
        parts: dict[str, list[DomainEvent]] = {}
        for domain, held in copies.items():
            coming = pending or {}
            runs = [
                CopyRun(
                    profile=0,
                    state=CopyState.PENDING if one in coming else state,
                    transfer=coming.get(one),
                    admitted_after=after,
                    ids=(one,),
                    parents=(bytes(16),),
                )
                for one, after in held.items()
            ]
            if runs:
                parts[domain] = [SnapshotPart(runs=tuple(runs))]
        self.write(mark, parts=parts)
        if between is not None:
            self.write(parts={"acme": between})
            self.write(mark.model_copy(update={"holder": "cpu"}))
        ends = [HolderInventory(holder=holder.name, inventory=inventory) for holder in start.holders]
        self.write(SnapshotEnd(snapshot=name, inventories=tuple(ends)))
