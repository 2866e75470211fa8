"""Random logs for verifiers to agree on: honest and lying hooks, losses, garbage, deaths, every kind of scope."""

from __future__ import annotations

import random

from events.chain import transfer_digest
from events.identity import profile_digest
from events.ids import CopyState, EvictReason, Inventory, Lineage, Role, Tier
from events.model.control import (
    DomainAdmitted,
    DomainScope,
    HolderDestroyed,
    HolderEnrolled,
    HoldSet,
    IdsScope,
    InventoryMember,
    InventoryStated,
    PrefixScope,
    ProfileScope,
    Scope,
    SubjectScope,
    TenantScope,
)
from events.model.part import (
    BlockEvicted,
    Cleared,
    Closed,
    EngineLoss,
    Orphans,
    Refused,
    TierChanged,
    TransferAborted,
    TransferCommitted,
    TransferStarted,
)
from events.signing import Signer
from tests.support.audit_log import DOMAINS, AuditLog, HookStub, RawEvent
from tests.support.encrypted_store import encrypted, gone, listed
from tests.support.log import PROFILE, block

MINE = ("acme", "acme/eu")


class Story:
    """One log; `request` is the deletion to judge. `trouble` 0 to 1: how much goes wrong. `locked`: there is an
    encrypted store, and blocks go there too."""

    def __init__(self, seed: int, trouble: float, *, locked: bool = False) -> None:
        self.locked = locked
        self.rng = random.Random(seed)
        self.trouble = trouble
        self.log = AuditLog()
        self.keys: list[str] = []
        self.started: list[tuple[HookStub, str, str, list[bytes]]] = []
        for worker in ("w0", "w10"):
            self.born(worker)
        if self.wrong(0.4) or locked:
            self.lock()
        for _ in range(self.rng.randrange(8)):
            self.step()
        if self.wrong(0.4):
            self.inventory("w0", "w10")
        self.request = self.log.delete(self.scope())
        if isinstance(scope := self.log.scope_of(self.request), SubjectScope):
            self.log.bound = set(scope.leaves or ())
            if self.wrong(0.4):
                self.log.bound = None
            elif self.rng.random() < 0.4:
                self.log.bound.add(block("acme", self.rng.randrange(12)))
        for _ in range(self.rng.randrange(10)):
            self.step()
        if self.rng.random() < 0.85:
            self.close()
        for _ in range(self.rng.randrange(4) if self.wrong() else 0):
            self.step()
        if self.keys and self.rng.random() < 0.6:
            self.unlock()
        if self.wrong(0.3):
            self.log.starts[self.rng.choice(list(self.log.events))] = 1

    def wrong(self, often: float = 1.0) -> bool:
        return self.rng.random() < self.trouble * often

    def scope(self) -> Scope:
        ids = tuple(block("acme", n) for n in self.rng.sample(range(6), 2))
        scopes: list[Scope] = [
            TenantScope(tenant="acme"),
            TenantScope(tenant="acme"),
            DomainScope(domain="acme"),
            SubjectScope(domain="acme", subject="eu"),
            SubjectScope(domain="acme", subject="nobody"),
            SubjectScope(domain="acme", subject="eu", pseudonym=bytes(32), leaves=ids, bound_to=2),
            SubjectScope(domain="acme", subject="5f", pseudonym=bytes(32), leaves=ids[1:]),
            SubjectScope(domain="acme", subject="eu", pseudonym=bytes(32), bound_to=0),
            PrefixScope(domain="acme", ids=ids),
            IdsScope(domain="acme", ids=ids),
            ProfileScope(profile=bytes.fromhex(profile_digest(PROFILE))),
        ]
        return self.rng.choice(scopes)

    def born(self, worker: str) -> None:
        hook = self.log.hook(worker, life=f"{worker}-life-{len(self.log.hooks)}")
        durable = "store" if self.wrong(0.2) or self.locked else None
        connectors = ("lmcache",) if self.wrong(0.2) else ()
        inventory = Inventory.PARTIAL if self.wrong(0.2) else Inventory.EMPTY
        hook.open(durable_id=durable, connectors=connectors, inventory=inventory, second_tier=self.wrong(0.2))

    def step(self) -> None:
        hook = self.rng.choice(self.log.hooks)
        wild = (
            self.lie, self.lose, self.garbage, self.again, self.twice, self.refuse, self.clear, self.fence,
            self.attest, self.reattach, self.end, self.move, self.enrol, self.hold, self.loose, self.forge,
        )  # fmt: skip
        calm = (self.store, self.store, self.store, self.remove, self.state, self.snapshot, self.transfer)
        self.rng.choice(wild if self.wrong() else calm)(hook)

    def domain(self) -> str:
        return self.rng.choice(list(DOMAINS))

    def names(self) -> list[int]:
        first = self.rng.randrange(6)
        return list(range(first, self.rng.randint(first, 6)))

    def store(self, hook: HookStub) -> None:
        admitted = self.rng.choice(["now", "now", "now", None, self.rng.randrange(12)])
        parent = block(self.domain(), self.rng.randrange(8)) if self.wrong(0.5) else None
        lineage = Lineage.ONLOAD if self.wrong(0.2) else Lineage.PREFILL
        holder = "disk" if self.wrong(0.2) or (self.locked and self.rng.random() < 0.5) else "gpu"
        names = self.names()
        hook.store(self.domain(), *names, admitted=admitted, parent=parent, lineage=lineage, holder=holder)

    def remove(self, hook: HookStub) -> None:
        domain = self.domain()
        hook.remove(domain, [block(domain, n) for n in self.names()], getattr(self, "request", None))

    def state(self, hook: HookStub) -> None:
        domain = self.domain()
        hook.write(parts={domain: [hook.statement(domain)]})

    def snapshot(self, hook: HookStub) -> None:
        inventory = self.rng.choice([Inventory.KNOWN, Inventory.KNOWN, Inventory.PARTIAL])
        state = self.rng.choice([CopyState.COMMITTED, CopyState.UNCERTAIN])
        hook.snapshot(inventory=inventory, state=state, source="pool" if self.wrong() else None)

    def transfer(self, hook: HookStub) -> None:
        mine = [one for one in self.started if one[0] is hook]
        if mine and self.rng.random() < 0.7:
            self.started.remove(mine[0])
            _, domain, name, ids = mine[0]
            if self.rng.random() < 0.6:
                digest = transfer_digest(ids[1:] if self.wrong() else ids)
                hook.write(parts={domain: [TransferCommitted(transfer=name, digest=digest)]})
            else:
                hook.write(parts={domain: [TransferAborted(transfer=name)]})
            return
        domain, name = self.domain(), f"t{len(self.log.control.records)}-{hook.seq}"
        ids = [block(domain, n) for n in self.names()]
        after = self.rng.choice([None, 0, hook.position().offset])
        event = TransferStarted(
            transfer=name, source="w9", holder="gpu", group=0, profile=0, ids=tuple(ids), admitted_after=after
        )
        hook.write(parts={domain: [event]}, lost=self.wrong(0.3))
        self.started.append((hook, domain, name, ids))

    def lie(self, hook: HookStub) -> None:
        domain = self.domain()
        hook.write(parts={domain: [hook.statement(domain, claimed=[block(domain, 40)])]})

    def lose(self, hook: HookStub) -> None:
        hook.store(self.domain(), *self.names(), lost=True)

    def garbage(self, hook: HookStub) -> None:
        records = self.log.events[hook.partition]
        spoilt = records[-1].value.replace(b'"events"', b'"evils"', 1)
        records.append(RawEvent(self.rng.choice([b"", b"\xff", b"{}", spoilt]), None))
        self.log.control.records.append((self.rng.choice([b"", b"garbage", b"{}\n{}"]), None))

    def again(self, hook: HookStub) -> None:
        records = self.log.events[hook.partition]
        records.append(self.rng.choice(records))

    def twice(self, hook: HookStub) -> None:
        """Another record under a number that was used."""
        if hook.seq > 1:
            hook.seq -= 1
            hook.store(self.domain(), 20 + self.rng.randrange(9))

    def refuse(self, hook: HookStub) -> None:
        if hasattr(self, "request"):
            reason = self.rng.choice(["no_delete_path", "blocks_in_use"])
            event = Refused(request=self.request, reason=reason, cure="reset")  # type: ignore[arg-type]
            hook.write(parts={self.rng.choice(MINE): [event]})

    def clear(self, hook: HookStub) -> None:
        if self.rng.random() < 0.4:
            hook.write(EngineLoss(first_missing=1))
            return
        hook.write(Cleared(holders=("gpu",), unknown_scope=self.rng.random() < 0.3))
        hook.held = {where: copies for where, copies in hook.held.items() if where[0] != "gpu"}

    def fence(self, hook: HookStub) -> None:
        self.log.fence(hook, self.rng.choice(["timeout", "operator"]))

    def attest(self, hook: HookStub) -> None:
        self.log.attest(hook, role=Role.CONTROL if self.rng.random() < 0.2 else Role.SUPERVISOR)

    def reattach(self, hook: HookStub) -> None:
        same = self.rng.random() < 0.6
        again = self.log.hook(hook.worker, life=hook.life if same else f"{hook.life}-next")
        if self.rng.random() < 0.9:
            connectors = ("lmcache",) if self.wrong(0.3) else ()
            inventory = Inventory.PARTIAL if same else Inventory.EMPTY
            again.open(inventory=inventory, connectors=connectors, second_tier=self.wrong(0.3))
            if same and self.rng.random() < 0.7:
                again.held = hook.held
                again.snapshot()

    def end(self, hook: HookStub) -> None:
        hook.write(Closed(engine_ended=self.rng.random() < 0.7))

    def move(self, hook: HookStub) -> None:
        domain = self.domain()
        ids = tuple(block(domain, n) for n in self.names())
        if self.rng.random() < 0.5:
            hook.write(parts={domain: [TierChanged(from_holder="gpu", to_holder="disk", group=0, ids=ids)]})
            return
        reason = self.rng.choice([EvictReason.EXPIRED, EvictReason.CAPACITY])
        certain = self.rng.random() < 0.5
        hook.write(
            parts={domain: [BlockEvicted(holder="gpu", group=0, ids=ids, reason=reason, certain=certain)]}
        )

    def enrol(self, hook: HookStub) -> None:
        dice = self.rng.random()
        if self.keys and dice < 0.6:
            self.turn_keys()
        elif dice < 0.3:
            self.log.say(HolderDestroyed(durable_id="store", evidence="wiped"), Role.SUPERVISOR)
        else:
            body = HolderEnrolled(durable_id="store", tier=Tier.DISK, owner=hook.worker)
            self.log.say(body, Role.ENROLMENT)

    def lock(self) -> None:
        """A store that the first worker owns keeps everything under keys that lie in two rings."""
        self.log.say(HolderEnrolled(durable_id="store", tier=Tier.DISK, owner="w0"), Role.ENROLMENT)
        for domain in (*MINE, None):
            self.keys.append(f"k-{len(self.keys)}")
            self.log.say(encrypted(domain, self.keys[-1], store="store"), Role.ENROLMENT)
            self.log.say(listed(self.keys[-1], "a", "b"), Role.CONTROL)

    def unlock(self) -> None:
        """Every key goes, in all of its rings but for what goes wrong; and engines end."""
        for key in self.keys:
            for ring in ("a", "b"):
                if not self.wrong(0.1):
                    self.log.say(gone(key, ring), Role.SUPERVISOR)
        for hook in self.log.hooks:
            self.log.attest(hook)
        if self.wrong(0.3):
            self.turn_keys()

    def turn_keys(self) -> None:
        key = self.rng.choice([*self.keys, "k-new"])
        how = self.rng.randrange(4)
        if how == 0:
            domain = self.rng.choice([*MINE, None])
            self.log.say(encrypted(domain, self.rng.choice([key, None]), store="store"), Role.ENROLMENT)
        elif how == 1:
            attester = self.rng.choice([None, None, bytes(32)])
            self.log.say(listed(key, self.rng.choice("abc"), attester=attester), Role.CONTROL)
        else:
            self.log.say(gone(key, self.rng.choice("abc")), Role.SUPERVISOR)

    def hold(self, hook: HookStub) -> None:
        dice = self.rng.random()
        if dice < 0.2:
            self.inventory("w0", *self.rng.sample(["w10", "w7"], self.rng.randrange(3)))
        elif dice < 0.4:
            self.log.say(HoldSet(hold="h", domain="acme", reason="court"), Role.CONTROL)
        elif dice < 0.6:
            self.log.say(HoldSet(hold="t", tenant="acme", reason="court"), Role.CONTROL)
        else:
            self.log.say(DomainAdmitted(domain="umbrella", tenant="acme"), Role.CONTROL)

    def inventory(self, *workers: str) -> None:
        members = tuple(InventoryMember(worker=name, pod="u" if name == "w7" else None) for name in workers)
        self.log.say(InventoryStated(source="k8s", members=members), Role.SUPERVISOR)

    def loose(self, hook: HookStub) -> None:
        hook.write(Orphans(holder="gpu", orphans=self.rng.randrange(2), unassigned=self.rng.randrange(2)))

    def forge(self, hook: HookStub) -> None:
        """A foreign signature, a stream that nobody registered, a chain that doesn't fit, an order written again."""
        how = self.rng.randrange(5)
        if how == 4:
            self.log.control.records.append(self.rng.choice(self.log.control.records))
        elif how == 0:
            hook.store(self.domain(), 3, signed=True, signer=Signer.from_seed(bytes(32)))
        elif how == 1:
            hook.store(self.domain(), 3, prev=bytes(32))
        elif how == 2:
            stranger = HookStub(self.log, "stranger", "e", "l", 3, hook.partition, hook.signer)
            stranger.prev = bytes(32)
            stranger.open()
        else:
            value, signature = self.log.control.records[-1]
            self.log.control.records.append((value, (signature or b"")[:-1]))

    def close(self) -> None:
        for hook in self.log.hooks:
            keep = [block("acme", 1)] if self.wrong(0.2) else []
            hook.obey(self.request, keep=keep, old_left=int(self.wrong(0.2)), signed=not self.wrong(0.1))
        nonce = self.log.nonce(self.request)
        for hook in self.log.hooks:
            if not self.wrong(0.2):
                hook.ack(self.request, nonce=nonce)
