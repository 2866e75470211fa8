"""What an unclean election leaves: acknowledged records at the end of the log are gone."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from events.kafka.connection import LogUnavailableError
from events.topic import EVENTS, PULSE, SIGNALS, Topic
from kvledger.control import connection
from kvledger.settings import Settings
from kvledger.simulate.fault import Arena, Strike
from kvledger.simulate.nemesis.segment import Cut, cut_tail
from kvledger.simulate.nemesis.target import Target
from kvledger.simulate.nemesis.trouble import carry_out
from kvledger.simulate.nemesis.whole import IndexCurrent, service_back
from kvledger.stack.process import ProcessId
from kvledger.stack.session import read_running
from kvledger.stack.state import Home

DEADLINE_S = 120.0
MOST_BATCHES = 40
GONE_WITHIN_S = 10.0


@dataclass(slots=True)
class TruncatedLog:
    """The broker is killed, the newest batches of one topic's partitions are cut off its files, and it starts
    again. `kills` and `cuts` say what was done.

    Repaired when lookups are complete and the index holds what the log held then: whoever read further
    noticed, gaps were closed by snapshots.
    """

    topic: Topic = EVENTS
    most_batches: int = MOST_BATCHES
    deadline_s: float = DEADLINE_S
    kills: int = 0
    cuts: list[Cut] = field(default_factory=list)

    @property
    def name(self) -> str:
        return "truncated-log" if self.topic is EVENTS else f"truncated-{self.topic.name.removeprefix('kv.')}"

    async def strike(self, arena: Arena) -> Strike:
        """Raises UnrepairedError."""
        settings = arena.settings
        wanted = {
            f"{connection(settings).topic(self.topic)}-{number}": arena.rng.randint(1, self.most_batches)
            for number in range(
                settings.partitions if self.topic.partitions is None else self.topic.partitions
            )
        }
        chosen = arena.rng.sample(sorted(wanted), max(1, len(wanted) // arena.rng.choice((1, 2))))
        killed: list[ProcessId] = []
        current = IndexCurrent(arena)

        async def act() -> str:
            made = await cut_log(settings, {name: wanted[name] for name in chosen}, killed)
            self.kills += 1
            self.cuts += made
            records = sum(cut.records for cut in made)
            return f"{records} records cut off {len(made)} partitions of {self.topic.name}"

        async def whole() -> str:
            return await service_back(arena, "kafka", killed[0]) or await current()

        return await carry_out(arena, self.name, act, whole, deadline_s=self.deadline_s, excuses=True)


async def cut_log(settings: Settings, wanted: dict[str, int], killed: list[ProcessId]) -> list[Cut]:
    """Kills the broker, cuts that many batches off each `TOPIC-NUMBER`, and lets it be started again.

    `killed` gets the process that it was. Raises TargetMissingError, SegmentError, LogUnavailableError.
    """
    with held_supervisor(settings.home):
        killed.append(Target(settings.home, "kafka").kill())
        ends_s = asyncio.get_running_loop().time() + GONE_WITHIN_S
        while killed[-1].is_alive():
            if asyncio.get_running_loop().time() > ends_s:
                raise LogUnavailableError("the killed broker does not end")
            await asyncio.sleep(0.02)
        data = Home(settings.home).kafka / "data"
        made = [cut_tail(data, name, count) for name, count in wanted.items()]
    return [cut for cut in made if cut is not None]


@contextmanager
def held_supervisor(home: Path) -> Iterator[None]:
    """The supervisor stands still for the block, so that what ends is not started again in the middle."""
    supervisor = read_running(Home(home)).supervisor
    os.kill(supervisor.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(supervisor.pid, signal.SIGCONT)


def truncations() -> Sequence[TruncatedLog]:
    """One for each topic whose newest records a running fleet survives without being started again."""
    return (TruncatedLog(EVENTS), TruncatedLog(SIGNALS), TruncatedLog(PULSE))
