"""An idempotent Kafka producer that is rebuilt when it is stuck; shared by all partitions of a process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from aiokafka.errors import ProducerClosed

from events.kafka.connection import KafkaConnection, make_producer

LOG = logging.getLogger(__name__)
START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class ProducerLife:
    """One producer and its number; a failure is reported with the number, so that many reports of one
    failure rebuild once."""

    number: int
    producer: Any


class RebuiltProducer:
    """Gives out a started producer, making another one when told that the last is stuck."""

    def __init__(
        self, connection: KafkaConnection, *, client_id: str, max_batch_bytes: int, retry_pause_s: float = 0.5
    ) -> None:
        self._connection = connection
        self._client_id = client_id
        self._max_batch_bytes = max_batch_bytes
        self._retry_pause_s = retry_pause_s
        self._life: ProducerLife | None = None
        self._number = 0
        self._lock = asyncio.Lock()
        self._closed = False
        self._away = False

    @property
    def rebuilt(self) -> int:
        """How often the producer was replaced."""
        return max(0, self._number - 1)

    async def life(self) -> ProducerLife:
        """The producer in use; waits, trying again, while no broker answers. Raises ProducerClosed after
        `close`."""
        while True:
            async with self._lock:
                if self._closed:
                    raise ProducerClosed()
                if self._life is None:
                    self._life = await self._start()
                if self._life is not None:
                    return self._life
            await asyncio.sleep(self._retry_pause_s)

    async def failed(self, life: ProducerLife) -> None:
        """That producer can't go on: the next `life()` is another one. Idempotent for one life."""
        async with self._lock:
            if self._life is not None and self._life.number == life.number:
                self._life = None
                await _given_up(life.producer)

    async def close(self) -> None:
        """Ends the producer without flushing it. Idempotent."""
        async with self._lock:
            self._closed = True
            life, self._life = self._life, None
            if life is not None:
                await _given_up(life.producer)

    async def _start(self) -> ProducerLife | None:
        producer = make_producer(
            self._connection, client_id=self._client_id, max_batch_bytes=self._max_batch_bytes
        )
        starting = asyncio.ensure_future(producer.start())
        try:
            await asyncio.wait({starting}, timeout=START_TIMEOUT_S)
        except asyncio.CancelledError:
            starting.cancel()
            await _given_up(producer)
            raise
        if not starting.done() or starting.cancelled() or starting.exception() is not None:
            starting.cancel()
            if not self._away:
                LOG.warning("no broker answers; trying again every %g s", self._retry_pause_s)
            self._away = True
            await _given_up(producer)
            return None
        if self._away:
            LOG.info("a broker answers again")
        self._away = False
        self._number += 1
        return ProducerLife(self._number, producer)


async def _given_up(producer: Any) -> None:
    """Nobody else knows the producer: it is ended also when whoever gave it up is cancelled meanwhile."""
    await asyncio.shield(asyncio.ensure_future(_abandon(producer)))


async def _abandon(producer: Any) -> None:
    """Stops a producer at once. `stop()` alone waits for what may never be delivered, so its sender is ended
    first and what is pending is failed; the owner still holds those records and sends them again."""
    await _settled(producer._sender.close())
    accumulator = producer._message_accumulator
    batches = [
        *accumulator._pending_batches,
        *(one for queue in accumulator._batches.values() for one in queue),
    ]
    # Its own bookkeeping expects a failed batch among the pending ones, also one that waits for another try.
    accumulator._pending_batches.update(batches)
    accumulator.fail_all(ProducerClosed())
    for batch in batches:
        # Whoever waited may be gone; an exception that nobody fetched would be reported as a fault.
        if batch.future.done() and not batch.future.cancelled():
            batch.future.exception()
        if batch._drain_waiter.done() and not batch._drain_waiter.cancelled():
            batch._drain_waiter.exception()
    await _settled(producer.stop())


async def _settled(work: Coroutine[Any, Any, None]) -> None:
    """Runs it to its end, whatever that is, or to the time-out. With its broker away the client can end in a
    CancelledError of its own, which must not become ours."""
    task = asyncio.ensure_future(work)
    await asyncio.wait({task}, timeout=STOP_TIMEOUT_S)
    if not task.done():
        task.cancel()
    elif not task.cancelled():
        task.exception()
