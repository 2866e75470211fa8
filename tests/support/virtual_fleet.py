"""A whole fleet in virtual time: simulated engines, real hooks, a log without a broker, a real view, the truth.

One seed, one run: engines serve, faults strike, somebody looks up every few milliseconds, and the checker judges
each answer. Nothing of the product is replaced but Kafka and the clocks, so what is patched in it shows here.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from events.chain import sha256
from events.codec import dump
from events.fold.change import Outcome as FoldOutcome
from events.fold.registry import Registry
from events.hooks.engine_port import Confirmation, Confirmed
from events.hooks.engine_stream import EngineStream
from events.hooks.hook import Hook, HookIdentity, HookServices
from events.hooks.registration import Registrar
from events.hooks.reset_turn import ResetTurns
from events.hooks.signal_tail import SignalTail
from events.identity import make_salt
from events.ids import Basis, StreamStatus
from events.keyring import KeyRing
from events.model.signal import Beacon, ResyncRequested
from events.signing import verify
from kvledger.simulate.checker import Checker
from kvledger.simulate.engine import SimEngine
from kvledger.simulate.fleet_plan import MODEL, FleetPlan
from kvledger.simulate.lookup import Credit, Exclusion, Lookup, Outcome
from kvledger.simulate.prompt import Prompt, PromptPlanner
from kvledger.simulate.residency import ResidencyLog
from kvledger.simulate.trace import TraceRequest
from kvledger.simulate.truth import Truth
from kvledger.simulate.worker import SimWorker
from router_client import answer as answering
from router_client.query import Query
from router_client.view import LocalView
from router_client.wire import Answer, OnStale
from tests.support.virtual_log import (
    NOWHERE,
    TENANT,
    ControlFollower,
    VirtualEmitter,
    VirtualLog,
    VirtualPulser,
)
from tests.support.virtual_loop import run_virtual

RING = KeyRing({TENANT: sha256(TENANT.encode())})
SALT = make_salt(RING[TENANT].salt_key, TENANT)
PLAN = FleetPlan(capacity_blocks=48, step_s=0.02, slots=3)
BLOCK = PLAN.block_tokens
READER = "reader"


class UnconfirmedWorker(SimWorker):
    """As behind a bridge without a replay socket: nobody can say that its events are all here."""

    async def confirm(self, timeout_s: float) -> Confirmation:
        self._confirmed(self._truth.now_ns())
        return Confirmed(Basis.UNCONFIRMED)


@dataclass
class Member:
    """One engine, its hook, and the process that the hook lives in."""

    worker: SimWorker
    hook: Hook
    control: ControlFollower
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    listener: object = None

    @property
    def name(self) -> str:
        return self.worker.name


class VirtualFleet:
    """`run` is one trial; afterwards `checker` has judged everything."""

    def __init__(self, seed: int, *, unconfirmed: bool = False) -> None:
        self.rng = random.Random(seed)
        self.loop = asyncio.get_running_loop()
        self.truth = Truth(self.now_ns)
        self.checker = Checker(self.truth, floor_ms=450, transit_ms=150, settle_ms=2500)
        self.log = VirtualLog(self.rng, self.deliver, self.hear, self.signal)
        self.members: list[Member] = []
        self.zombies: list[Member] = []
        self.refused: Counter[str] = Counter()
        self.struck: Counter[str] = Counter()
        self.unconfirmed = unconfirmed
        self.paused: set[str] = set()
        self.apply_lag_s = 0.0
        self._planner = PromptPlanner(block_size=BLOCK)
        self._prompts: list[tuple[int, ...]] = []
        self._ids = 0
        self._asked_resync: dict[object, int] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.follower = ControlFollower(self.log.control, self.rng, self._control_moved)
        self.view = LocalView(
            READER, self.follower.registry, RING, control_current_ns=lambda: self.follower.current_ns
        )

    def now_ns(self) -> int:
        return round(self.loop.time() * 1e9)

    # --- members ------------------------------------------------------------------------------------

    def add(self, name: str, *, log: ResidencyLog, birth: str = "", weak: bool = False) -> Member:
        """An engine with its hook, which begins to register."""
        rng = random.Random(f"{name}{birth}{self.rng.random()}")
        engine = SimEngine(
            name,
            capacity_blocks=PLAN.capacity_blocks,
            clock_ns=self.now_ns,
            block_size=BLOCK,
            salt_of=lambda _: SALT,
            log=log,
            birth=birth,
        )
        kind = UnconfirmedWorker if weak else SimWorker
        worker = kind(engine, self.truth, slots=PLAN.slots, step_s=PLAN.step_s)
        registry = Registry(verify)
        for offset, record in enumerate(self.log.control.log.records):
            registry.fold(offset, *record)

        def moved(offset: int) -> None:
            registry.fold(offset, *self.log.control.log.records[offset])
            hook.control_moved()

        follower = ControlFollower(self.log.control, self.rng, moved, registry)
        turns = ResetTurns(registry, lambda turn: self.log.write_signal(dump(turn)), self.loop.time)
        services = HookServices(
            emitter=VirtualEmitter(self.log),
            registrar=Registrar(self.log.control, follower, entropy=rng.randbytes),
            registry=registry,
            keyring=RING,
            monotonic_s=self.loop.time,
            snapshot_name=lambda: rng.randbytes(4).hex(),
            turns=turns,
        )
        stream = EngineStream(name, 0, RING, PLAN.engine_config())
        hook = Hook(HookIdentity(name, 0, f"sim://{name}", MODEL), engine.life, worker, stream, services)
        worker.hook = hook
        tail = SignalTail(NOWHERE, hook.resync, turns.read)
        self.log.listeners.append(tail.read)
        pulser = VirtualPulser(NOWHERE, newest_beacon=lambda: tail.newest, hooks=lambda: {name: [hook]})
        pulser.log = self.log
        member = Member(worker, hook, follower, listener=tail.read)
        member.tasks = [
            self.loop.create_task(run()) for run in (follower.run, hook.run, pulser.run, worker.run)
        ]
        return member

    async def end(self, member: Member) -> None:
        """Gone in the middle of everything, without a word."""
        self.log.listeners.remove(member.listener)  # type: ignore[arg-type]
        member.worker.dead = True
        for task in member.tasks:
            task.cancel()
        await asyncio.gather(*member.tasks, return_exceptions=True)
        await member.hook.close(silently=True)

    # --- the reader -----------------------------------------------------------------------------------

    def _control_moved(self, offset: int) -> None:
        value, signature = self.log.control.log.records[offset]
        self.view.control_folded(*self.follower.registry.fold(offset, value, signature))

    def deliver(self, offset: int, value: bytes) -> None:
        """A record has come; it is applied at once, or after the reader's own lag."""
        self.on_received(value)
        if self.apply_lag_s:
            self.loop.call_later(self.apply_lag_s, self._apply, offset, value)
        else:
            self._apply(offset, value)

    def on_received(self, value: bytes) -> None:
        """For mutants: a record is fetched, but not applied yet."""

    def hear(self, value: bytes) -> None:
        self.view.apply_pulse(value, self.now_ns())

    def signal(self, offset: int, value: bytes) -> None:
        self.view.apply_signal(offset, value, self.now_ns())

    def _apply(self, offset: int, value: bytes) -> None:
        changes = self.view.apply_record(0, offset, value, self.now_ns())
        while not self.view.work(10_000):
            pass
        if changes is None or changes.outcome is FoldOutcome.DUPLICATE:
            return
        for key, stream in self.view.streams.items():
            due = self.now_ns() - self._asked_resync.get(key, 0) > 500_000_000
            if stream.state.status is StreamStatus.GAP and due:
                self._asked_resync[key] = self.now_ns()
                asked = ResyncRequested(worker=key.worker, rank=key.rank, epoch=key.epoch, reason="gap")
                self.log.write_signal(dump(asked))

    async def _beacons(self) -> None:
        while True:
            nonce = self.rng.randbytes(16)
            self.view.book.began(nonce, self.now_ns())
            self.log.write_signal(dump(Beacon(reader=READER, nonce=nonce)))
            await asyncio.sleep(0.1)

    # --- work -----------------------------------------------------------------------------------------

    async def _traffic(self) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(0.01, 0.06))
            member = self.rng.choice(self.members)
            if member.worker.busy < 4 and member.name not in self.paused:
                member.worker.submit(self.plan(self._next_ids()))

    def _next_ids(self) -> tuple[int, ...]:
        known = self._prompts
        begun = (
            self.rng.choice(known)[: self.rng.randrange(1, 9)] if known and self.rng.random() < 0.7 else ()
        )
        self._ids += 12
        ids = begun + tuple(range(self._ids - 12, self._ids - 12 + self.rng.randrange(1, 5)))
        self._prompts = [*known[-11:], ids]
        return ids

    def plan(self, ids: Sequence[int]) -> Prompt:
        size = len(ids) * BLOCK
        request = TraceRequest(0.0, None, TENANT, tuple(ids), size, self.rng.randrange(3) * BLOCK, BLOCK)
        return self._planner.plan(request, SALT)

    async def _lookups(self) -> None:
        await asyncio.sleep(1.0)
        while True:
            await asyncio.sleep(self.rng.uniform(0.01, 0.05))
            if self._prompts:
                self.look(self.plan(self.rng.choice(self._prompts)))

    def look(self, prompt: Prompt) -> None:
        """One lookup, judged."""
        rng = self.rng
        bound_ms = rng.choice((600.0, 600.0, 1000.0, 2000.0, None))
        weak = self.unconfirmed and rng.random() < 0.3
        names = [member.name for member in self.members]
        some = tuple(rng.sample(names, rng.randrange(1, 4))) if rng.random() < 0.15 else None
        query = Query(
            TENANT,
            MODEL,
            None,
            None,
            prompt.token_bytes(),
            bound_ms,
            on_stale=rng.choice((OnStale.DROP,) * 8 + (OnStale.FAIL, OnStale.INCLUDE)),
            min_coverage=rng.choice((None,) * 8 + (0, 2, 0.5, 1.0)),
            candidates=some,
            basis=Basis.UNCONFIRMED if weak else Basis.PUBLISHED,
            limit=1 if rng.random() < 0.1 else None,
        )
        now_ns = self.now_ns()
        found = answering.answer(self.view, query, now_ns, 0)
        if not isinstance(found, Answer):
            self.refused[found.kind.value] += 1
            judged = self._asked(prompt, query, now_ns, found.status)
        else:
            judged = self._asked(
                prompt,
                query,
                now_ns,
                200,
                credits=[self._credit(match) for match in found.matches],
                exclusions=[
                    Exclusion(
                        e.worker, -1 if e.dp_rank is None else e.dp_rank, e.reason.value, e.staleness_ms
                    )
                    for e in found.excluded
                ],
                complete=found.complete,
                staleness_ms=found.staleness_ms,
                coverage=(found.coverage.included, found.coverage.eligible),
            )
        self.checker.check(judged)

    @staticmethod
    def _asked(prompt: Prompt, query: Query, now_ns: int, status: int, **answer: object) -> Lookup:
        return Lookup(
            READER,
            TENANT,
            prompt.keys,
            query.bound_ms,
            now_ns,
            now_ns,
            status,
            on_stale=query.on_stale.value,
            min_coverage=query.min_coverage,
            limited=query.candidates is not None or query.limit is not None,
            candidates=query.candidates,
            basis=query.basis.value,
            **answer,  # type: ignore[arg-type]
        )

    def _credit(self, match: object) -> Credit:
        from router_client.wire import Match

        assert isinstance(match, Match)
        at = match.position
        missing_ns = None
        for member in [*self.members, *self.zombies]:
            if member.name == match.worker:
                missing_ns = missing_ns or member.worker.first_missing_ns(at.epoch, at.next_seq)
        stale_ms = float("nan") if match.staleness_ms is None else match.staleness_ms
        t = match.tiers
        return Credit(
            match.worker,
            match.dp_rank,
            match.matched_blocks,
            stale_ms,
            match.within_bound,
            match.basis.value,
            at.epoch,
            missing_ns,
            at.next_seq,
            (t.gpu // BLOCK, t.cpu // BLOCK, t.disk // BLOCK, t.remote // BLOCK),
            match.identity,
            match.inventory == "partial",
        )

    # --- a trial --------------------------------------------------------------------------------------

    async def begin(self, workers: int) -> None:
        """Reader, members, traffic and lookups."""
        spawn = self.loop.create_task
        self._tasks += [spawn(self.follower.run()), spawn(self._beacons())]
        for number in range(workers):
            weak = self.unconfirmed and number == workers - 1
            name = f"w{number}"
            self.members.append(self.add(name, log=self.truth.log_of(name), weak=weak))
        for member in self.members:
            assert await member.hook.opened(5.0)
            self.truth.disturb(member.name, kind="start")
            basis = "unconfirmed" if isinstance(member.worker, UnconfirmedWorker) else "engine"
            self.truth.enlist(member.name, basis=basis)
            self.truth.calm(member.name)
        self._tasks += [spawn(self._traffic()), spawn(self._lookups())]

    async def close(self) -> None:
        """Everything ends; raises what any part of it raised."""
        for task in self._tasks:
            task.cancel()
        done = await asyncio.gather(*self._tasks, return_exceptions=True)
        for member in [*self.members, *self.zombies]:
            done += [task.exception() for task in member.tasks if task.done() and not task.cancelled()]
            await self.end(member)
        for error in done:
            if isinstance(error, Exception):
                raise error


def violations(checker: Checker) -> int:
    """Verdicts that must not be; what answers themselves flag is none."""
    outcomes = checker.counts.outcomes
    return outcomes.total() - outcomes[Outcome.OK] - outcomes[Outcome.WRONG_FLAGGED]


def trial(
    seed: int,
    *,
    seconds: float = 10.0,
    unconfirmed: bool = False,
    apply_lag_s: float = 0.0,
    faults: Sequence[str] | None = None,
) -> VirtualFleet:
    """One run of a fleet of three, with all the faults of `tests.support.virtual_fault` or only those named.
    Stops at the first violation."""
    from tests.support.virtual_fault import FAULTS, omit, strike_on

    chosen = FAULTS if faults is None else tuple(f for f in (*FAULTS, omit) if f.__name__ in faults)

    async def work() -> VirtualFleet:
        fleet = VirtualFleet(seed, unconfirmed=unconfirmed)
        fleet.apply_lag_s = apply_lag_s
        try:
            await fleet.begin(3)
            striking = fleet.loop.create_task(strike_on(fleet, chosen))
            ends_s = fleet.loop.time() + seconds
            while fleet.loop.time() < ends_s and not violations(fleet.checker):
                await asyncio.sleep(0.1)
            striking.cancel()
            for result in await asyncio.gather(striking, return_exceptions=True):
                if isinstance(result, Exception):
                    raise result
        finally:
            await fleet.close()
        return fleet

    return run_virtual(work())
