"""What is done to bridges and broker, one after another; the engines are never touched."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from kvledger.simulate.nemesis.schedule import schedule
from kvledger.simulate.nemesis.target import Target, TargetMissingError
from tests.live.endurance.asker import Asker
from tests.live.endurance.bridges import Bridges
from tests.live.endurance.deletion import Deletion, Deletions

LONG_S = (15.0, 45.0)
WHOLE_WITHIN_S = 120.0


@dataclass(slots=True)
class Strike:
    """From `began_s` on; undone at `over_s`; every engine answered for as of a moment after that at `whole_s`,
    None: not within two minutes."""

    kind: str
    what: str
    began_s: float
    over_s: float = 0.0
    whole_s: float | None = None


class Striker:
    """Strikes in a random order, every kind once before any comes again; the same seed gives the same order."""

    def __init__(
        self,
        home: Path,
        bridges: Bridges,
        asker: Asker,
        engines: Sequence[str],
        deletions: Deletions,
        seed: int,
    ) -> None:
        self.strikes: list[Strike] = []
        self._broker = Target(home, "kafka")
        self._bridges = bridges
        self._asker = asker
        self._engines = list(engines)
        self._deletions = deletions
        self._random = random.Random(f"{seed}/striker")
        self._kinds: dict[str, Callable[[], str]] = {
            "kill-bridge": self._kill_bridge,
            "kill-bridges": self._kill_bridges,
            "bridge-away": self._bridge_away,
            "stop-bridge": self._stop_bridge,
            "kill-broker": self._kill_broker,
            "broker-away": self._broker_away,
            "stop-broker": self._stop_broker,
            "kill-broker-and-bridges": self._kill_all,
            "stop-bridge-kill-broker": self._stop_bridge_kill_broker,
            "delete-kill-bridges": self._delete_kill_bridges,
            "delete-kill-broker": self._delete_kill_broker,
            "delete-stop-bridges": self._delete_stop_bridges,
        }
        self._order = schedule(list(self._kinds), self._random)

    def strike(self) -> Strike:
        """The next one; returns when everybody is answered for again, or two minutes after its end."""
        kind = next(self._order)
        while kind.startswith("delete") and not self._deletions.left:
            kind = next(self._order)
        strike = Strike(kind, "", time.monotonic())
        self.strikes.append(strike)
        try:
            strike.what = self._kinds[kind]()
        except TargetMissingError as error:
            strike.what = str(error)
        strike.over_s = time.monotonic()
        waiting = set(self._engines)
        while waiting and time.monotonic() - strike.over_s < WHOLE_WITHIN_S:
            waiting -= {name for name in waiting if self._asker.known(name, strike.over_s)}
            time.sleep(0.1)
        if not waiting:
            strike.whole_s = time.monotonic()
        return strike

    # Each acts, undoes it, and returns what it did. What was killed, its supervisor starts again.

    def _kill_bridge(self) -> str:
        name = self._random.choice(self._engines)
        self._bridges.kill(name)
        return f"SIGKILL to the bridge of {name}"

    def _kill_bridges(self) -> str:
        for name in self._engines:
            self._bridges.kill(name)
        return "SIGKILL to both bridges"

    def _bridge_away(self) -> str:
        name, length_s = self._random.choice(self._engines), self._random.uniform(*LONG_S)
        with self._bridges.down(name):
            time.sleep(length_s)
        return f"the bridge of {name} killed, and started again after {length_s:.0f} s"

    def _stop_bridge(self) -> str:
        name, length_s = self._random.choice(self._engines), self._random.uniform(*LONG_S)
        with self._bridges.frozen(name):
            time.sleep(length_s)
        return f"SIGSTOP of the bridge of {name} for {length_s:.0f} s"

    def _kill_broker(self) -> str:
        self._broker.kill()
        return "SIGKILL to the broker"

    def _broker_away(self) -> str:
        length_s = self._random.uniform(*LONG_S)
        kills = self._keep_down(length_s)
        return f"SIGKILL to the broker whenever it was started, {kills} times in {length_s:.0f} s"

    def _stop_broker(self) -> str:
        length_s = self._random.uniform(*LONG_S)
        with self._broker.frozen():
            time.sleep(length_s)
        return f"SIGSTOP of the broker for {length_s:.0f} s"

    def _kill_all(self) -> str:
        self._broker.kill()
        for name in self._engines:
            self._bridges.kill(name)
        return "SIGKILL to the broker and both bridges"

    def _stop_bridge_kill_broker(self) -> str:
        name, length_s = self._random.choice(self._engines), self._random.uniform(*LONG_S)
        with self._bridges.frozen(name):
            time.sleep(length_s / 2)
            self._broker.kill()
            time.sleep(length_s / 2)
        return f"SIGSTOP of the bridge of {name} for {length_s:.0f} s, SIGKILL to the broker meanwhile"

    def _delete_kill_bridges(self) -> str:
        deletion = self._deletions.retire(self._asker)
        with ExitStack() as held:
            for name in self._engines:
                held.enter_context(self._bridges.down(name))
            self._deletions.order(deletion)
        return f"{_ordered(deletion)} while both bridges were killed"

    def _delete_kill_broker(self) -> str:
        deletion = self._deletions.retire(self._asker)
        self._broker.kill()
        self._deletions.order(deletion)
        for name in self._engines:
            self._bridges.kill(name)
        return f"the broker killed, then {_ordered(deletion)}, then both bridges killed"

    def _delete_stop_bridges(self) -> str:
        deletion = self._deletions.retire(self._asker)
        length_s = self._random.uniform(*LONG_S)
        with ExitStack() as held:
            for name in self._engines:
                held.enter_context(self._bridges.frozen(name))
            self._deletions.order(deletion)
            time.sleep(length_s)
        return f"{_ordered(deletion)} while both bridges were stopped, for {length_s:.0f} s more"

    def _keep_down(self, length_s: float) -> int:
        kills = 0
        ends_s = time.monotonic() + length_s
        while time.monotonic() < ends_s:
            try:
                self._broker.kill()
                kills += 1
            except TargetMissingError:
                pass
            time.sleep(0.1)
        return kills


def _ordered(deletion: Deletion) -> str:
    return f"deletion {deletion.number} of {deletion.tenant} ordered ({deletion.tries} tries)"
