"""Where kv.events ends, asked once for everybody who wants to know."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from events.kafka.connection import LogTail, LogUnavailableError

EVERY_S = 0.15
STOP_TIMEOUT_S = 5.0


class LogEnd:
    """Asks through the tail that reads the topic anyway: no connection of its own. Questions that come while
    one is under way, or sooner than `EVERY_S` after one, share the next."""

    def __init__(self, topic: str, *, monotonic_ns: Callable[[], int], every_s: float = EVERY_S) -> None:
        self._topic = topic
        self._monotonic_ns = monotonic_ns
        self._every_s = every_s
        self._tail: LogTail | None = None
        self._ends: dict[int, int] = {}
        self._asked_ns: int | None = None
        self._known_ns: int | None = None
        self._asking: asyncio.Task[bool] | None = None
        self.questions = 0

    def follow(self, tail: LogTail) -> None:
        """The started tail to ask from now on."""
        self._tail = tail

    async def stop(self) -> None:
        """Before the tail stops. Idempotent."""
        self._tail = None
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.cancel()
            await asyncio.wait({asking}, timeout=STOP_TIMEOUT_S)

    async def beyond(self, offsets: Sequence[int], since_ns: int) -> bool:
        """Whether any partition's offset lies beyond the end that the log had at some moment after
        `since_ns`. An end known from earlier is enough to say no: logs grow. Without a tail, or when the
        broker doesn't answer: no."""
        while self._exceeds(offsets) and (self._known_ns is None or self._known_ns < since_ns):
            if self._tail is None:
                return False
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self._ask(self._tail))
            asking = self._asking
            await asyncio.wait({asking})
            if asking.cancelled() or not asking.result():
                return False
        return self._exceeds(offsets)

    def _exceeds(self, offsets: Sequence[int]) -> bool:
        return any(at > self._ends.get(partition, 0) for partition, at in enumerate(offsets))

    async def _ask(self, tail: LogTail) -> bool:
        if self._asked_ns is not None:
            await asyncio.sleep(max(0.0, self._every_s - (self._monotonic_ns() - self._asked_ns) / 1e9))
        self.questions += 1
        self._asked_ns = begun_ns = self._monotonic_ns()
        try:
            ends = await tail.end_offsets()
        except LogUnavailableError:
            return False
        self._ends = {partition: end for (topic, partition), end in ends.items() if topic == self._topic}
        self._known_ns = begun_ns
        return True
