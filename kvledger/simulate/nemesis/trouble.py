"""How a fault on processes runs: announced, done, waited for until everything is seen to be whole again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from events.errors import KvledgerError
from kvledger.simulate.fault import Arena, Strike, UnrepairedError

POLL_S = 0.1
ACT_S = 30.0
"""What the deed itself may take, beside the deadline of its repair."""

Holds = Callable[[], Awaitable[str]]
"""Says what is still missing; an empty text when the condition holds."""


async def until(holds: Holds, timeout_s: float, *, poll_s: float = POLL_S) -> str:
    """Asks until nothing is missing or the time is over; returns what is missing then."""
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + timeout_s
    while True:
        missing = await holds()
        if not missing or loop.time() >= ends_s:
            return missing
        await asyncio.sleep(poll_s)


async def carry_out(
    arena: Arena,
    name: str,
    act: Callable[[], Awaitable[str]],
    whole: Holds,
    *,
    deadline_s: float,
    excuses: bool,
    worker: str | None = None,
) -> Strike:
    """Runs `act`, which returns what it did in words, and waits until `whole` holds.

    `excuses`: whether lookups may suffer, of `worker` or of everybody. Where they may not, nothing is
    announced to the truth, and every refusal counts. Raises UnrepairedError after `deadline_s` from the end
    of `act`, the truth calmed.
    """
    truth = arena.fleet.truth
    begun_ns = truth.now_ns()
    if excuses:
        truth.disturb(worker, excused_s=deadline_s + ACT_S, kind=name)
    arena.journal.append(f"{name} begins")
    detail = "it could not be done"
    try:
        detail = await act()
        over_ns = truth.now_ns()
        missing = await until(whole, deadline_s)
    except KvledgerError as error:
        arena.journal.append(f"{name} failed: {error}")
        raise UnrepairedError(
            name, worker, (truth.now_ns() - begun_ns) / 1e9, f"{detail}: {error}"
        ) from error
    finally:
        if excuses:
            truth.calm(worker)
    repaired_ns = truth.now_ns()
    if missing:
        arena.journal.append(f"{name} ({detail}) is not repaired: {missing}")
        raise UnrepairedError(name, worker, (repaired_ns - over_ns) / 1e9, f"{detail}: {missing}")
    arena.journal.append(f"{name} ({detail}) is repaired after {(repaired_ns - over_ns) / 1e9:.1f} s")
    return Strike(name, worker, begun_ns, over_ns, repaired_ns, detail)
