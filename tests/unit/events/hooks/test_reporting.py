"""When an epoch is registered, and when none is."""

from __future__ import annotations

import asyncio

from events.hooks.reporting import EpochPace, EpochRegistrar, Reporting
from events.hooks.stream import Epoch
from tests.support.engine_with_agent import until


class Registering:
    """A hook that counts how often it was asked to register, and is told no."""

    def __init__(self) -> None:
        self.asked = 0

    async def register_epoch(self, registrar: EpochRegistrar) -> Epoch | None:
        del registrar
        self.asked += 1
        return None

    def open_epoch(self, epoch: Epoch) -> bool:
        raise AssertionError(epoch)


class Nobody:
    async def register(
        self, worker: str, rank: int, engine_life: str, *, endpoint: str | None, model: str | None
    ) -> Epoch:
        raise AssertionError(worker)


async def room(timeout_s: float) -> bool:
    return timeout_s > 0


async def test_what_ended_during_a_pause_is_not_registered_after_it() -> None:
    hook = Registering()
    pace = EpochPace(first_pause_s=0.05, longest_pause_s=0.05)
    reporting = Reporting(hook, Nobody(), room, pace=pace, monotonic_s=asyncio.get_running_loop().time)
    running = asyncio.create_task(reporting.run())
    await until(lambda: hook.asked >= 2)
    # It waits before the next try now.
    reporting.end("the engine has ended")
    reporting.renew()
    reporting.end("the engine has ended")
    asked = hook.asked
    # Nothing tells that nothing comes: the pause is over by then.
    await asyncio.sleep(3 * pace.longest_pause_s)
    assert hook.asked == asked
    reporting.renew()
    await until(lambda: hook.asked > asked)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
