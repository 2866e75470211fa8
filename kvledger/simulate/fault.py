"""What a fault is to a simulation: it announces itself, strikes, and waits until what it broke is whole again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from events.errors import KvledgerError
from kvledger.settings import Settings
from kvledger.simulate.fleet import Fleet
from kvledger.simulate.residency import ClockNs
from kvledger.simulate.rest import RestClient


class UnrepairedError(KvledgerError):
    """What a fault broke was not whole again within its deadline. The trial counts it and goes on."""

    def __init__(self, fault: str, worker: str | None, waited_s: float, detail: str) -> None:
        super().__init__(
            f"{fault} of {worker or 'everybody'} was not repaired within {waited_s:.0f} s: {detail}"
        )
        self.fault = fault
        self.worker = worker
        self.waited_s = waited_s
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault that is over. Stamps are nanoseconds of the truth's clock.

    `worker` is None if it hit everybody. `repaired_ns` is None where no repair is to be expected, which
    `detail` then explains.
    """

    name: str
    worker: str | None
    begun_ns: int
    over_ns: int
    repaired_ns: int | None
    detail: str = ""

    @property
    def repair_s(self) -> float | None:
        """From the end of the trouble until it was seen from outside to be whole again."""
        return None if self.repaired_ns is None else max(0, self.repaired_ns - self.over_ns) / 1e9


@dataclass(slots=True)
class Journal:
    """What was done to a fleet, in order, on the truth's clock: part of a trial's report."""

    clock_ns: ClockNs
    lines: list[tuple[int, str]] = field(default_factory=list)

    def append(self, text: str) -> None:
        """Stamps the line now."""
        self.lines.append((self.clock_ns(), text))

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return iter(self.lines)


@dataclass(slots=True)
class Arena:
    """All that a fault may touch. `rng` is seeded by the trial: the same seed strikes the same."""

    fleet: Fleet
    settings: Settings
    rng: random.Random
    journal: Journal
    rest: RestClient


class Fault(Protocol):
    """A trouble with a name in kebab case. Make one for each trial; `strike` may be called repeatedly."""

    @property
    def name(self) -> str: ...

    async def strike(self, arena: Arena) -> Strike:
        """Announces the trouble to `arena.fleet.truth` before it acts (`disturb`), acts, waits until it is
        over and repaired as far as that is due, calms the truth, and tells.

        Raises UnrepairedError after its own deadline, the truth calmed, so that later refusals count.
        """
        ...
