"""Pulses: every 200 ms each worker says where its streams stand and which beacon it has confirmed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from aiokafka.errors import KafkaError, ProducerClosed

from events.codec import dump
from events.hooks.producer import RebuiltProducer
from events.kafka.connection import KafkaConnection
from events.model.signal import Echo, Pulse, RankPulse
from events.topic import PULSE

LOG = logging.getLogger(__name__)
STUCK_PULSES = 150
"""Ticks in a row without an acknowledgement (30 s at 200 ms) after which the producer is rebuilt."""


class PulsingHook(Protocol):
    """One rank's hook, as far as pulses need it."""

    def echo(self, beacon: Echo) -> asyncio.Task[None] | None:
        """Starts, or is still at, the confirmation for the newest beacon; None if there is nothing to do."""
        ...

    def pulse(self) -> RankPulse | None:
        """Where the stream stands now; None while no epoch is open."""
        ...

    def tick(self) -> None:
        """What is due by the clock alone."""
        ...


class Pulser:
    """One for a process. A pulse that isn't acknowledged when the next is due holds that one back: a late
    pulse says nothing that a newer one doesn't. A hook whose confirmation took longer than the budget isn't
    waited for again until one is done by the next pulse: a dead engine delays nobody else's pulses."""

    def __init__(
        self,
        connection: KafkaConnection,
        *,
        newest_beacon: Callable[[], Echo | None],
        hooks: Callable[[], Mapping[str, Iterable[PulsingHook]]],
        interval_s: float = 0.2,
        confirm_budget_s: float = 0.12,
    ) -> None:
        self.sent = 0
        self._topic = connection.topic(PULSE)
        self._newest_beacon = newest_beacon
        self._hooks = hooks
        self._interval_s = interval_s
        self._confirm_budget_s = confirm_budget_s
        self._producer = RebuiltProducer(connection, client_id="kvledger-pulse", max_batch_bytes=64 * 1024)
        self._sending: asyncio.Task[bool] | None = None
        self._waited = 0
        self._asked: dict[PulsingHook, tuple[asyncio.Task[None], int]] = {}
        self._slow: set[PulsingHook] = set()
        self._tick = 0

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        while True:
            await self._confirm()
            pulses = self._collect()
            if pulses:
                await self._send(pulses)
            next_s = max(next_s + self._interval_s, loop.time())
            await asyncio.sleep(next_s - loop.time())

    async def close(self) -> None:
        """Ends the producer. Idempotent."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        await self._producer.close()

    async def _confirm(self) -> None:
        beacon = self._newest_beacon()
        asked, self._asked = self._asked, {}
        self._tick += 1
        for hooks in self._hooks().values():
            for hook in hooks:
                hook.tick()
                before = asked.get(hook)
                if before is not None and before[0].done() and before[1] == self._tick - 1:
                    self._slow.discard(hook)
                task = None if beacon is None else hook.echo(beacon)
                if task is not None:
                    begun = before[1] if before is not None and before[0] is task else self._tick
                    self._asked[hook] = (task, begun)
        self._slow.intersection_update(self._asked)
        running = [task for hook, (task, _) in self._asked.items() if hook not in self._slow]
        if running:
            await asyncio.wait(running, timeout=self._confirm_budget_s)
        self._slow.update(hook for hook, (task, _) in self._asked.items() if not task.done())

    def _collect(self) -> list[tuple[bytes, bytes]]:
        pulses: list[tuple[bytes, bytes]] = []
        for worker, hooks in self._hooks().items():
            ranks = tuple(rank for rank in (hook.pulse() for hook in hooks) if rank is not None)
            if ranks:
                pulses.append((worker.encode(), dump(Pulse(worker=worker, ranks=ranks))))
        return pulses

    async def _send(self, pulses: list[tuple[bytes, bytes]]) -> None:
        if self._sending is not None and not self._sending.done():
            self._waited += 1
            if self._waited < STUCK_PULSES:
                return
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        self._waited = 0
        self._sending = asyncio.get_running_loop().create_task(self._deliver(pulses))

    async def _deliver(self, pulses: list[tuple[bytes, bytes]]) -> bool:
        try:
            life = await self._producer.life()
        except ProducerClosed:
            return False
        futures: list[asyncio.Future[Any]] = []
        try:
            for key, value in pulses:
                futures.append(await life.producer.send(self._topic, value, key=key))
            await asyncio.gather(*futures)
        except (KafkaError, OSError, asyncio.CancelledError) as error:
            for future in futures:
                future.cancel()
            LOG.warning("pulses not sent: %s", type(error).__name__)
            await self._producer.failed(life)
            if isinstance(error, asyncio.CancelledError):
                raise
            return False
        self.sent += len(pulses)
        return True
