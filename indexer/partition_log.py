"""Short looks at a partition of the log, outside any consumer group: its bounds, and one record."""

from __future__ import annotations

import asyncio
from typing import Protocol

from events.kafka.connection import KafkaConnection, LogTail, LogUnavailableError, RawRecord


class PartitionLog(Protocol):
    """What is in the log now. Every call raises LogUnavailableError when the broker doesn't answer."""

    async def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """(oldest offset still there, offset of the next record)."""

    async def first_from(self, topic: str, partition: int, offset: int) -> RawRecord | None:
        """The first record at or after `offset`, None when there is none before the log's end."""


class KafkaPartitionLog:
    """`PartitionLog` on Kafka, over one connection that is made when it is needed; `close` ends it.

    A call that fails drops the connection, so that the next one begins anew.
    """

    def __init__(self, connection: KafkaConnection, timeout_s: float = 15.0) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._tail: LogTail | None = None
        self._lock = asyncio.Lock()

    async def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        async with self._lock:
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await (await self._connected()).bounds(topic, partition)
            except BaseException as error:
                raise await self._failed(error, topic, partition) from error

    async def first_from(self, topic: str, partition: int, offset: int) -> RawRecord | None:
        async with self._lock:
            try:
                async with asyncio.timeout(self._timeout_s):
                    tail = await self._connected()
                    _, end = await tail.bounds(topic, partition)
                    if offset >= end:
                        return None
                    tail.assign({(topic, partition): offset})
                    while offset < end:
                        for record in await tail.fetch(timeout_ms=500, max_records=1):
                            tail.assign({})
                            return record
                    return None
            except BaseException as error:
                raise await self._failed(error, topic, partition) from error

    async def _connected(self) -> LogTail:
        if self._tail is None:
            tail = LogTail(self._connection, {})
            await tail.start()
            self._tail = tail
        return self._tail

    async def _failed(self, error: BaseException, topic: str, partition: int) -> BaseException:
        await self._drop()
        if isinstance(error, TimeoutError):
            return LogUnavailableError(f"{topic}[{partition}] doesn't answer")
        return error

    async def close(self) -> None:
        """Idempotent; the next call connects again."""
        async with self._lock:
            await self._drop()

    async def _drop(self) -> None:
        tail, self._tail = self._tail, None
        if tail is not None:
            await tail.stop()
