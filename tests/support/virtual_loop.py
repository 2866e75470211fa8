"""An event loop in virtual time: nothing ever waits, a timer that is next moves the clock to it."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _InstantSelector(selectors.SelectSelector):
    """Looks whether something is ready, and instead of waiting for it moves the loop's clock."""

    advance: Callable[[float], None]

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everything waits for something that never comes")
        self.advance(max(0.0, timeout))
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Deterministic as long as what runs on it reads no other clock and no other source of chance."""

    def __init__(self) -> None:
        self._virtual_s = 1_000.0
        selector = _InstantSelector()
        selector.advance = self._advance
        super().__init__(selector)

    def time(self) -> float:
        return self._virtual_s

    def _advance(self, seconds: float) -> None:
        self._virtual_s += seconds


def run_virtual(work: Coroutine[Any, Any, T]) -> T:
    """Runs it to its end on a virtual loop of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


class Wire:
    """Carries calls in order, each after a delay of its own; `stall` holds back what is sent from now on."""

    def __init__(self, rng: random.Random, low_s: float, high_s: float) -> None:
        self._rng = rng
        self._low_s, self._high_s = low_s, high_s
        self._last_s = 0.0
        self._stalled_until_s = 0.0

    def stall(self, seconds: float) -> None:
        self._stalled_until_s = asyncio.get_running_loop().time() + seconds

    def send(self, call: Callable[[], object]) -> None:
        loop = asyncio.get_running_loop()
        arrives_s = loop.time() + self._rng.uniform(self._low_s, self._high_s)
        self._last_s = max(self._last_s + 1e-6, arrives_s, self._stalled_until_s)
        loop.call_at(self._last_s, call)
