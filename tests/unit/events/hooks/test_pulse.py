"""When a process' pulses go out, whatever one of its engines does. No log: pulses are collected and not sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping

from events.hooks.echoing import Echoing
from events.hooks.pulse import Pulser
from events.ids import Basis
from events.kafka.connection import KafkaConnection
from events.model.signal import Echo, RankPulse

BUDGET_S = 0.3


class Pulsing:
    """A hook whose engine confirms after `takes_s`."""

    def __init__(self, takes_s: float) -> None:
        self.takes_s = takes_s
        self.ticks = 0
        self.echoing = Echoing(self._confirm)

    async def _confirm(self) -> Basis | None:
        await asyncio.sleep(self.takes_s)
        return Basis.PUBLISHED

    def echo(self, beacon: Echo) -> asyncio.Task[None] | None:
        return self.echoing.begin(beacon, ready=True)

    def pulse(self) -> RankPulse | None:
        return None

    def tick(self) -> None:
        self.ticks += 1


async def test_an_engine_that_never_answers_delays_nobody_else_s_pulses() -> None:
    dead, well = Pulsing(3_600), Pulsing(0)
    hooks: Mapping[str, Iterable[Pulsing]] = {"dead": [dead], "well": [well]}
    beacons = iter(range(1_000))
    pulser = Pulser(
        KafkaConnection("127.0.0.1:1"),
        newest_beacon=lambda: Echo(offset=next(beacons), nonce=bytes(16)),
        hooks=lambda: hooks,
        confirm_budget_s=BUDGET_S,
    )
    await pulser._confirm()
    begun_s = time.monotonic()
    for round_ in range(20):
        await pulser._confirm()
        # The very pulse that goes out now carries the well one's newest echo.
        assert well.echoing.newest == Echo(offset=round_ + 1, nonce=bytes(16))
    # Waiting for the dead one each time would take twice as long.
    assert time.monotonic() - begun_s < 10 * BUDGET_S
    assert dead.echoing.newest is None
    assert (dead.ticks, well.ticks) == (21, 21)
    for hook in (dead, well):
        await hook.echoing.stop()
    await pulser.close()


async def test_an_engine_that_answers_in_time_again_is_waited_for_again() -> None:
    engine = Pulsing(3 * BUDGET_S)
    offset = 0

    def beacon() -> Echo:
        return Echo(offset=offset, nonce=bytes(16))

    pulser = Pulser(
        KafkaConnection("127.0.0.1:1"),
        newest_beacon=beacon,
        hooks=lambda: {"w0": [engine]},
        confirm_budget_s=BUDGET_S,
    )
    await pulser._confirm()
    assert engine in pulser._slow
    engine.takes_s = 0
    async with asyncio.timeout(10):
        while pulser._slow:
            offset += 1
            await pulser._confirm()
            await asyncio.sleep(0.01)
    engine.takes_s = BUDGET_S / 10
    offset += 1
    await pulser._confirm()
    assert engine.echoing.newest == beacon()
    await pulser.close()


async def test_a_confirmation_that_raises_is_no_echo_and_is_begun_again() -> None:
    calls = 0

    async def confirm() -> Basis | None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ZeroDivisionError
        return Basis.ENGINE

    echoing = Echoing(confirm)
    beacon = Echo(offset=1, nonce=bytes(16))
    for expected in (None, beacon):
        task = echoing.begin(beacon, ready=True)
        assert task is not None
        await asyncio.wait([task])
        assert echoing.newest == expected
