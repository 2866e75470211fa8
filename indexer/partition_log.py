"""Short looks at a partition of the log, outside any consumer group: its bounds, and one record."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from events.kafka.connection import KafkaConnection, LogTail, LogUnavailableError, RawRecord


class PartitionLog(Protocol):
    """What is in the log now. Every call raises LogUnavailableError when the broker doesn't answer."""

    async def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """(oldest offset still there, offset of the next record)."""

    async def first_from(self, topic: str, partition: int, offset: int) -> RawRecord | None:
        """The first record at or after `offset`, None when there is none before the log's end."""


@dataclass(frozen=True, slots=True)
class KafkaPartitionLog:
    """`PartitionLog` on Kafka; each call connects and disconnects, for it is asked at take-over only."""

    connection: KafkaConnection
    timeout_s: float = 15.0

    async def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        where = (topic, partition)
        tail = LogTail(self.connection, {where: 0})
        try:
            async with asyncio.timeout(self.timeout_s):
                await tail.start()
                return (await tail.beginning_offsets())[where], (await tail.end_offsets())[where]
        except TimeoutError as error:
            raise LogUnavailableError(f"{topic}[{partition}] doesn't answer") from error
        finally:
            await tail.stop()

    async def first_from(self, topic: str, partition: int, offset: int) -> RawRecord | None:
        tail = LogTail(self.connection, {(topic, partition): offset})
        try:
            async with asyncio.timeout(self.timeout_s):
                await tail.start()
                end = (await tail.end_offsets())[topic, partition]
                while offset < end:
                    for record in await tail.fetch(timeout_ms=500, max_records=1):
                        return record
                return None
        except TimeoutError as error:
            raise LogUnavailableError(f"{topic}[{partition}] doesn't answer") from error
        finally:
            await tail.stop()
