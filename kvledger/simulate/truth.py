"""What is true of a fleet: residency, who was eligible, what was disturbed, what its hooks vouched for.

All stamps are nanoseconds of one monotonic clock, the test host's. The checker judges lookups by it; nothing
that serves lookups ever sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvledger.simulate.disturbance import EXCUSED_S, Disturbance, Disturbances, Period
from kvledger.simulate.residency import ClockNs, ResidencyLog
from kvledger.simulate.vouch import Vouches, WorkerRank

Journal = Callable[[str, Sequence[object], Sequence[int]], None]
"""Is told every change of the truth: (operation, arguments, the clock's readings for it)."""
TIERS = ("gpu", "cpu", "disk", "remote")
"""In the order in which an answer adds them up."""


@dataclass(slots=True)
class _StrictClock:
    """Shared by the tiers of one worker rank, so that their mutations have one order."""

    clock_ns: ClockNs
    last_ns: int = -1

    def __call__(self) -> int:
        now = self.clock_ns()
        self.last_ns = now = now if now > self.last_ns else self.last_ns + 1
        return now


class Truth:
    """A fleet's truth. `residency` is the first tier, which every worker has; `log_of` makes others."""

    def __init__(self, clock_ns: ClockNs) -> None:
        self.residency: dict[WorkerRank, ResidencyLog] = {}
        self.disturbances = Disturbances()
        self.vouches = Vouches()
        self.journal: Journal | None = None
        self._clock_ns = clock_ns
        self._tiers: dict[WorkerRank, dict[str, ResidencyLog]] = {}
        self._clocks: dict[WorkerRank, _StrictClock] = {}
        self._eligible: dict[WorkerRank, list[Period]] = {}
        self._basis: dict[WorkerRank, str] = {}
        self._draining: dict[WorkerRank, list[Period]] = {}
        self._ghosts: dict[WorkerRank, list[tuple[str, int]]] = {}
        self._hidden: dict[str, list[Period]] = {}

    def now_ns(self) -> int:
        """The truth's clock, now."""
        return self._clock_ns()

    def log_of(self, worker: str, rank: int = 0, tier: str = "gpu") -> ResidencyLog:
        """That worker rank's log of a tier (one of `TIERS`), made on first use."""
        who = (worker, rank)
        tiers = self._tiers.setdefault(who, {})
        log = tiers.get(tier)
        if log is None:
            if tier not in TIERS:
                raise ValueError(f"{tier} is no tier")
            clock = self._clocks.setdefault(who, _StrictClock(self._clock_ns))
            log = tiers[tier] = ResidencyLog(clock)
            if tier == "gpu":
                self.residency[who] = log
            if self.journal is not None:
                self._listen(who, tier, log)
        return log

    def levels_of(self, who: WorkerRank) -> Sequence[Sequence[ResidencyLog]]:
        """For each of `TIERS` the logs of it and of those before it."""
        tiers = self._tiers.get(who, {})
        return [[tiers[t] for t in TIERS[: level + 1] if t in tiers] for level in range(len(TIERS))]

    def record(self, journal: Journal) -> None:
        """From now on tells `journal` of every change. Begin before anything has happened."""
        self.journal = journal
        for who, tiers in self._tiers.items():
            for tier, log in tiers.items():
                self._listen(who, tier, log)

    def enlist(self, worker: str, rank: int = 0, *, basis: str = "engine") -> None:
        """From now on an answer that calls itself complete must know this worker rank.

        `basis` is the strongest word that it can give. With "published" it answers for what it put on the
        wire, else for what it did.
        """
        now = self._now("enlist", worker, rank, basis)
        self._basis[worker, rank] = basis
        self._eligible.setdefault((worker, rank), []).append(Period(now))

    def retire(self, worker: str, rank: int = 0) -> None:
        """Fenced, closed or superseded: no longer eligible."""
        _close(self._eligible.get((worker, rank), []), self._now("retire", worker, rank))

    def split(self, worker: str, rank: int = 0) -> ResidencyLog:
        """Another process takes the worker's name now: its engine has the worker's log from here on and must
        begin a life in it. What the old process goes on to do belongs into the log returned (and, for
        another tier, into `log_of(name, rank, tier)` with the returned one's name from `ghosts_of`): an
        answer that admits to be older than this instant may still be about that one."""
        now = self._now("split", worker, rank)
        who = (worker, rank)
        ghosts = self._ghosts.setdefault(who, [])
        name = f"{worker}~{len(ghosts) + 1}"
        ghosts.append((name, now))
        for tier, log in list(self._tiers.get(who, {}).items()):
            self.log_of(name, rank, tier).load(log.dump())
        return self.log_of(name, rank)

    def ghosts_of(self, who: WorkerRank, low_ns: int) -> list[WorkerRank]:
        """Former processes of the worker rank that lost its name at or after `low_ns`, as `residency` has them."""
        return [(name, who[1]) for name, lost_ns in self._ghosts.get(who, ()) if lost_ns >= low_ns]

    def drain(self, worker: str, rank: int = 0) -> None:
        """A planned leave was, or is about to be, told: from now on it may be left out as draining."""
        self._draining.setdefault((worker, rank), []).append(Period(self._now("drain", worker, rank)))

    def disturb(self, worker: str | None = None, *, excused_s: float = EXCUSED_S, kind: str = "") -> None:
        """Trouble begins for that worker, or with None for everybody (service, log). It excuses nothing
        after `excused_s`, and then counts as unrepaired."""
        self.disturbances.begin(worker, self._now("disturb", worker, excused_s, kind), excused_s, kind)

    def calm(self, worker: str | None = None) -> None:
        """The newest open trouble of that scope ends now; the checker allows time to settle after it."""
        self.disturbances.end(worker, self._now("calm", worker))

    def was_slow(self, start_ns: int, end_ns: int) -> None:
        """The test's host itself stood still from then to then, which excuses everybody's lateness."""
        if self.journal is not None:
            self.journal("slow", (start_ns, end_ns), ())
        # Its own stretch, so no limit but its length applies.
        one = Disturbance(None, Period(start_ns, end_ns), end_ns - start_ns, "host stood still")
        self.disturbances.add(one)

    def unrepaired(self) -> Sequence[Disturbance]:
        """Troubles that have lasted longer than they may."""
        return self.disturbances.unrepaired(self._clock_ns())

    def hide(self, tenant: str) -> None:
        """A deletion of the tenant is about to be written: from now on its blocks may be filtered."""
        self._hidden.setdefault(tenant, []).append(Period(self._now("hide", tenant)))

    def unhide(self, tenant: str) -> None:
        """No filter of the tenant can be in force any more."""
        _close(self._hidden.get(tenant, []), self._now("unhide", tenant))

    def vouch(self, worker: str, rank: int, confirmed_ns: int) -> None:
        """A hook sends a pulse now that confirms all that was made before `confirmed_ns`; -1: nothing."""
        self.vouches.add((worker, rank), self._now("vouch", worker, rank, confirmed_ns), confirmed_ns)

    def basis_of(self, who: WorkerRank) -> str:
        """The strongest word that the worker rank can give."""
        return self._basis.get(who, "engine")

    def eligible_through(self, low_ns: int, high_ns: int) -> list[WorkerRank]:
        """Worker ranks that were eligible at every instant of [low, high]."""
        return [
            who for who, periods in self._eligible.items() if any(p.covers(low_ns, high_ns) for p in periods)
        ]

    def eligible_sometime(self, low_ns: int, high_ns: int) -> list[WorkerRank]:
        """Worker ranks that were eligible at some instant of [low, high]."""
        return [
            who for who, periods in self._eligible.items() if any(p.touches(low_ns, high_ns) for p in periods)
        ]

    def was_eligible_through(self, who: WorkerRank, low_ns: int, high_ns: int) -> bool:
        """Whether that one was eligible at every instant of [low, high]."""
        return any(p.covers(low_ns, high_ns) for p in self._eligible.get(who, ()))

    def eligible_since(self, who: WorkerRank, by_ns: int) -> int:
        """When its newest time of being eligible began, of those begun by then."""
        return max((p.start_ns for p in self._eligible.get(who, ()) if p.start_ns <= by_ns), default=by_ns)

    def was_draining(self, who: WorkerRank, by_ns: int) -> bool:
        """Whether a planned leave was told by then."""
        return any(p.start_ns <= by_ns for p in self._draining.get(who, ()))

    def was_disturbed(self, worker: str, low_ns: int, high_ns: int) -> bool:
        """True if trouble of that worker or of everybody excuses some instant of [low, high]."""
        return bool(self.disturbances.touching(worker, low_ns, high_ns))

    def was_hidden(self, tenant: str, low_ns: int, high_ns: int) -> bool:
        """True if a deletion may have hidden the tenant at some instant of [low, high]."""
        return any(p.touches(low_ns, high_ns) for p in self._hidden.get(tenant, ()))

    def forget_before(self, at_ns: int) -> None:
        """Lets go of residency and pulses that no question on `at_ns` or later needs."""
        for tiers in self._tiers.values():
            for log in tiers.values():
                log.forget_before(at_ns)
        self.vouches.forget_before(at_ns)

    def dump(self) -> dict[str, Any]:
        """All of it in JSON's types, for `load`."""
        return {
            "tiers": [
                [*who, tier, log.dump()] for who, tiers in self._tiers.items() for tier, log in tiers.items()
            ],
            "eligible": [[*who, _pairs(periods)] for who, periods in self._eligible.items()],
            "draining": [[*who, _pairs(periods)] for who, periods in self._draining.items()],
            "basis": [[*who, basis] for who, basis in self._basis.items()],
            "ghosts": [[*who, ghosts] for who, ghosts in self._ghosts.items()],
            "hidden": [[tenant, _pairs(periods)] for tenant, periods in self._hidden.items()],
            "vouches": self.vouches.dump(),
            "disturbed": [
                [d.worker, *_pairs([d.period]), d.excused_ns, d.kind] for d in self.disturbances.all
            ],
        }

    def load(self, dumped: dict[str, Any]) -> None:
        """Becomes what `dump` gave. Raises KeyError, TypeError or ValueError."""
        for worker, rank, tier, log in dumped["tiers"]:
            self.log_of(worker, rank, tier).load(log)
        for table, name in ((self._eligible, "eligible"), (self._draining, "draining")):
            table.update({(worker, rank): _periods(pairs) for worker, rank, pairs in dumped[name]})
        self._basis = {(worker, rank): basis for worker, rank, basis in dumped["basis"]}
        self._ghosts = {
            (worker, rank): [(name, lost_ns) for name, lost_ns in ghosts]
            for worker, rank, ghosts in dumped["ghosts"]
        }
        self._hidden = {tenant: _periods(pairs) for tenant, pairs in dumped["hidden"]}
        self.vouches.load(dumped["vouches"])
        self.disturbances = Disturbances()
        for worker, pair, excused_ns, kind in dumped["disturbed"]:
            self.disturbances.add(Disturbance(worker, _periods([pair])[0], excused_ns, kind))

    def repeat(self, operation: str, arguments: Sequence[Any]) -> None:
        """Does again what a journal was told; the clock must give the stamps on record. Raises KeyError,
        TypeError or ValueError for what no journal was told."""
        if operation in _OF_LOGS:
            worker, rank, tier, *rest = arguments
            log = self.log_of(worker, rank, tier)
            if operation == "store":
                log.store(rest)
            else:
                getattr(log, _OF_LOGS[operation])(*rest)
        elif operation == "disturb":
            worker, excused_s, kind = arguments
            self.disturb(worker, excused_s=excused_s, kind=kind)
        elif operation == "enlist":
            worker, rank, basis = arguments
            self.enlist(worker, rank, basis=basis)
        else:
            getattr(self, _OF_TRUTHS[operation])(*arguments)

    def _listen(self, who: WorkerRank, tier: str, log: ResidencyLog) -> None:
        journal = self.journal
        assert journal is not None
        log.tell = lambda op, args, stamps: journal(op, (*who, tier, *args), stamps)

    def _now(self, op: str, *args: object) -> int:
        now = self._clock_ns()
        if self.journal is not None:
            self.journal(op, args, (now,))
        return now


_OF_LOGS = {"store": "store", "drop": "drop", "doubt": "doubt", "clear": "clear", "publish": "publish"} | {
    "life": "begin_life"
}
_OF_TRUTHS = {name: name for name in ("retire", "split", "drain", "calm", "hide", "unhide", "vouch")} | {
    "slow": "was_slow"
}


def _pairs(periods: Sequence[Period]) -> list[tuple[int, int | None]]:
    return [(period.start_ns, period.end_ns) for period in periods]


def _periods(pairs: Sequence[tuple[int, int | None]]) -> list[Period]:
    return [Period(start_ns, end_ns) for start_ns, end_ns in pairs]


def _close(periods: list[Period], now_ns: int) -> None:
    if periods and periods[-1].end_ns is None:
        periods[-1] = Period(periods[-1].start_ns, now_ns)
