"""A fleet with physical truth beside its log: duplicates, transfers, losses, partitions, zombies, bugs.

The hooks write light records (no JSON, a stand-in signature), so that thousands of fleets run in seconds;
what the auditor is fed is otherwise what a log would give it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from auditor.condition import Findings
from auditor.evidence import Evidence
from auditor.finding import Condition
from auditor.record import StreamRecord
from auditor.registry import ControlFold
from auditor.verdict import decide, examine, lives, wants_nonce
from events.chain import MODULUS, sha256, transfer_digest
from events.codec import encode_control
from events.ids import (
    Capability,
    CopyState,
    GroupKind,
    InvalidateReason,
    Inventory,
    Lineage,
    Role,
    StreamKey,
    Tier,
    VerdictKind,
)
from events.keyring import KeyRing
from events.model.batch import ControlPosition, Header, PartRef
from events.model.control import (
    AuditNonce,
    ControlBody,
    DeletionRequested,
    DomainCreated,
    DomainScope,
    ExitAttested,
    Fenced,
    Genesis,
    Granted,
    Registered,
)
from events.model.part import (
    Ack,
    BlockEvicted,
    BlockInvalidated,
    BlockStored,
    Cleared,
    Closed,
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
    TierChanged,
    TransferCommitted,
    TransferRejected,
    TransferStarted,
)
from events.signing import key_id
from tests.support.log import HIGH, LOW, block, declared

RING = KeyRing({"acme": sha256(b"acme")})
KEYS = {"acme": RING["acme"].alias_key}
BLOCKS = tuple(block("sim", number) for number in range(6))
GROUP = Group(index=0, kind=GroupKind.FULL, block_tokens=16)
HOLDERS = (("gpu", Tier.GPU), ("cpu", Tier.CPU))
PROFILE = declared()
STEPS, DELETED_AT = 70, 25


@dataclass(frozen=True)
class LightSigner:
    """Stands for a key pair where nobody attacks the signature itself."""

    public_key: bytes

    @property
    def id(self) -> str:
        return key_id(self.public_key)

    def sign(self, message: bytes) -> bytes:
        return sha256(self.public_key + message)


def light_verify(public_key: bytes, signature: bytes, message: bytes) -> bool:
    return signature == sha256(public_key + message)


def _begun() -> ControlFold:
    registry = ControlFold(light_verify)
    operator = LightSigner(sha256(b"operator"))
    write(registry, Genesis(log="sim", operator_key=operator.public_key, partitions=1), Role.OPERATOR)
    for role in Role:
        if role is not Role.OPERATOR:
            key = sha256(role.value.encode())
            write(registry, Granted(public_key=key, roles=(role,), label=role.value), Role.OPERATOR)
    write(registry, DomainCreated(domain="acme", tenant="acme"), Role.CONTROL)
    return registry


def write(registry: ControlFold, body: ControlBody, role: Role, *, shown: bool = True) -> int:
    """Appends a control record; not `shown`: the log has lost it, the registry sees a hole."""
    signer = LightSigner(sha256(role.value.encode()))
    offset = registry.next_offset
    if not shown:
        registry.holes.append((offset, offset))
        registry.next_offset += 1
        return offset
    value, line = encode_control(body, log="sim", signer=signer.id, role=role, written_ms=0)
    why = registry.feed(offset, value, signer.sign(line))
    assert why == "", why
    return offset


BEGUN = _begun()


@dataclass(frozen=True)
class Faults:
    """Probabilities of a step or an act; all zero is a fleet of truthful workers on a perfect network."""

    lost: float = 0.0
    repeated: float = 0.0
    cut: float = 0.0
    crash: float = 0.0
    zombie: float = 0.0
    reattach: float = 0.0
    kept: float = 0.0
    silent: float = 0.0
    tombstone_ignored: float = 0.0
    laundered: float = 0.0
    unregistered: float = 0.0
    registration_lost: float = 0.0


NONE = Faults()
MIXED = Faults(0.02, 0.05, 0.05, 0.02, 0.3, 0.02, 0.05, 0.01, 0.1, 0.1, 0.05, 0.03)


@dataclass
class Copies:
    """What a life really holds: admissions of the physical copies by (holder, block)."""

    table: dict[tuple[str, bytes], list[int]] = field(default_factory=dict)

    def old(self, request: int) -> bool:
        return any(after < request for copies in self.table.values() for after in copies)


@dataclass
class Hook:
    """One epoch of one engine life: `known` is what the hook believes, which a bug may bend."""

    fleet: SimFleet
    worker: str
    life: str
    epoch: str
    epoch_no: int
    copies: Copies
    known: dict[tuple[str, bytes], int] = field(default_factory=dict)
    running: list[tuple[bytes, int]] = field(default_factory=list)
    landing: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    seq: int = 0
    prev: bytes = b""
    installed: int = 0
    alive: bool = True
    cut: bool = False
    acked: bool = False
    nonce: int | None = None
    repair: bool = False
    torn: bool = False
    sure: bool = False
    waiting: list[StreamRecord] = field(default_factory=list)
    alias: bytes = b""

    def say(
        self, *stream_events: StreamEvent, events: Sequence[DomainEvent] = (), signed: bool = False
    ) -> None:
        """Numbers a record; it may be lost on the way."""
        fleet = self.fleet
        name = self.alias
        refs = [PartRef.model_construct(alias=None, sha256=bytes(32), events=len(stream_events))]
        if events:
            refs.append(PartRef.model_construct(alias=name, sha256=bytes(32), events=len(events)))
        position = min(self.installed, fleet.registry.next_offset - 1)
        seen = fleet.registry.hashes.get(position, bytes(32))
        header = Header.model_construct(
            v=1,
            worker=self.worker,
            rank=0,
            epoch=self.epoch,
            epoch_no=self.epoch_no,
            seq=self.seq,
            prev=self.prev,
            control=ControlPosition.model_construct(offset=position, hash=seen),
            parts=tuple(refs),
        )
        fleet.written += 1
        line = f"{self.worker}/{self.epoch}/{self.seq}/{fleet.written}".encode() + self.prev
        record = StreamRecord(
            0,
            fleet.written,
            header,
            line,
            sha256(line),
            LightSigner(sha256(self.epoch.encode())).sign(line) if signed or self.seq == 0 else None,
            tuple(stream_events),
            {name: tuple(events)} if events else {},
        )
        self.seq += 1
        if self.seq > 1 and not self.sure and fleet.chance(fleet.faults.lost):
            self.repair, self.torn = self.repair or fleet.chance(0.7), True
            return
        self.prev = record.header_sha256
        self.waiting.append(record)
        if fleet.chance(fleet.faults.repeated):
            self.waiting.append(record)

    def flush(self) -> None:
        if not self.cut:
            for record in self.waiting:
                self.fleet.evidence_feed(record)
            self.waiting.clear()

    def opening(self, inventory: Inventory) -> Opened:
        return Opened(
            engine_life=self.life,
            engine="sim",
            engine_version="1",
            removal=Capability.EVICT_BLOCKS,
            admission_known=True,
            holders=tuple(
                HolderDeclared(name=name, tier=tier, groups=(GROUP,), inventory=inventory)
                for name, tier in HOLDERS
            ),
        )

    def land(self, holder: str, one: bytes, after: int, lineage: Lineage) -> None:
        """A physical copy more, and the record of it."""
        fleet = self.fleet
        if holder == "gpu" and any(one == coming for coming, _ in self.landing.values()):
            return
        if self.hides(holder, one):
            return
        self.copies.table.setdefault((holder, one), []).append(after)
        if self.acked and after < fleet.request:
            fleet.returned = True
        bug = fleet.chance(fleet.faults.silent) and not self.acked
        if bug:
            return
        believed = self.known.get((holder, one))
        launder = believed is not None and fleet.chance(fleet.faults.laundered)
        self.known[holder, one] = after if believed is None or launder else min(believed, after)
        stored = BlockStored(
            holder=holder, group=0, profile=0, ids=(one,), lineage=lineage, admitted_after=after
        )
        self.say(events=[stored])

    def hides(self, holder: str, one: bytes) -> bool:
        """Whether a bug left a copy here that the hook doesn't know of: the engine hits it and computes no
        duplicate. With one, a liar's old copy would lie under a fresh one's id for ever."""
        return (holder, one) not in self.known and bool(self.copies.table.get((holder, one)))

    def end(self, holder: str, one: bytes, *, request: int | None = None) -> None:
        """Every physical copy of a block goes, unless a bug keeps one; the record says that all went."""
        fleet = self.fleet
        kept = request is not None and fleet.chance(fleet.faults.kept)
        if not kept:
            self.copies.table.pop((holder, one), None)
        self.known.pop((holder, one), None)
        if request is None:
            self.say(events=[BlockEvicted(holder=holder, group=0, ids=(one,))])
        else:
            self.say(
                events=[
                    BlockInvalidated(
                        holder=holder,
                        group=0,
                        ids=(one,),
                        reason=InvalidateReason.DELETION,
                        request=request,
                    ),
                    *self.statements(),
                ]
            )

    def statements(self) -> list[DomainEvent]:
        """From the pool: what is really there."""
        found: list[DomainEvent] = []
        for holder, _ in HOLDERS:
            ids = {one for (name, one), copies in self.copies.table.items() if name == holder and copies}
            ids |= {one for one, _ in self.landing.values()} if holder == "gpu" else set()
            total = sum(int.from_bytes(one, "big") for one in ids) % MODULUS
            found.append(
                Statement(
                    holder=holder, group=0, count=len(ids), checksum=total.to_bytes(16, "big"), source="pool"
                )
            )
        return found

    def obey(self) -> None:
        """Removes, rejects, and acks as soon as nothing admitted before is running."""
        request = self.fleet.request
        for (holder, one), after in sorted(self.known.items()):
            if after < request:
                self.end(holder, one, request=request)
        for transfer, (_, after) in sorted(self.landing.items()):
            if after < request and not self.fleet.chance(self.fleet.faults.tombstone_ignored):
                del self.landing[transfer]
                self.say(events=[TransferRejected(transfer=transfer, request=request)])
        if not any(after < request for _, after in self.running) and not any(
            after < request for _, after in self.landing.values()
        ):
            self.ack()

    def ack(self) -> None:
        fleet = self.fleet
        if self.copies.old(fleet.request):
            fleet.lied = True
        self.acked = True
        due = fleet.nonce if fleet.nonce is not None and fleet.nonce <= self.installed else None
        standing = RequestStanding(request=fleet.request, removed=0, old_left=0)
        self.say(events=[*self.statements(), Ack(requests=(standing,), nonce=due)], signed=True)
        self.nonce = due

    def snapshot(self) -> None:
        """Restates both holders from what the hook believes."""
        fleet, name = self.fleet, f"s{self.seq}"
        if not self.torn and fleet.chance(fleet.faults.laundered):
            self.known = dict.fromkeys(self.known, self.installed)
        self.say(SnapshotBegin(snapshot=name, opened=self.opening(Inventory.PARTIAL)), events=[PROFILE])
        for holder, _ in HOLDERS:
            runs = [
                CopyRun(
                    profile=0,
                    admitted_after=after,
                    ids=(one,),
                    parents=(bytes(16),),
                )
                for (where, one), after in self.known.items()
                if where == holder and one not in {b for b, _ in self.landing.values()}
            ]
            runs += [
                CopyRun(
                    profile=0,
                    state=CopyState.PENDING,
                    admitted_after=after,
                    transfer=transfer,
                    ids=(one,),
                    parents=(bytes(16),),
                )
                for transfer, (one, after) in self.landing.items()
                if holder == "gpu"
            ]
            mark = SnapshotRange(snapshot=name, holder=holder, group=0, low=LOW, high=HIGH)
            self.say(mark, events=[SnapshotPart(runs=tuple(runs))] if runs else ())
        known = tuple(HolderInventory(holder=name_, inventory=Inventory.KNOWN) for name_, _ in HOLDERS)
        self.say(SnapshotEnd(snapshot=name, inventories=known), signed=True)
        self.repair = False
        if self.acked:
            self.obey()


class SimFleet:
    """Three workers over STEPS steps, a deletion at DELETED_AT, an auditor that closes with nonces."""

    def __init__(self, seed: int, faults: Faults, *without: Condition) -> None:
        self.without = frozenset(without)
        self.rng = random.Random(seed)
        self.faults = faults
        self.registry = deepcopy(BEGUN)
        self.request = 1 << 60
        self.nonce: int | None = None
        self.written = 0
        self.returned = self.lied = False
        self.held_back: list[StreamRecord] = []
        self.evidence: Evidence | None = None
        self.hooks: list[Hook] = []
        self.transfers = 0
        self.patient = faults == NONE or self.rng.random() < 0.7
        for number in range(3):
            self.birth(f"w{number}")
        if self.chance(faults.unregistered):
            self.hooks[2].worker = "stranger"

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability

    def evidence_feed(self, record: StreamRecord) -> None:
        if self.evidence is None:
            self.held_back.append(record)
        else:
            self.evidence.feed(record)

    def birth(self, worker: str, life: str = "", heir: Hook | None = None) -> Hook:
        """Registers an epoch: of a new life, or of its predecessor's."""
        epoch = f"{worker}e{len(self.hooks)}"
        life = life or f"life-{len(self.hooks)}"
        body = Registered(
            worker=worker,
            rank=0,
            epoch=epoch,
            engine_life=life,
            public_key=sha256(epoch.encode()),
            partition=0,
        )
        lost = self.chance(self.faults.registration_lost)
        epoch_no = write(self.registry, body, Role.ENROLMENT, shown=not lost)
        hook = Hook(self, worker, life, epoch, epoch_no, heir.copies if heir else Copies())
        known = self.registry.epochs.get(next((s for s in self.registry.epochs if s.epoch == epoch), None))  # type: ignore[arg-type]
        hook.prev = known.record_sha256 if known else bytes(32)
        hook.installed = epoch_no
        hook.alias = RING["acme"].alias(worker, 0, epoch_no)
        if lost:
            hook.cut = True  # it never gets a word through; only the hole in kv.control tells of it
        if heir is not None:
            hook.known, hook.running, hook.landing = heir.known, heir.running, heir.landing
            hook.torn = heir.torn
        hook.say(hook.opening(Inventory.PARTIAL if heir else Inventory.EMPTY), events=[PROFILE])
        self.hooks.append(hook)
        if heir is not None:
            hook.snapshot()
        if epoch_no > self.request:
            hook.obey()
        return hook

    def run(self) -> None:
        for step in range(STEPS):
            if step == DELETED_AT:
                body = DeletionRequested(scope=DomainScope(domain="acme"), requester="sim")
                self.request = write(self.registry, body, Role.CONTROL)
                self.evidence = Evidence(
                    self.registry.requests[self.request], self.registry, KEYS, light_verify
                )
                for record in self.held_back:
                    self.evidence.feed(record)
            self.work(self.rng.choice(self.hooks), step)
            self.deliver(step)
        for step in range(STEPS, STEPS + 24):
            for hook in self.hooks:
                if hook.alive and hook.running:
                    hook.land("gpu", *hook.running.pop(0), Lineage.PREFILL)
                if hook.alive and hook.landing and self.patient:
                    self.transfer(hook, hook.nonce is not None)
            self.deliver(step)

    def deliver(self, step: int) -> None:
        """What can get through does; the auditor asks when all have acked."""
        for hook in list(self.hooks):
            if hook.alive and not hook.cut:
                self.follow(hook)
            hook.flush()
        if (
            self.evidence is not None
            and step % 4 == 0
            and self.nonce is None
            and wants_nonce(self.evidence, without=self.without)
        ):
            body = AuditNonce(request=self.request, nonce=f"n{step}")
            self.nonce = write(self.registry, body, Role.AUDITOR)

    def follow(self, hook: Hook) -> None:
        """Installs what control says, repairs, obeys, answers."""
        newest = self.registry.next_offset - 1
        if hook.worker == "stranger":
            return
        if hook.installed < newest and self.rng.random() < 0.5:
            hook.installed = newest
        if hook.repair and self.rng.random() < 0.4:
            hook.snapshot()
        owes = hook.installed >= self.request and (not hook.acked or hook.nonce != self.due(hook))
        if owes and self.rng.random() < 0.6:
            hook.obey()

    def due(self, hook: Hook) -> int | None:
        return self.nonce if self.nonce is not None and self.nonce <= hook.installed else None

    def work(self, hook: Hook, step: int) -> None:
        if not hook.alive:
            return
        rng, dice = self.rng, self.rng.random()
        answered = hook.nonce is not None
        if dice < 0.25:
            hook.running.append((rng.choice(BLOCKS), hook.installed))
        elif dice < 0.5 and hook.running:
            one, after = hook.running.pop(0)
            hook.land("gpu", one, after, Lineage.PREFILL)
        elif dice < 0.58 and hook.known:
            hook.end(*rng.choice(sorted(hook.known)))
        elif dice < 0.64 and any(where == "gpu" for where, _ in hook.known):
            self.demote(hook)
        elif dice < 0.68:
            for where, one in sorted(k for k in hook.known if k[0] == "cpu"):
                hook.land("gpu", one, hook.known[where, one], Lineage.ONLOAD)
                break
        elif dice < 0.78:
            self.transfer(hook, answered)
        elif dice < 0.80 and not hook.landing:
            hook.copies.table.clear()
            hook.known.clear()
            hook.say(Cleared(holders=("gpu", "cpu")))
        elif self.chance(self.faults.cut * 4):
            hook.cut = not hook.cut or hook.worker.endswith("-zombie")
        elif self.chance(self.faults.crash * 4):
            self.crash(hook)
        elif self.chance(self.faults.reattach * 4) and not hook.cut:
            hook.alive = False
            heir = self.birth(hook.worker, hook.life, hook)
            heir.acked = False
        elif dice > 0.97:
            hook.snapshot()
        elif step % 7 == 0 and not hook.repair:
            hook.say(events=hook.statements(), signed=True)

    def demote(self, hook: Hook) -> None:
        one = next(block_ for where, block_ in sorted(hook.known) if where == "gpu")
        if one in {b for b, _ in hook.landing.values()} or hook.hides("cpu", one):
            return
        moved = hook.copies.table.pop(("gpu", one), [])
        if moved:
            hook.copies.table.setdefault(("cpu", one), []).extend(moved)
        after = hook.known.pop(("gpu", one))
        hook.known["cpu", one] = min(after, hook.known.get(("cpu", one), after))
        hook.say(events=[TierChanged(from_holder="gpu", to_holder="cpu", group=0, ids=(one,))])

    def transfer(self, hook: Hook, answered: bool) -> None:
        """A landing begins or ends at this worker; a tombstone is obeyed unless a bug ignores it."""
        rng = self.rng
        if hook.landing and rng.random() < 0.6:
            transfer = min(hook.landing)
            one, after = hook.landing.pop(transfer)
            hook.copies.table.setdefault(("gpu", one), []).append(after)
            if hook.acked and after < self.request:
                self.returned = True  # a bug let it in, and the hook doesn't think of it again
            else:
                hook.known["gpu", one] = min(after, hook.known.get(("gpu", one), after))
            hook.say(events=[TransferCommitted(transfer=transfer, digest=transfer_digest([one]))])
            return
        if rng.random() < 0.3:
            self.begin(hook, "elsewhere", rng.choice(BLOCKS), BEGUN.next_offset - 1, answered)
        source = rng.choice(self.hooks)
        if source is hook or not source.alive or not source.known:
            return
        _, one = rng.choice(sorted(source.known))
        oldest = min(
            (a for (_, b), copies in source.copies.table.items() if b == one for a in copies), default=None
        )
        if oldest is not None:
            self.begin(hook, source.worker, one, oldest, answered)

    def begin(self, hook: Hook, source: str, one: bytes, after: int, answered: bool) -> None:
        """A transfer starts, unless its block is here already or the destination's tombstone stops it."""
        coming = {block_ for block_, _ in hook.landing.values()}
        if ("gpu", one) in hook.known or one in coming or hook.hides("gpu", one):
            return
        bug = self.chance(self.faults.tombstone_ignored) and not (hook.cut and answered)
        if after < self.request <= hook.installed and not bug:
            return
        hook.sure = hook.sure or (answered and after < self.request)
        self.transfers += 1
        hook.landing[f"t{self.transfers}"] = (one, after)
        started = TransferStarted(
            transfer=f"t{self.transfers}",
            source=source,
            holder="gpu",
            group=0,
            profile=0,
            ids=(one,),
            admitted_after=after,
        )
        hook.say(events=[started])

    def crash(self, hook: Hook) -> None:
        """The engine ends, attested or not; or it only falls silent and lives on as a zombie."""
        zombie = self.chance(self.faults.zombie)
        fenced = Fenced(worker=hook.worker, rank=0, epoch=hook.epoch, evidence="timeout")
        registered = StreamKey(hook.worker, 0, hook.epoch) in self.registry.epochs
        if zombie:
            hook.cut = True
            if registered and self.chance(0.7):
                write(self.registry, fenced, Role.CONTROL)
        else:
            if self.chance(0.3):
                hook.say(Closed(engine_ended=True), signed=True)
            hook.alive = False
            hook.copies.table.clear()
            if registered and self.chance(0.4):
                write(self.registry, fenced, Role.CONTROL)
            if self.chance(0.7):
                body = ExitAttested(worker=hook.worker, engine_life=hook.life, attester="s", evidence="exit")
                write(self.registry, body, Role.SUPERVISOR)
        if self.chance(0.8):
            self.birth(hook.worker)

    @property
    def holds_old(self) -> bool:
        """Whether something old is really there, landed or landing, on any life that is alive."""
        return any(
            hook.alive
            and (hook.copies.old(self.request) or any(a < self.request for _, a in hook.landing.values()))
            for hook in self.hooks
        )

    def verdict(self) -> VerdictKind:
        """By the rule without `without`, which `judge` itself would never call PROVEN."""
        assert self.evidence is not None
        owing, gone = lives(self.evidence)
        found: Findings = examine(self.evidence, owing, gone, self.without)[0]
        return decide(found)
