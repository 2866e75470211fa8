"""Two engines that can only be reset, one deletion: one after the other, and drained while it is in use."""

from __future__ import annotations

from dataclasses import replace

from events.hooks.reset_queue import ResetPace
from events.ids import Alarm
from tests.integration.hooks.test_bridge import PACE, bridged, engine, log, tokens
from tests.support.fake_engine import FakeEngine
from tests.support.hook_log import HookLog, until

__all__ = ["engine", "log"]
GENTLE = replace(PACE, resets=ResetPace(repeat_s=0.2, listen_s=0.6, silent_s=5.0))


def refusal(log: HookLog, worker: str, number: int) -> str | None:
    """Why the worker doesn't carry out the order now, by its newest word; None if it has said nothing of it."""
    standing = log.standing(worker, "default", number)
    return None if standing is None else standing.refused


async def test_the_second_is_reset_when_the_first_is_done_and_the_first_is_drained_while_in_use(
    log: HookLog, engine: FakeEngine
) -> None:
    async with (
        FakeEngine(http_port=0) as other,
        bridged(log, engine, delete=True, pace=GENTLE) as busy,
        bridged(log, other, worker="w1", delete=True, pace=GENTLE) as idle,
    ):
        await other.complete(tokens(1))
        request = await engine.begin(tokens(1, 2))
        await log.delete("acme")
        await until(lambda: busy.draining)
        # While the busy one is drained, nothing else may be emptied.
        await until(lambda: log.pulses["w0", 0].alarm is Alarm.DRAINING)
        second = await log.delete("default")
        await until(lambda: refusal(log, "w1", second) == "blocks_in_use")
        assert "its turn" in idle.emptying.waits
        standing = log.standing("w0", "default", second)
        assert standing is None or standing.refused in (None, "blocks_in_use")
        assert not log.discharged("w1", "default", second)
        engine.finish(request)
        await until(lambda: log.discharged("w0", "default", second))
        await until(lambda: log.discharged("w1", "default", second))
        await until(lambda: log.pulses["w0", 0].alarm is None)
        assert not busy.draining
        assert (busy.emptying.waits, idle.emptying.waits) == ("", "")
