"""Verdicts of the real auditor on simulated fleets, held against what their memory really had.

`python -m tests.model.auditor.soundness --runs 100000` plays that many faulty fleets on every core and prints,
for each kind of fault, how often each verdict came and how often one was unsound. Exit code 1 if any was.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field

from events.ids import VerdictKind
from tests.support.audit_fault import ALONE, MILD, NONE, PROFILES, Faults
from tests.support.audit_simulation import SimFleet

SHARES: Mapping[str, Faults] = {
    "(none)": NONE,
    "(mild)": MILD,
    **PROFILES,
    **{f"only {name}": one for name, one in ALONE.items()},
}
BATCH = 100
TELL_S = 60.0
ENOUGH_SHOWN = 5


@dataclass
class Tally:
    """Runs of one kind of fleet. `faulty`: those in which a fault really struck; `struck`: how often each did."""

    runs: int = 0
    faulty: int = 0
    verdicts: Counter[VerdictKind] = field(default_factory=Counter)
    struck: Counter[str] = field(default_factory=Counter)
    unsound: Counter[VerdictKind] = field(default_factory=Counter)
    seeds: list[int] = field(default_factory=list)

    def add(self, seed: int, fleet: SimFleet) -> None:
        verdict = fleet.verdict()
        self.runs += 1
        self.faulty += bool(+fleet.struck)
        self.struck += +fleet.struck
        self.verdicts[verdict] += 1
        if unsound(fleet, verdict):
            self.unsound[verdict] += 1
            self.seeds.append(seed)

    def __iadd__(self, other: Tally) -> Tally:
        self.runs += other.runs
        self.faulty += other.faulty
        self.verdicts += other.verdicts
        self.struck += other.struck
        self.unsound += other.unsound
        self.seeds += other.seeds
        return self

    @property
    def decided(self) -> float:
        """Share of runs that came out PROVEN or REFUTED."""
        return (self.verdicts[VerdictKind.PROVEN] + self.verdicts[VerdictKind.REFUTED]) / max(self.runs, 1)

    def line(self, name: str) -> str:
        shares = " ".join(f"{self.verdicts[kind] / max(self.runs, 1):10.1%}" for kind in VerdictKind)
        wrong = f"{self.unsound[VerdictKind.PROVEN]:8} {self.unsound[VerdictKind.REFUTED]:8}"
        return f"{name:26} {self.runs:8} {self.faulty:8} {shares} {wrong}"


def played(seed: int, faults: Faults) -> SimFleet:
    fleet = SimFleet(seed, faults)
    fleet.run()
    return fleet


def unsound(fleet: SimFleet, verdict: VerdictKind) -> bool:
    """PROVEN while something old is there; REFUTED though nothing old was kept, came back, or was denied."""
    if verdict is VerdictKind.PROVEN:
        return fleet.holds_old
    if verdict is VerdictKind.REFUTED:
        return not (fleet.holds_old or fleet.returned or fleet.lied)
    return False


def batch(name: str, seeds: range) -> tuple[str, Tally]:
    """Plays some fleets of one kind; in a process of its own."""
    gc.freeze()
    gc.disable()
    tally = Tally()
    for seed in seeds:
        tally.add(seed, played(seed, SHARES[name]))
    gc.collect()
    gc.enable()
    return name, tally


def batches(first: int, names: list[str]) -> Iterator[tuple[str, range]]:
    """For ever. The kinds take turns, so that any beginning of the whole is a fair sample of it."""
    while True:
        yield from ((name, range(first, first + BATCH)) for name in names)
        first += BATCH


def main() -> int:
    parser = argparse.ArgumentParser(description="Hold verdicts on simulated fleets against the truth.")
    parser.add_argument("--runs", type=int, default=100_000, help="fleets that a fault really struck")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this long")
    parser.add_argument("--first-seed", type=int, default=1_000_000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", choices=sorted(SHARES), action="append", help="only these kinds of fleets")
    options = parser.parse_args()
    began = time.monotonic()
    tallies: dict[str, Tally] = {name: Tally() for name in SHARES}
    todo = batches(options.first_seed, options.only or list(SHARES))
    told_s = began
    with ProcessPoolExecutor(options.jobs) as pool:
        running: set[Future[tuple[str, Tally]]] = set()
        while time.monotonic() < began + options.seconds:
            faulty = sum(tally.faulty for tally in tallies.values())
            if faulty >= options.runs:
                break
            while len(running) < 2 * options.jobs:
                running.add(pool.submit(batch, *next(todo)))
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for one in done:
                name, tally = one.result()
                tallies[name] += tally
            if time.monotonic() > told_s + TELL_S:
                told_s = time.monotonic()
                wrong = sum(tally.unsound.total() for tally in tallies.values())
                print(f"{faulty} faulty fleets, {wrong} unsound", file=sys.stderr, flush=True)
        for one in running:
            one.cancel()
    return report(tallies, time.monotonic() - began)


def report(tallies: Mapping[str, Tally], took_s: float) -> int:
    kinds = " ".join(f"{kind.value:>10}" for kind in VerdictKind)
    print(f"{'faults':26} {'runs':>8} {'faulty':>8} {kinds} {'unsound P':>8} {'R':>8}")
    whole = Tally()
    for name, tally in tallies.items():
        if tally.runs:
            print(tally.line(name))
            whole += tally
    print(whole.line("all"))
    print("struck: " + ", ".join(f"{name} {count}" for name, count in whole.struck.most_common()))
    for name, tally in tallies.items():
        for seed in tally.seeds[:ENOUGH_SHOWN]:
            print(f"unsound: {name!r} with seed {seed}")
    calm = tallies["(none)"]
    unproven = calm.runs - calm.verdicts[VerdictKind.PROVEN]
    print(f"{whole.runs} fleets in {took_s:.0f} s, {whole.faulty} of them faulty")
    print(f"unsound: {whole.unsound.total()}; fleets without faults that were not proven: {unproven}")
    mild = tallies["(mild)"]
    print(f"decided under mild faults: {mild.decided:.1%}")
    return 1 if whole.unsound or unproven else 0


if __name__ == "__main__":
    sys.exit(main())
