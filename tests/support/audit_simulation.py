"""A fleet with physical truth beside its log: duplicates, transfers, losses, partitions, zombies, bugs.

The hooks write light records (no JSON, a stand-in signature), so that thousands of fleets run in seconds;
what the auditor is fed is otherwise what a log would give it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

from auditor.condition import Findings
from auditor.evidence import Evidence
from auditor.finding import Condition
from auditor.record import StreamRecord, UnreadableRecord
from auditor.verdict import decide, examine, lives, wants_nonce
from events.chain import sha256, transfer_digest
from events.ids import Inventory, Lineage, Role, StreamKey, VerdictKind
from events.model.control import (
    AuditNonce,
    DeletionRequested,
    DomainScope,
    ExitAttested,
    Fenced,
    Granted,
    Registered,
)
from events.model.part import Cleared, Closed, TierChanged, TransferCommitted, TransferStarted
from tests.support.audit_fault import NONE, Faults
from tests.support.audit_hook import PROFILE, Hook
from tests.support.audit_memory import Copies, older
from tests.support.light_log import BEGUN, KEYS, RING, LightSigner, begun, light_verify, write
from tests.support.log import block

BLOCKS = tuple(block("sim", number) for number in range(6))
STEPS, DELETED_AT = 70, 25


class SimFleet:
    """Three workers over STEPS steps, a deletion at DELETED_AT, an auditor that closes with nonces.

    `drop` is a record, by its number in the fleet from 1, that is lost and known to be lost. `stores` are durable
    stores by the worker that declares them."""

    stores: Mapping[str, str] = {}

    def __init__(self, seed: int, faults: Faults, *without: Condition, drop: int = 0) -> None:
        self.without = frozenset(without)
        self.rng = random.Random(seed)
        self.faults = faults
        self.registry = begun()
        self.request = 1 << 60
        self.nonce: int | None = None
        self.written = 0
        self.returned = self.lied = False
        self.struck: Counter[str] = Counter()
        self.held_back: list[StreamRecord | UnreadableRecord] = []
        self.evidence: Evidence | None = None
        self.hooks: list[Hook] = []
        self.transfers = 0
        self.drop = drop
        self.patient = faults == NONE or self.rng.random() < 0.7
        for number in range(3):
            self.birth(f"w{number}")
        if self.strikes("unregistered"):
            self.hooks[2].worker = "stranger"

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability

    def strikes(self, fault: str, times: float = 1.0) -> bool:
        """Whether the fault strikes now; `times` its probability."""
        struck = self.chance(getattr(self.faults, fault) * times)
        self.struck[fault] += struck
        return struck

    def evidence_feed(self, record: StreamRecord | UnreadableRecord) -> None:
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
        lost = self.strikes("registration_lost")
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
            hook.torn, hook.unwatched = heir.torn, heir.unwatched
            if heir.cleared:
                hook.known = {}
            if self.strikes("forgotten"):
                hook.known = dict.fromkeys(hook.known)
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
                if step % 7 == 0 and hook.alive and not (hook.repair or hook.unwatched):
                    hook.say(events=hook.statements(), signed=True)  # a real one signs every 30 s
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
        if hook.hole and self.chance(self.faults.resync):
            hook.repair = True
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
                oldest = min(hook.copies.table.get((where, one), [self.registry.next_offset]))
                hook.land("gpu", one, oldest, Lineage.ONLOAD, claimed=hook.known[where, one])
                break
        elif dice < 0.78:
            self.transfer(hook, answered)
        elif dice < 0.80 and not hook.landing:
            hook.copies.table.clear()
            hook.known.clear()
            hook.unwatched = False
            hook.say(Cleared(holders=("gpu", "cpu")))
        elif self.strikes("cut", 4):
            hook.cut = not hook.cut or hook.worker.endswith("-zombie")
        elif self.strikes("crash", 4):
            self.crash(hook)
        elif hook.unwatched and not hook.repair:
            hook.lose_words()
        elif not hook.landing and not hook.running and self.strikes("idle_reset", 4):
            hook.copies.table.clear()
            hook.known.clear()
            hook.unwatched, hook.cleared = False, True  # told with the next record
        elif not hook.cut and self.strikes("reattach", 4):
            hook.alive = False
            heir = self.birth(hook.worker, hook.life, hook)
            heir.acked = False
        elif self.strikes("impostor", 4):
            self.impersonate(hook)
        elif dice > 0.97:
            hook.snapshot()
        elif step % 7 == 0 and not hook.repair and not hook.unwatched:
            hook.say(events=hook.statements(), signed=True)

    def impersonate(self, hook: Hook) -> None:
        """Another node's key, which is bound to that node's workers, takes this worker over and says it is dead."""
        node = LightSigner(sha256(b"another node"))
        roles = (Role.ENROLMENT, Role.SUPERVISOR)
        grant = Granted(public_key=node.public_key, roles=roles, label="node", workers=("elsewhere-*",))
        write(self.registry, grant, Role.OPERATOR)
        heir = Registered(
            worker=hook.worker,
            rank=0,
            epoch=f"stolen-{self.registry.next_offset}",
            engine_life=hook.life,
            public_key=node.public_key,
            partition=0,
        )
        end = ExitAttested(worker=hook.worker, engine_life=hook.life, attester="s", evidence="exit")
        write(self.registry, heir, Role.ENROLMENT, signer=node, ignored="outside_grant")
        write(self.registry, end, Role.SUPERVISOR, signer=node, ignored="outside_grant")

    def demote(self, hook: Hook) -> None:
        one = next(block_ for where, block_ in sorted(hook.known) if where == "gpu")
        if one in {b for b, _ in hook.landing.values()} or hook.hides("cpu", one):
            return
        moved = hook.copies.table.pop(("gpu", one), [])
        if moved:
            hook.copies.table.setdefault(("cpu", one), []).extend(moved)
        after = hook.known.pop(("gpu", one))
        hook.known["cpu", one] = older(after, hook.known.get(("cpu", one), after))
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
                hook.known["gpu", one] = older(after, hook.known.get(("gpu", one), after))
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
        bug = self.strikes("tombstone_ignored") and not (hook.cut and answered)
        if after < self.request <= hook.installed and not bug:
            return
        if after > hook.installed:
            return  # it lets in what was admitted behind an order once it has installed that itself
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
        zombie = self.strikes("zombie")
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
