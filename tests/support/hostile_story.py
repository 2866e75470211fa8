"""Random logs whose writers stop at nothing: names used again, numbers from the future, stores that several write to,
engines with several ranks, epochs beside each other, claims that can't be."""

from __future__ import annotations

from events.chain import transfer_digest
from events.ids import GroupKind, Inventory, Lineage, Role, Tier
from events.model.control import (
    ExitAttested,
    HolderDestroyed,
    HolderEnrolled,
    PrefixScope,
    Scope,
    TenantScope,
)
from events.model.part import (
    Ack,
    BlockStored,
    Cleared,
    Closed,
    DomainEvent,
    Group,
    ProfileRetired,
    RequestStanding,
    SnapshotBegin,
    TierChanged,
    TransferAborted,
    TransferCommitted,
    TransferRejected,
    TransferStarted,
    UnknownEvents,
)
from tests.support.audit_log import NEWEST, HookStub, RawEvent
from tests.support.audit_story import MINE, Story
from tests.support.log import block, declared


class HostileStory(Story):
    """As a Story; every other step is one of those below."""

    late: list[tuple[int, RawEvent]]

    def scope(self) -> Scope:
        if self.rng.random() < 0.5:
            return super().scope()
        tops: list[Scope] = [
            PrefixScope(domain="acme", ids=(block("acme", self.rng.randrange(6)),)),
            TenantScope(tenant="acme"),
        ]
        return self.rng.choice(tops)

    def born(self, worker: str) -> None:
        """Some have a second rank, some a store that others write to."""
        life = f"{worker}-life-{len(self.log.hooks)}"
        for rank in range(1 + self.wrong(0.3)):
            hook = self.log.hook(worker, rank=rank, life=life, epoch=f"{worker}-e{len(self.log.hooks)}")
            hook.open(durable_id="store" if self.rng.random() < 0.4 else None, second_tier=self.wrong(0.2))

    def step(self) -> None:
        if self.rng.random() < 0.5:
            super().step()
            return
        hook = self.rng.choice(self.log.hooks)
        tricks = (
            self.leap, self.rename, self.regroup, self.shuttle, self.beside, self.undeclared, self.overtake,
            self.lag, self.overclaim, self.list_pending, self.end_somewhere, self.own, self.chain, self.misplace,
            self.half_ack, self.retire,
        )  # fmt: skip
        self.rng.choice(tricks)(hook)

    def leap(self, hook: HookStub) -> None:
        seq, prev = hook.seq, hook.prev
        hook.seq += self.rng.choice([1, 3, 1000])
        hook.write(signed=self.rng.random() < 0.3)
        if self.rng.random() < 0.7:
            hook.seq, hook.prev = seq, prev

    def rename(self, hook: HookStub) -> None:
        """Transfers under two names alone, in any domain, to any place, several in a record, ended anywhere."""
        parts: dict[str, list[DomainEvent]] = {}
        for _ in range(self.rng.randrange(1, 4)):
            domain, name = self.domain(), self.rng.choice("xy")
            ids = tuple(block(domain, n) for n in self.names())
            after = self.rng.choice([None, 0, 3, hook.position().offset])
            where = self.rng.choice(["gpu", "gpu", "cpu", "disk"])
            start = TransferStarted(
                transfer=name, source="w", holder=where, group=0, profile=0, ids=ids, admitted_after=after
            )
            ends: list[DomainEvent] = [
                TransferCommitted(transfer=name, digest=transfer_digest(list(ids))),
                TransferAborted(transfer=name),
                TransferRejected(transfer=name, request=getattr(self, "request", 0)),
            ]
            event = self.rng.choice([start, *ends])
            parts.setdefault(domain, []).append(event)
        hook.write(parts=parts, lost=self.wrong(0.2), signed=self.rng.random() < 0.3)

    def regroup(self, hook: HookStub) -> None:
        opening = hook.opening(second_tier=self.rng.random() < 0.3)
        groups = (*opening.holders[0].groups, Group(index=1, kind=GroupKind.FULL, block_tokens=16))
        if self.rng.random() < 0.5:
            first = opening.holders[0].model_copy(update={"groups": groups})
            opening = opening.model_copy(update={"holders": (first, *opening.holders[1:])})
        if self.rng.random() < 0.4:
            opening = opening.model_copy(update={"engine_life": "another"})
        hook.write(SnapshotBegin(snapshot="s", opened=opening))

    def shuttle(self, hook: HookStub) -> None:
        domain, places = self.domain(), self.rng.sample(["gpu", "disk", "cpu"], 2)
        ids = tuple(block(domain, n) for n in self.names())
        event = TierChanged(from_holder=places[0], to_holder=places[1], group=0, ids=ids)
        hook.write(parts={domain: [event]}, signed=self.rng.random() < 0.3)

    def beside(self, hook: HookStub) -> None:
        partition = self.rng.choice([None, None, 0, 1])
        heir = self.log.hook(hook.worker, rank=hook.rank, life=hook.life, partition=partition)
        heir.open(inventory=self.rng.choice([Inventory.EMPTY, Inventory.PARTIAL]), durable_id=None)
        if self.rng.random() < 0.6:
            heir.held = {where: dict(copies) for where, copies in hook.held.items()}
            heir.snapshot()

    def undeclared(self, hook: HookStub) -> None:
        domain = self.domain()
        hook.write(parts={domain: [declared(7)]}, lost=self.rng.random() < 0.8)
        ids = (block(domain, self.rng.randrange(6)),)
        event = BlockStored(
            holder=self.rng.choice(["gpu", "nowhere"]), group=0, profile=7, ids=ids, admitted_after=3,
            lineage=self.rng.choice(list(Lineage)),
        )  # fmt: skip
        hook.write(parts={domain: [event]}, signed=self.rng.random() < 0.3)

    def overtake(self, hook: HookStub) -> None:
        """A record stays out of the log, and comes when others have."""
        emptied = Cleared(holders=("gpu",))
        said = emptied if self.rng.random() < 0.3 else UnknownEvents(kind="k", length=1)
        raw = hook.write(said, lost=True)
        hook.write(signed=self.rng.random() < 0.5)
        self.log.events.setdefault(hook.partition, []).append(raw)

    def lag(self, hook: HookStub) -> None:
        hook.installed = (
            NEWEST if hook.installed != NEWEST else max(hook.epoch_no, hook.position().offset - 2)
        )

    def overclaim(self, hook: HookStub) -> None:
        hook.store(self.domain(), *self.names(), admitted=10_000, lineage=self.rng.choice(list(Lineage)))

    def list_pending(self, hook: HookStub) -> None:
        domain = self.rng.choice(MINE)
        one = block(domain, self.rng.randrange(6))
        hook.snapshot({domain: {one: self.rng.choice([None, 3])}}, pending={one: self.rng.choice("xyz")})

    def end_somewhere(self, hook: HookStub) -> None:
        if self.rng.random() < 0.5:
            hook.write(Closed(engine_ended=self.rng.random() < 0.7))
        else:
            end = ExitAttested(worker=hook.worker, engine_life=hook.life, attester="s", evidence="e")
            self.log.say(end, Role.SUPERVISOR)

    def own(self, hook: HookStub) -> None:
        if self.rng.random() < 0.2:
            self.log.say(HolderDestroyed(durable_id="store", evidence="e"), Role.SUPERVISOR)
        else:
            self.log.say(
                HolderEnrolled(durable_id="store", tier=Tier.DISK, owner=hook.worker), Role.ENROLMENT
            )

    def chain(self, hook: HookStub) -> None:
        """One link of a chain of which other workers may tell other links."""
        at = self.rng.randrange(1, 6)
        admitted = 3 if self.rng.random() < 0.5 else hook.position().offset
        hook.store("acme", at, parent=block("acme", at - 1), admitted=admitted)

    def misplace(self, hook: HookStub) -> None:
        partition, hook.partition = hook.partition, self.rng.randrange(4)
        hook.store(self.domain(), 3)
        hook.partition = partition

    def half_ack(self, hook: HookStub) -> None:
        if hasattr(self, "request"):
            standing = RequestStanding(request=self.request, removed=0, old_left=0)
            hook.write(parts={self.rng.choice(MINE): [Ack(requests=(standing,))]}, signed=True)

    def retire(self, hook: HookStub) -> None:
        hook.write(parts={self.domain(): [ProfileRetired(profile=0), declared(2)]})
