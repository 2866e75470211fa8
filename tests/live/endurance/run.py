"""An hour of two real engines under load, while bridges and broker are killed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from tests.live.endurance import report
from tests.live.endurance.asker import Asker
from tests.live.endurance.bridges import Bridges
from tests.live.endurance.deletion import Deletions
from tests.live.endurance.load import Load
from tests.live.endurance.machine import Machine
from tests.live.endurance.standing import Standing, stand
from tests.live.endurance.strike import Strike, Striker
from tests.live.endurance.wire_history import WireHistory
from tests.live.engine import LiveEngine
from tests.live.index import Index
from tests.live.steps import standstills
from tests.live.tiny_model import FIRST_WORD, write_model
from tests.support.command import kvledger

ROOT = Path(__file__).parents[3]
SERVER = "tests.live.timed_server"
DOOMED = 3
DIGEST_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """`control_s` of the time pass before anything is attached; `pause_s`: between two strikes; `rest_s`: from one
    comparison at rest to the next; `rate`: requests a second for each engine; `blocks` of each engine's pool."""

    duration_s: float
    seed: int
    control_s: float
    pause_s: tuple[float, float] = (20.0, 80.0)
    rest_s: float = 600.0
    rate: float = 1.0
    blocks: int = 160


@dataclass(slots=True)
class Run:
    """`go` does all of it and returns the document; what was found until the last rest is in the folder's
    `draft.json` meanwhile."""

    plan: Plan
    python: Path
    folder: Path
    engines: dict[str, LiveEngine] = field(default_factory=dict)
    loads: dict[str, Load] = field(default_factory=dict)
    histories: dict[str, WireHistory] = field(default_factory=dict)
    salts: dict[str, str | None] = field(default_factory=dict)
    standings: list[Standing] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    began_s: float = 0.0
    attached_s: float = 0.0

    def go(self) -> dict[str, Any]:
        with ExitStack() as stack:
            index = stack.enter_context(Index(self.folder / "home"))
            self._domains(index)
            self._engines(stack)
            machine = Machine({name: engine.processes for name, engine in self.engines.items()})
            stack.callback(machine.stop)
            self.began_s = time.monotonic()
            self._say(f"control: {self.plan.control_s:.0f} s of load, nothing attached")
            self._load(stack)
            time.sleep(self.plan.control_s)
            self.attached_s = time.monotonic()
            bridges = Bridges(index, list(self.engines.values()), self.folder)
            stack.callback(bridges.stop)
            for name in self.engines:
                machine.watch(f"bridge of {name}", partial(bridges.pids, name))
            asker = Asker(index, self.loads, self.histories, self.salts, self.plan.seed)
            stack.callback(asker.stop)
            deletions = Deletions(
                index,
                self.engines,
                self.loads,
                self.histories,
                self.salts,
                [name for name in self.salts if name.startswith("doomed")],
                self.folder,
            )
            striker = Striker(
                self.folder / "home", bridges, asker, list(self.engines), deletions, self.plan.seed
            )
            self._strike(striker, index, deletions, asker, machine)
            digest = self._digest(index)
            for load in self.loads.values():
                load.stop()
            asker.stop()
            bridges_seen = report.exits_report(bridges.exits, self.began_s)
            return self._document(striker, asker, deletions, machine) | {
                "digest": digest,
                "bridges": bridges_seen,
            }

    def _domains(self, index: Index) -> None:
        self.salts["default"] = None
        for domain in ("acme", "beta", *(f"doomed-{number}" for number in range(1, DOOMED + 1))):
            index.run("domain", "add", domain, "--tenant", domain)
            self.salts[domain] = json.loads(index.run("domain", "salt", domain, "--json"))["cache_salt"]

    def _engines(self, stack: ExitStack) -> None:
        model = write_model(self.folder / "model")
        for name, agent in (("with-agent", self.folder / "agent.sock"), ("bridge-alone", None)):
            self._say(f"starting {name}")
            file = self._steps(name)
            file.touch()
            engine = LiveEngine(
                self.python,
                model,
                self.folder,
                name,
                agent=agent,
                blocks=self.plan.blocks,
                module=SERVER,
                environment={"STEP_TIMES": str(file), "PYTHONPATH": str(ROOT)},
            )
            self.engines[name] = stack.enter_context(engine)
            history = WireHistory(engine)
            stack.callback(history.stop)
            self.histories[name] = history
            _warm(engine, history)

    def _load(self, stack: ExitStack) -> None:
        for name, engine in self.engines.items():
            load = Load(engine, self.salts, seed=self.plan.seed, rate=self.plan.rate)
            stack.callback(load.stop)
            self.loads[name] = load

    def _strike(
        self, striker: Striker, index: Index, deletions: Deletions, asker: Asker, machine: Machine
    ) -> None:
        rng = random.Random(f"{self.plan.seed}/pauses")
        ends_s = self.began_s + self.plan.duration_s
        rests_s = self.attached_s + self.plan.rest_s
        self._known(asker)
        while True:
            pause_s = rng.uniform(*self.plan.pause_s)
            if time.monotonic() + pause_s > ends_s:
                break
            time.sleep(pause_s)
            self._tell(striker.strike())
            if time.monotonic() > rests_s:
                self._tried_rest(index, deletions)
                self._draft(striker, asker, deletions, machine)
                rests_s = time.monotonic() + self.plan.rest_s
        time.sleep(max(0.0, ends_s - time.monotonic()))
        self._tried_rest(index, deletions, last=True)
        self._draft(striker, asker, deletions, machine)

    def _known(self, asker: Asker) -> None:
        deadline_s = time.monotonic() + 120
        for name in self.engines:
            while not asker.known(name, self.attached_s):
                if time.monotonic() > deadline_s:
                    raise RuntimeError(f"{name} isn't answered for")
                time.sleep(0.1)
        self._say(f"answered for after {time.monotonic() - self.attached_s:.1f} s")

    def _tried_rest(self, index: Index, deletions: Deletions, *, last: bool = False) -> None:
        """A comparison that breaks is a fault of the run, and no reason to end it."""
        try:
            self._rest(index, deletions, last=last)
        except (httpx.HTTPError, RuntimeError, LookupError, subprocess.TimeoutExpired) as error:
            self.broken.append(f"at rest: {type(error).__name__}: {error}")
            self._say(self.broken[-1])
            for load in self.loads.values():
                load.resume()

    def _rest(self, index: Index, deletions: Deletions, *, last: bool = False) -> None:
        for one in deletions.made:
            if one.verdict != "PROVEN":
                deletions.judge(one)
                self._say(
                    f"deletion {one.number}: {one.verdict} {', '.join(one.reasons[:3])}; verified {one.verified}"
                )
        for load in self.loads.values():
            load.pause()
        for one in deletions.made:
            deletions.look(one)
        for name, engine in self.engines.items():
            standing = stand(
                engine, index, self.loads[name], self.histories[name], self.salts, deletions.deleted
            )
            self.standings.append(standing)
            row = report.standing_row(standing, self.began_s)
            self._say(json.dumps(row))
        if not last:
            for load in self.loads.values():
                load.resume()

    def _digest(self, index: Index) -> dict[str, Any]:
        """Asked again for a minute: the indexer may be behind the log by what a bridge has just said."""
        deadline_s = time.monotonic() + DIGEST_WITHIN_S
        while True:
            done = kvledger("index", "digest", "--json", home=index.home)
            if done.returncode == 0 or time.monotonic() > deadline_s:
                try:
                    told: dict[str, Any] = json.loads(done.stdout)
                    return told | {"equal": done.returncode == 0}
                except ValueError:
                    return {"equal": False, "error": done.stderr.strip()[-300:]}

    def _draft(self, striker: Striker, asker: Asker, deletions: Deletions, machine: Machine) -> None:
        document = self._document(striker, asker, deletions, machine)
        (self.folder / "draft.json").write_text(json.dumps(document, indent=1))

    def _document(
        self, striker: Striker, asker: Asker, deletions: Deletions, machine: Machine
    ) -> dict[str, Any]:
        now_s = time.monotonic()
        periods = report.Periods(self.began_s, self.attached_s, striker.strikes, now_s)
        steps = report.read_all({name: self._steps(name) for name in self.engines})
        requests = {name: list(load.requests) for name, load in self.loads.items()}
        busy = {
            name: [(one.began_s, one.ended_s) for one in own if not one.left]
            for name, own in requests.items()
        }
        stills = {name: list(standstills(busy[name], steps[name])) for name in self.engines}
        return {
            "duration_s": self.plan.duration_s,
            "seed": self.plan.seed,
            "seconds": periods.seconds(),
            "engines": {
                name: report.engine_report(requests[name], steps[name], periods)
                | {"sent_away": self.loads[name].sent_away}
                for name in self.engines
            },
            "broken": list(self.broken),
            "stalls": report.stalls(steps, stills),
            "strikes": report.strike_rows(striker.strikes, self.began_s, requests, steps),
            "answers": report.answers_report(asker, list(asker.answers), periods, self.began_s),
            "standings": [report.standing_row(one, self.began_s) for one in self.standings],
            "deletions": [report.deletion_row(one, self.began_s) for one in deletions.made],
            "memory_mib": report.memory_report(machine, self.attached_s),
            "machine": report.machine_report(machine, self.began_s),
        }

    def _steps(self, name: str) -> Path:
        return self.folder / f"{name}.steps"

    def _tell(self, strike: Strike) -> None:
        after = "never" if strike.whole_s is None else f"{strike.whole_s - strike.over_s:.1f} s"
        self._say(f"{strike.what}; answered for again after {after}")

    def _say(self, text: str) -> None:
        at_s = time.monotonic() - self.began_s if self.began_s else 0.0
        print(f"{at_s:7.0f}  {text}", file=sys.stderr, flush=True)


