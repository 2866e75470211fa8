"""What engines do to their readers: die and come back, reset while idle, hang in a step."""

from __future__ import annotations

import asyncio

from kvledger.simulate.fault import Arena
from kvledger.simulate.trouble.loss import publisher_of
from kvledger.simulate.trouble.probe import Probe, chatter
from kvledger.simulate.worker import SimWorker

DOWN_S = (0.1, 1.0)
OVERTAKEN_AT_MOST = 400
"""A new life overtakes the old one's number only where that doesn't take long."""


async def engine_restart(arena: Arena, probe: Probe) -> str:
    """The process dies and another begins at the same address, without a word."""
    down_s = arena.rng.uniform(*DOWN_S)
    if probe.worker.publisher is None:
        await arena.fleet.restart(probe.worker)
        return "restarted, its end attested"
    await probe.worker.restart(down_s)
    return f"down for {down_s:.2f} s"


async def restart_with_loss(arena: Arena, probe: Probe) -> str:
    """A restart whose first steps are lost, at times past the old life's number before anybody hears of it."""
    worker, publisher = probe.worker, publisher_of(probe)
    before = worker.engine.next_seq
    overtakes = before <= OVERTAKEN_AT_MOST and arena.rng.random() < 0.5
    lost = arena.rng.randint(1, 20)
    with publisher.faults.during(mute=overtakes, deaf=overtakes):
        await worker.restart(arena.rng.uniform(*DOWN_S))
        publisher.faults.drop = lost
        while overtakes and worker.engine.next_seq <= before:
            await chatter(probe, before + 2 - worker.engine.next_seq)
    await chatter(probe, lost + 5)
    how = f"unheard of until past number {before}" if overtakes else f"its first {lost} steps lost"
    return f"restarted, {how}"


async def idle_resets(arena: Arena, probe: Probe) -> str:
    """Caches are reset; of an idle engine that goes out with whatever step comes next."""
    others = [w for w in arena.fleet.workers if w is not probe.worker and arena.rng.random() < 0.5]
    idle_s = arena.rng.uniform(0.5, 1.5)
    await asyncio.gather(*(_reset(worker, 0.0) for worker in others), _reset(probe.worker, idle_s))
    return f"reset, told after {idle_s:.2f} s of idleness; {len(others)} others reset"


async def _reset(worker: SimWorker, idle_s: float) -> None:
    await worker.rest()
    try:
        worker.engine.reset()
        await asyncio.sleep(idle_s)
        if idle_s:
            worker.engine.reset()
    finally:
        worker.wake()


async def long_steps(arena: Arena, probe: Probe) -> str:
    """Some steps take far longer than a bound."""
    held: list[float] = []
    for _ in range(3):
        held.append(arena.rng.uniform(0.3, 1.2))
        probe.worker.hold()
        await asyncio.sleep(held[-1])
        probe.worker.release()
        await asyncio.sleep(0.1)
    return f"steps of {', '.join(f'{one:.1f}' for one in held)} s"
