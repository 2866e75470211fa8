"""Sends sealed records to `kv.events` in order; never blocks and never raises into its caller.

A record stays here until the broker has acknowledged it. After a failure whose outcome is unknown it is sent
again from the oldest unacknowledged one on, by a new producer if need be: a reader may see a record twice,
but never one before its predecessor.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiokafka.errors import KafkaError, MessageSizeTooLargeError, ProducerClosed

from events.hooks.producer import ProducerLife, RebuiltProducer
from events.hooks.stream import SealedRecord
from events.kafka.connection import KafkaConnection
from events.kafka.deadline import within
from events.topic import EVENTS, SIGNATURE_HEADER

LOG = logging.getLogger(__name__)
MAX_BATCH_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class EmitterLimits:
    """What may wait in memory; above either limit records are refused. `stuck_s` without an answer for one
    batch has the producer rebuilt."""

    max_records: int = 50_000
    max_bytes: int = 128 << 20
    stuck_s: float = 10.0
    retry_pause_s: float = 0.2


@dataclass(slots=True)
class EmitterCounts:
    """Records since the start; `refused` are burnt numbers, `lost` were refused by the broker for good."""

    offered: int = 0
    refused: int = 0
    sent: int = 0
    resent_batches: int = 0
    lost: int = 0


@dataclass(slots=True)
class _Lane:
    """One partition's records in order, with one batch in flight at most."""

    partition: int
    records: deque[SealedRecord] = field(default_factory=deque)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    single: bool = False
    newest: int = -1


class Emitter:
    """One for a process, whatever the number of streams. `lost` is told of a record that was accepted but
    that the broker refuses for good (too large): its stream has a hole. `truncated` is told of a partition that
    acknowledges at or below an offset which it has acknowledged before: an unclean election cut its end off, so
    every stream there may have a hole that no reader sees who had read on."""

    def __init__(
        self,
        connection: KafkaConnection,
        *,
        limits: EmitterLimits | None = None,
        lost: Callable[[SealedRecord], None] | None = None,
        truncated: Callable[[int], None] | None = None,
    ) -> None:
        self.counts = EmitterCounts()
        self._topic = connection.topic(EVENTS)
        self._limits = limits or EmitterLimits()
        self._lost = lost
        self._truncated = truncated
        self._producer = RebuiltProducer(
            connection, client_id="kvledger-hook", max_batch_bytes=MAX_BATCH_BYTES
        )
        self._lanes: dict[int, _Lane] = {}
        self._records = 0
        self._bytes = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._room = asyncio.Event()
        self._room.set()
        self._closed = False

    @property
    def waiting(self) -> int:
        """Records accepted and not yet acknowledged."""
        return self._records

    @property
    def rebuilt(self) -> int:
        """How often the producer was replaced."""
        return self._producer.rebuilt

    @property
    def has_room(self) -> bool:
        """Whether less than half of the buffer is in use: time for a repair."""
        return self._room.is_set()

    def offer(self, record: SealedRecord) -> bool:
        """Takes the record, or returns False at once when the buffer is full or closed."""
        self.counts.offered += 1
        size = len(record.value)
        full = self._records >= self._limits.max_records or self._bytes + size > self._limits.max_bytes
        if full or self._closed:
            self.counts.refused += 1
            self._room.clear()
            return False
        lane = self._lanes.get(record.partition)
        if lane is None:
            lane = self._lanes[record.partition] = _Lane(record.partition)
            lane.task = asyncio.get_running_loop().create_task(self._pump(lane))
        lane.records.append(record)
        lane.wake.set()
        self._records += 1
        self._bytes += size
        self._idle.clear()
        return True

    async def room(self, timeout_s: float) -> bool:
        """Waits until at least half of the buffer is free; False if that took longer."""
        return await _within(self._room, timeout_s)

    async def flush(self, timeout_s: float) -> bool:
        """Waits until all that was accepted is acknowledged; False if that took longer."""
        return await _within(self._idle, timeout_s)

    async def close(self, timeout_s: float = 10.0) -> bool:
        """Refuses new records, flushes, ends the producer; False if records were left behind. Idempotent."""
        self._closed = True
        flushed = await self.flush(timeout_s)
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._producer.close()
        return flushed

    async def _pump(self, lane: _Lane) -> None:
        while True:
            await lane.wake.wait()
            lane.wake.clear()
            while lane.records:
                try:
                    life = await self._producer.life()
                except ProducerClosed:
                    return
                await self._send_some(lane, life)

    async def _send_some(self, lane: _Lane, life: ProducerLife) -> None:
        count = 0
        try:
            builder = life.producer.create_batch()
            count = _fill(builder, lane)
            delivered = asyncio.ensure_future(self._deliver(life.producer, builder, lane.partition))
            done, _ = await asyncio.wait([delivered], timeout=self._limits.stuck_s)
            if not done:
                delivered.cancel()
                await asyncio.gather(delivered, return_exceptions=True)
                raise TimeoutError
            if delivered.cancelled():
                # By the client itself, as it can with its broker away; we were not.
                raise TimeoutError
            self._acknowledged(lane, delivered.result(), count)
        except MessageSizeTooLargeError:
            # The refused batch has used sequence numbers of this producer, which can't go on behind it.
            await self._producer.failed(life)
            if lane.single:
                self._give_up(lane)
            lane.single = not lane.single
        except (KafkaError, TimeoutError, OSError) as error:
            self.counts.resent_batches += 1
            LOG.warning("sending to partition %d again: %s", lane.partition, type(error).__name__)
            await self._producer.failed(life)
            await asyncio.sleep(self._limits.retry_pause_s)
        else:
            lane.single = False
            self.counts.sent += count
            for _ in range(count):
                self._forget(lane.records.popleft())

    async def _deliver(self, producer: Any, builder: Any, partition: int) -> int:
        """The offset of the batch's first record; -1 where the broker doesn't say."""
        delivered = await (await producer.send_batch(builder, self._topic, partition=partition))
        return -1 if delivered is None else int(delivered.offset)

    def _acknowledged(self, lane: _Lane, first: int, count: int) -> None:
        if first < 0:
            return
        cut, lane.newest = first <= lane.newest, first + count - 1
        if cut:
            LOG.error("partition %d has lost records that it had acknowledged", lane.partition)
            if self._truncated is not None:
                self._truncated(lane.partition)

    def _give_up(self, lane: _Lane) -> None:
        record = lane.records.popleft()
        self._forget(record)
        self.counts.lost += 1
        LOG.error("the broker refuses %r: too large", record)
        if self._lost is not None:
            self._lost(record)

    def _forget(self, record: SealedRecord) -> None:
        self._records -= 1
        self._bytes -= len(record.value)
        if self._records == 0:
            self._idle.set()
        if 2 * self._records <= self._limits.max_records and 2 * self._bytes <= self._limits.max_bytes:
            self._room.set()


def _fill(builder: Any, lane: _Lane) -> int:
    """Appends records while they fit (one always does); returns how many."""
    count = 0
    for record in lane.records:
        headers = [] if record.signature is None else [(SIGNATURE_HEADER, record.signature)]
        added = builder.append(timestamp=None, key=record.key, value=record.value, headers=headers)
        if added is None:
            break
        count += 1
        if lane.single:
            break
    builder.close()
    return count


async def _within(event: asyncio.Event, timeout_s: float) -> bool:
    try:
        await within(event.wait(), timeout_s)
    except TimeoutError:
        return False
    return True
