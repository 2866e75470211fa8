"""A simulated fleet with a durable store that keeps its blocks encrypted: what can really still be read in it, beside
what the log says of its keys. The operator and the store tell the truth, and tell it in time; they make mistakes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from auditor.finding import Condition
from events.chain import store_alias
from events.ids import Role, Tier
from events.keyring import storage_key_id
from events.model.control import (
    ExitAttested,
    HolderEncrypted,
    HolderEnrolled,
    KeyDestroyed,
    KeyListed,
    RingNamed,
)
from events.model.part import BlockStored, Orphans
from tests.support.audit_fault import NONE, Faults
from tests.support.audit_simulation import BLOCKS, STEPS, SimFleet
from tests.support.light_log import KEYS, write

STORE, KEEPER = "vault", "keeper"
ALIASES = {"acme": store_alias(KEYS["acme"], STORE), "": None}


@dataclass(frozen=True)
class KeyFaults:
    """Probabilities that a fleet's store meets with each; `kept` and `late` for each ring."""

    kept: float = 0.0
    late: float = 0.0
    restored: float = 0.0
    rotated: float = 0.0
    plain: float = 0.0
    undeclared: float = 0.0
    writes_on: float = 0.0


PERFECT = KeyFaults()
CARELESS = KeyFaults(0.05, 0.1, 0.15, 0.25, 0.1, 0.1, 0.1)
KEY_FAULTS: dict[str, KeyFaults] = {
    one.name: KeyFaults(**{one.name: 0.15 if one.name == "kept" else 0.5}) for one in fields(KeyFaults)
}


class KeyFleet(SimFleet):
    """Three workers, and a fourth that owns the store and ends in the course of the run. Its blocks lie under the key
    of their domain, those of no domain under one more."""

    stores: Mapping[str, str] = {KEEPER: STORE}

    def __init__(self, seed: int, keys: KeyFaults, faults: Faults = NONE, *without: Condition) -> None:
        super().__init__(seed, faults, *without)
        self.keys = keys
        self.disk: list[tuple[int, str | None]] = []
        self.where: dict[str, set[str]] = {}
        self.under: dict[str, str | None] = {}
        self.stray = 0
        self.forgotten: set[str | None] = set()
        self.hit: set[str] = set()
        write(self.registry, HolderEnrolled(durable_id=STORE, tier=Tier.DISK, owner=KEEPER), Role.ENROLMENT)
        for domain in ALIASES:
            if self.met("undeclared"):
                self.under[domain] = None
            else:
                self.new_key(domain)
        self.keeper = self.birth(KEEPER)
        self.hooks.remove(self.keeper)
        self.ends_at = self.rng.randrange(10, STEPS)

    def met(self, fault: str) -> bool:
        struck = self.chance(getattr(self.keys, fault))
        self.hit |= {fault} if struck else set()
        return struck

    def new_key(self, domain: str) -> None:
        """Declares, lists and uses a key; one of its rings may come to light later."""
        key = f"k{len(self.where)}"
        self.where[key] = {"a", "b"} | ({"late"} if self.met("late") else set())
        self.declare(domain, key)
        self.list_rings(key, *sorted(self.where[key] - {"late"}))

    def declare(self, domain: str, key: str | None) -> None:
        hashed = None if key is None else storage_key_id(key)
        body = HolderEncrypted(durable_id=STORE, alias=ALIASES[domain], key=hashed)
        write(self.registry, body, Role.ENROLMENT)
        self.under[domain] = key

    def list_rings(self, key: str, *rings: str) -> None:
        named = tuple(RingNamed(ring=one) for one in rings)
        write(self.registry, KeyListed(key=storage_key_id(key), rings=named), Role.CONTROL)

    def destroy(self, key: str, ring: str) -> None:
        """Really, and then attests it."""
        self.where[key].discard(ring)
        body = KeyDestroyed(key=storage_key_id(key), ring=ring, evidence="erased")
        write(self.registry, body, Role.SUPERVISOR)

    def deliver(self, step: int) -> None:
        super().deliver(step)
        if step < self.ends_at:
            self.keep(step)
        elif step == self.ends_at:
            self.keeper.alive = False
            body = ExitAttested(worker=KEEPER, engine_life=self.keeper.life, attester="s", evidence="exit")
            write(self.registry, body, Role.SUPERVISOR)
        if step == STEPS:
            self.shred()
        self.keeper.flush()

    def keep(self, step: int) -> None:
        """The store takes blocks in; now and then its key changes, or it goes on without."""
        hook, dice = self.keeper, self.rng.random()
        if self.rng.random() < 0.5:
            hook.installed = self.registry.next_offset - 1
        if dice < 0.3:
            self.take(hook.installed)
        elif dice < 0.35:
            self.stray += 1
            self.disk.append((hook.installed, self.under[""]))
            hook.say(Orphans(holder="disk", orphans=0, unassigned=self.stray))
        elif step == self.ends_at // 2:
            domain = self.rng.choice(list(ALIASES))
            if self.met("rotated"):
                if self.chance(0.5):
                    self.forgotten.add(self.under[domain])
                self.new_key(domain)
            if self.met("plain"):
                self.declare(domain, None)
        elif step == self.ends_at - 1 and self.under["acme"] is not None and self.met("writes_on"):
            for key in self.where:
                for ring in sorted(self.where[key] - {"late"}):
                    self.destroy(key, ring)
            self.under["acme"] = None
            hook.installed = self.registry.next_offset - 1
            self.take(hook.installed)

    def take(self, after: int) -> None:
        """A block of the domain, under the key that is in use; of a key that is nowhere any more none can be made."""
        key = self.under["acme"]
        if key is not None and not self.where[key]:
            return
        self.disk.append((after, key))
        one = self.rng.choice(BLOCKS)
        self.keeper.say(
            events=[BlockStored(holder="disk", group=0, profile=0, ids=(one,), admitted_after=after)]
        )

    def shred(self) -> None:
        """Every key is destroyed wherever it is known to be, but for what is forgotten; then things come to light."""
        for key, rings in self.where.items():
            for ring in sorted(rings - {"late"}) if key not in self.forgotten else ():
                if not self.met("kept"):
                    self.destroy(key, ring)
            if "late" in rings:
                self.list_rings(key, "late")
                if self.chance(0.5):
                    self.destroy(key, "late")
            if self.met("restored"):
                rings.add("a")
                self.list_rings(key, "a")
                if self.chance(0.3):
                    self.destroy(key, "a")

    @property
    def readable(self) -> bool:
        """Whether something old lies in the store that somebody could still read."""
        return any(after < self.request and (key is None or self.where[key]) for after, key in self.disk)

    @property
    def holds_old(self) -> bool:
        return super().holds_old or self.readable