def _warm(engine: LiveEngine, history: WireHistory) -> None:
    """Until the listener hears the engine: what is said before that, nobody could hold it to."""
    deadline_s = time.monotonic() + 60
    while not history.messages:
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"{engine.name} publishes nothing")
        engine.complete([FIRST_WORD] * 40)
        engine.reset()
        engine.complete([FIRST_WORD] * 40)


def faults(document: Mapping[str, Any]) -> list[str]:
    """What must not be."""
    found = [*document["broken"], *document["stalls"]]
    for name, one in document["engines"].items():
        if one["failed"]:
            found.append(f"{name}: {one['failed']} requests failed: {', '.join(one['failures'])}")
    found += [
        f"{one['kind']} at {one['at_s']} s: not answered again"
        for one in document["strikes"]
        if one["answered_again_after_s"] is None
    ]
    if document["answers"]["wrong"]:
        found.append(f"{len(document['answers']['wrong'])} answers under load were wrong")
    found += [
        f"{one['engine']} at {one['at_s']} s: {one['differences']} differences"
        for one in document["standings"]
        if one["differences"]
    ]
    found += [
        f"deletion of {one['tenant']}: {one['verdict']}, verified {one['verified']}, left {one['left']}, "
        f"hits {one['hits']}"
        for one in document["deletions"]
        if not one["sound"]
    ]
    if not document["digest"]["equal"]:
        found.append("PostgreSQL's digest is not that of the log")
    return found
