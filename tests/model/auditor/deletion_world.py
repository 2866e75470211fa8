"""Two workers, two blocks and one deletion, moved one act at a time: the simulator's hooks, the real auditor.

An act may be struck by a fault, which is then certain to happen to it. Nothing here is drawn by chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from auditor.evidence import Evidence
from auditor.finding import Condition
from auditor.record import StreamRecord, UnreadableRecord
from auditor.verdict import decide, examine, lives, wants_nonce
from events.chain import sha256, transfer_digest
from events.ids import Inventory, Lineage, Role, VerdictKind
from events.model.control import AuditNonce, DeletionRequested, DomainScope, ExitAttested, Fenced, Registered
from events.model.part import Cleared, TierChanged, TransferCommitted, TransferStarted
from tests.support.audit_fault import NONE, Faults
from tests.support.audit_hook import PROFILE, Hook
from tests.support.audit_memory import Copies, older
from tests.support.light_log import KEYS, RING, begun, light_verify, write
from tests.support.log import block

BLOCKS = (block("scope", 0), block("scope", 1))
WORKERS = ("w0", "w1")
RECORD_FAULTS = ("lost", "unreadable", "equivocated")


class Act(NamedTuple):
    """What is done, by whom (-1: by nobody of the fleet), to which block (-1: to none), and what strikes it."""

    name: str
    worker: int = -1
    block: int = -1
    fault: str = ""

    def __str__(self) -> str:
        where = "" if self.worker < 0 else f" {WORKERS[self.worker]}"
        what = "" if self.block < 0 else f" block {self.block}"
        return f"{self.name}{where}{what}{f' ({self.fault})' if self.fault else ''}"


class World:
    """`hooks[n]` is worker n's newest epoch, `past` the ones before it, dead or cut off."""

    stores: Mapping[str, str] = {}

    def __init__(self, without: frozenset[Condition] = frozenset()) -> None:
        self.faults: Faults = NONE
        self.registry = begun()
        self.request = 1 << 60
        self.nonce: int | None = None
        self.written = self.drop = 0
        self.returned = self.lied = False
        self.armed = ""
        self.fed: list[StreamRecord | UnreadableRecord] = []
        self.evidence: Evidence | None = None
        self.past: list[Hook] = []
        self.hooks: list[Hook] = []
        self.without = without
        for worker in WORKERS:
            self.hooks.append(self.registered(worker, f"{worker}-life"))
        for hook in self.hooks:
            hook.installed = self.registry.next_offset - 1
            self.open(hook, Inventory.EMPTY)

    @classmethod
    def at(cls, path: tuple[Act, ...], without: frozenset[Condition] = frozenset()) -> World:
        world = cls(without)
        for act in path:
            world.do(act)
        return world

    # --- as hooks see it --------------------------------------------------------------------------

    def strikes(self, fault: str, times: float = 1.0) -> bool:
        del times
        struck = self.armed == fault
        if struck:
            self.armed = ""
        return struck

    def chance(self, probability: float) -> bool:
        return probability > 0.6

    def evidence_feed(self, record: StreamRecord | UnreadableRecord) -> None:
        self.fed.append(record)
        if self.evidence is not None:
            self.evidence.feed(record)

    def registered(self, worker: str, life: str, heir: Hook | None = None) -> Hook:
        epoch = f"{worker}e{len(self.past)}"
        body = Registered(
            worker=worker,
            rank=0,
            epoch=epoch,
            engine_life=life,
            public_key=sha256(epoch.encode()),
            partition=0,
        )
        number = write(self.registry, body, Role.ENROLMENT)
        hook = Hook(self, worker, life, epoch, number, heir.copies if heir else Copies())
        hook.prev = next(e.record_sha256 for e in self.registry.epochs.values() if e.epoch_no == number)
        hook.installed, hook.alias = number, RING["acme"].alias(worker, 0, number)
        if heir is not None:
            hook.known, hook.landing = heir.known, heir.landing
        return hook

    def open(self, hook: Hook, inventory: Inventory) -> None:
        hook.say(hook.opening(inventory), events=[PROFILE])
        hook.flush()

    # --- acts ---------------------------------------------------------------------------------------

    def moves(self, faults: bool) -> Iterator[Act]:
        """What can be done now; with `faults` also struck by each fault that can strike it."""
        for act, fatal in self._possible():
            yield act
            if faults:
                yield from (act._replace(fault=fault) for fault in fatal)
        if faults:
            for n, hook in enumerate(self.hooks):
                yield Act("hold back" if not hook.cut else "let through", n)
                for name in ("fence", "crash", "kill unattested", "reattach"):
                    yield Act(name, n)
                yield Act("reattach", n, fault="forgotten")

    def _possible(self) -> Iterator[tuple[Act, tuple[str, ...]]]:
        if self.evidence is None:
            yield Act("request"), ()
        elif self.nonce is None and wants_nonce(self.evidence, without=self.without):
            yield Act("nonce"), ()
        for n, hook in enumerate(self.hooks):
            newest = self.registry.next_offset - 1
            if hook.installed < newest:
                yield Act("install", n), ()
            if self.evidence is not None and not hook.cut:
                yield Act("obey", n), (*RECORD_FAULTS, "kept", "tombstone_ignored")
            yield Act("snapshot", n), (*RECORD_FAULTS, "laundered")
            yield Act("state", n), RECORD_FAULTS
            if hook.known and not hook.landing:
                yield Act("clear", n), RECORD_FAULTS
            for b, one in enumerate(BLOCKS):
                yield from self._with_block(n, hook, b, one)

    def _with_block(self, n: int, hook: Hook, b: int, one: bytes) -> Iterator[tuple[Act, tuple[str, ...]]]:
        coming = any(one == it for it, _ in hook.landing.values())
        if coming:
            yield Act("land", n, b), RECORD_FAULTS
        else:
            yield Act("compute", n, b), (*RECORD_FAULTS, "silent", "laundered")
            source = self.hooks[1 - n]
            if ("gpu", one) not in hook.known and source.copies.table.get(("gpu", one)):
                yield Act("begin", n, b), (*RECORD_FAULTS, "tombstone_ignored")
            if ("gpu", one) in hook.known:
                yield Act("demote", n, b), RECORD_FAULTS
        if ("cpu", one) in hook.known:
            yield Act("onload", n, b), (*RECORD_FAULTS, "laundered")
        for holder in ("gpu", "cpu"):
            if (holder, one) in hook.known:
                yield Act(f"evict {holder}", n, b), RECORD_FAULTS

    def do(self, act: Act) -> None:
        self.armed = act.fault
        if act.worker < 0:
            self._order(act.name)
            return
        hook = self.hooks[act.worker]
        one = BLOCKS[act.block] if act.block >= 0 else b""
        match act.name:
            case "install":
                hook.installed = self.registry.next_offset - 1
            case "obey":
                hook.installed = self.registry.next_offset - 1
                hook.obey()
            case "snapshot":
                hook.snapshot()
            case "state":
                hook.say(events=hook.statements(), signed=True)
            case "clear":
                hook.copies.table.clear()
                hook.known.clear()
                hook.say(Cleared(holders=("gpu", "cpu")))
            case "compute":
                hook.land("gpu", one, hook.installed, Lineage.PREFILL)
            case "onload":
                self._onload(hook, one)
            case "demote":
                self._demote(hook, one)
            case "begin":
                self._begin(hook, self.hooks[1 - act.worker], one)
            case "land":
                self._land(hook, one)
            case "evict gpu" | "evict cpu":
                hook.end(act.name.split()[1], one)
            case _:
                self._trouble(act)
        self.armed = ""
        for there in (*self.past, *self.hooks):
            there.flush()

    def _order(self, name: str) -> None:
        if name == "request":
            body = DeletionRequested(scope=DomainScope(domain="acme"), requester="scope")
            self.request = write(self.registry, body, Role.CONTROL)
            self.evidence = Evidence(self.registry.requests[self.request], self.registry, KEYS, light_verify)
            for record in self.fed:
                self.evidence.feed(record)
        else:
            self.nonce = write(self.registry, AuditNonce(request=self.request, nonce="n"), Role.AUDITOR)

    def _onload(self, hook: Hook, one: bytes) -> None:
        ages = hook.copies.table.get(("cpu", one))
        if ages:
            claimed = hook.known["cpu", one]
            if self.strikes("laundered"):
                claimed = hook.installed
            hook.land("gpu", one, min(ages), Lineage.ONLOAD, claimed=claimed)

    def _demote(self, hook: Hook, one: bytes) -> None:
        moved = hook.copies.table.pop(("gpu", one), [])
        hook.copies.table.setdefault(("cpu", one), []).extend(moved)
        after = hook.known.pop(("gpu", one))
        hook.known["cpu", one] = older(after, hook.known.get(("cpu", one), after))
        hook.say(events=[TierChanged(from_holder="gpu", to_holder="cpu", group=0, ids=(one,))])

    def _begin(self, hook: Hook, source: Hook, one: bytes) -> None:
        after = min(source.copies.table["gpu", one])
        ignored = self.strikes("tombstone_ignored")
        if (after < self.request <= hook.installed and not ignored) or hook.hides("gpu", one):
            return
        name = f"{hook.worker}-{hook.seq}"
        hook.landing[name] = (one, after)
        started = TransferStarted(
            transfer=name,
            source=source.worker,
            holder="gpu",
            group=0,
            profile=0,
            ids=(one,),
            admitted_after=after,
        )
        hook.say(events=[started])

    def _land(self, hook: Hook, one: bytes) -> None:
        name = next(name for name, (it, _) in hook.landing.items() if it == one)
        _, after = hook.landing.pop(name)
        hook.copies.table.setdefault(("gpu", one), []).append(after)
        self.returned = self.returned or (hook.acked and after < self.request)
        hook.known["gpu", one] = older(after, hook.known.get(("gpu", one), after))
        hook.say(events=[TransferCommitted(transfer=name, digest=transfer_digest([one]))])

    def _trouble(self, act: Act) -> None:
        hook = self.hooks[act.worker]
        if act.name in ("hold back", "let through"):
            hook.cut = not hook.cut
            return
        if act.name == "reattach":
            heir = self.born_again(act.worker, hook.life, hook)
            if act.fault == "forgotten":
                heir.known = dict.fromkeys(heir.known)
            heir.snapshot()
            return
        fence = Fenced(worker=hook.worker, rank=0, epoch=hook.epoch, evidence="timeout")
        if act.name == "fence":
            hook.cut = True
            write(self.registry, fence, Role.CONTROL)
        else:
            hook.copies.table.clear()
            if act.name == "crash":
                body = ExitAttested(worker=hook.worker, engine_life=hook.life, attester="s", evidence="exit")
                write(self.registry, body, Role.SUPERVISOR)
        self.born_again(act.worker, f"{hook.life}+", None, alive=act.name == "fence")

    def born_again(self, worker: int, life: str, heir: Hook | None, *, alive: bool = False) -> Hook:
        """The next epoch of a worker; what was before goes on unseen if it is `alive`."""
        before = self.hooks[worker]
        before.alive = alive
        self.past.append(before)
        self.hooks[worker] = made = self.registered(before.worker, life, heir)
        self.open(made, Inventory.PARTIAL if heir else Inventory.EMPTY)
        return made

    # --- what is true, and what is said of it -------------------------------------------------------

    @property
    def holds_old(self) -> bool:
        there = [*self.hooks, *(hook for hook in self.past if hook.alive)]
        return any(
            hook.copies.old(self.request) or any(after < self.request for _, after in hook.landing.values())
            for hook in there
        )

    def verdict(self) -> VerdictKind | None:
        """None before there is a request."""
        if self.evidence is None:
            return None
        owing, gone = lives(self.evidence)
        return decide(examine(self.evidence, owing, gone, self.without)[0])

    def unsound(self) -> bool:
        verdict = self.verdict()
        if verdict is VerdictKind.PROVEN:
            return self.holds_old
        if verdict is VerdictKind.REFUTED:
            return not (self.holds_old or self.returned or self.lied)
        return False
