"""LMCache's Kafka topic of cache events, read from its start: what the coordinator would read, beside it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Self

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from events.errors import DecodeError
from events.hooks.lmcache_source import LmcacheIntake

LOG = logging.getLogger(__name__)
_RETRY_S = 1.0
_AT_ONCE = 500
_POLL_MS = 200
_METADATA_MS = 10_000
"""How soon a partition that was added is found."""


class LmcacheTopic:
    """One topic and the intake that it feeds; enter it, then `run` beside the bridges. It belongs to no consumer
    group and commits nothing, so it takes nothing from the coordinator."""

    def __init__(self, bootstrap: str, topic: str, intake: LmcacheIntake) -> None:
        self.topic = topic
        self._intake = intake
        self._consumer: Any = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            metadata_max_age_ms=_METADATA_MS,
        )
        self._next: dict[Any, int] = {}
        self._moved = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Raises KafkaError if the broker can't be reached or has no such topic."""
        await self._consumer.start()
        if not await self._assign():
            await self._consumer.stop()
            raise KafkaError(f"no topic {self.topic}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._consumer.stop()

    async def run(self) -> None:
        """Reads until cancelled; a broker that is away is waited for."""
        while True:
            try:
                await self._assign()
                found = await self._consumer.getmany(timeout_ms=_POLL_MS, max_records=_AT_ONCE)
            except KafkaError as error:
                LOG.warning("the topic %s can't be read now: %s", self.topic, type(error).__name__)
                await asyncio.sleep(_RETRY_S)
                continue
            for partition, records in found.items():
                for record in records:
                    while (full := self._intake.full) is not None:
                        self._moved.set()
                        await full.room.wait()
                    self._take(record.key, record.value)
                    self._next[partition] = record.offset + 1
            self._moved.set()

    async def read_to_end(self, timeout_s: float) -> bool:
        """See `lmcache_source.ReadToEnd`: up to the ends that the broker names after this was asked. False, too,
        while a source is full: take what it has and ask again."""
        try:
            async with asyncio.timeout(timeout_s):
                ends = await self._consumer.end_offsets(list(self._next))
                while any(self._next[partition] < end for partition, end in ends.items()):
                    if self._intake.full is not None:
                        return False
                    self._moved.clear()
                    await self._moved.wait()
        except (TimeoutError, KafkaError):
            return False
        numbers = self._consumer.partitions_for_topic(self.topic) or set()
        return numbers <= {partition.partition for partition in self._next}

    async def _assign(self) -> bool:
        """Reads all partitions that there are, an added one from its start; False if there is no such topic."""
        numbers = self._consumer.partitions_for_topic(self.topic) or set()
        added = [
            TopicPartition(self.topic, number)
            for number in sorted(numbers)
            if TopicPartition(self.topic, number) not in self._next
        ]
        if added:
            begins = await self._consumer.beginning_offsets(added)
            self._consumer.assign([*self._next, *added])
            self._next |= begins
            for partition, offset in self._next.items():
                self._consumer.seek(partition, offset)
        return bool(self._next)

    def _take(self, key: bytes | None, value: bytes | None) -> None:
        server = None if key is None else key.decode(errors="replace")
        try:
            self._intake.offer(value or b"", server=server)
        except DecodeError:
            # Its sources were told.
            return
