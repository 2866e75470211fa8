"""Emptying an engine that offers nothing finer: when it may be done, and that it is drained first if it is in use.

One reset serves all open orders, so what is limited is how often a tenant may cause one. An order that waits is never
dropped: it is told as open, and carried out with whatever reset comes next.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from events.hooks.engine_port import EnginePort, ResetResult
from events.hooks.obligation import Obligation, Obligations
from events.hooks.reset_queue import ResetPace
from events.hooks.reset_rate import ResetRate
from events.hooks.reset_turn import Turn

LOG = logging.getLogger(__name__)
RESET_TIMEOUT_S = 20.0
DRAINING_CURE = "wait: it is drained, no new work should come; a reset needs every request to have ended"
SERVING_CURE = (
    "take its load away: requests did not end while it was drained, it serves on and is drained again"
)
LIMIT_CURE = (
    "wait, within the hour it is reset again: its tenant has caused {} resets of this engine, which is all that it may "
    "in an hour; fewer requests, a longer retention period or a higher KVLEDGER_RESETS_PER_HOUR help"
)
TURN_CURE = "wait for its turn: the model's engines are reset a few at a time, and others are before it"


class DrainedHook(Protocol):
    """The hook, as far as emptying needs it. `draining`: every pulse says that no new work should come here."""

    draining: bool


class Emptying:
    """One engine's. `waits` says what keeps an owed reset from being made now; empty if nothing does. `cure` is what
    the log is told of it: the same words while it waits for the same, empty while nobody has to know."""

    def __init__(
        self,
        hook: DrainedHook,
        port: EnginePort,
        turn: Turn,
        obligations: Obligations,
        *,
        pace: ResetPace,
        monotonic_s: Callable[[], float],
    ) -> None:
        self.waits = self.cure = ""
        self._hook = hook
        self._port = port
        self._turn = turn
        self._obligations = obligations
        self._pace = pace
        self._monotonic_s = monotonic_s
        self._rate = ResetRate(pace.per_hour)
        self._drained_s: float | None = None
        self._rests_until_s = 0.0

    def rest(self) -> None:
        """Nothing is owed: somebody else's turn."""
        self.waits = self.cure = ""
        self._serve()

    def allowed(self, owed: Sequence[Obligation]) -> bool:
        """Whether these may be carried out now. If not, `waits` says why; ask again."""
        now_s = self._monotonic_s()
        if now_s < self._rests_until_s:
            self.cure = SERVING_CURE
            self._wait("its requests did not end while it was drained", self._rests_until_s - now_s)
            return False
        due_s = min(self._due_in_s(one, now_s) for one in owed)
        if due_s > 0:
            self._serve()
            self.cure = LIMIT_CURE.format(self._pace.per_hour)
            self._wait(f"its tenant has caused {self._pace.per_hour} resets within an hour", due_s)
            return False
        on_turn = self._turn.take()
        if not on_turn:
            self._drained_s, self._hook.draining = None, False
        self.waits, self.cure = self._turn.why, TURN_CURE if self._turn.behind else ""
        return on_turn

    async def empty(self, owed: Sequence[Obligation]) -> ResetResult:
        """One reset, which `allowed` has let through. An engine in use is drained from then on, and the next calls
        try again; when that took too long it serves again, for a while."""
        began_s = self._monotonic_s()
        result = await self._port.reset(RESET_TIMEOUT_S)
        now_s = self._monotonic_s()
        if result.refused is None:
            causing = [one for one in owed if self._due_in_s(one, began_s) <= 0]
            self._rate.charge({tenant for one in causing for tenant in self._obligations.tenants(one)}, now_s)
            self._serve()
            return result
        if result.refused != "blocks_in_use":
            self._serve()
            return result
        if self._drained_s is None:
            self._drained_s, self._hook.draining = now_s, True
        if now_s - self._drained_s < self._pace.drain_s:
            return ResetResult(result.refused, DRAINING_CURE)
        self._serve()
        self._rests_until_s = now_s + self._pace.rest_s
        return ResetResult(result.refused, SERVING_CURE)

    def _wait(self, why: str, for_s: float) -> None:
        if self.waits != why:
            LOG.info("a reset waits %.0f s: %s", for_s, why)
        self.waits = why

    def _serve(self) -> None:
        self._drained_s, self._hook.draining = None, False
        self._turn.give_back()

    def _due_in_s(self, one: Obligation, now_s: float) -> float:
        return self._rate.due_in_s(self._obligations.tenants(one), now_s)
