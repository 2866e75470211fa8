"""Short looks at a partition of the log, outside any consumer group: its bounds, and one record."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Protocol, TypeVar

from events.chain import sha256
from events.kafka.connection import KafkaConnection, LogTail, LogUnavailableError, RawRecord

_FETCH_RECORDS = 500
_Result = TypeVar("_Result")


class PartitionLog(Protocol):
    """What is in the log now. Every call raises LogUnavailableError when the broker doesn't answer."""

    async def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """(oldest offset still there, offset of the next record)."""

    async def first_from(self, topic: str, partition: int, offset: int) -> RawRecord | None:
        """The first record at or after `offset`, None when there is none before the log's end."""

    async def leader_epochs(self, topic: str, partitions: Collection[int]) -> dict[int, int]:
        """By partition that has a leader which answers, how often the leadership has changed; -1 where the broker
        doesn't know. Raises when none can be asked."""

    async def digests(self, topic: str, partition: int, first: int, last: int) -> dict[int, bytes]:
        """By offset, the SHA-256 of the values of the records at `first` to `last`, those that there are; `first`
        must not lie before the log's start."""


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
        return await self._ask(f"{topic}[{partition}]", lambda tail: tail.bounds(topic, partition))

    async def first_from(self, topic: str, partition: int, offset: int) -> RawRecord | None:
        async def look(tail: LogTail) -> RawRecord | None:
            _, end = await tail.bounds(topic, partition)
            reached = offset
            tail.assign({(topic, partition): offset} if offset < end else {})
            while reached < end:
                for record in await tail.fetch(timeout_ms=500, max_records=1):
                    tail.assign({})
                    return record
                reached = await tail.position(topic, partition)
            tail.assign({})
            return None

        return await self._ask(f"{topic}[{partition}]", look)

    async def leader_epochs(self, topic: str, partitions: Collection[int]) -> dict[int, int]:
        return await self._ask(topic, lambda tail: tail.leader_epochs(topic, partitions))

    async def digests(self, topic: str, partition: int, first: int, last: int) -> dict[int, bytes]:
        async def read(tail: LogTail) -> dict[int, bytes]:
            _, end = await tail.bounds(topic, partition)
            newest, reached = min(last, end - 1), first - 1
            tail.assign({(topic, partition): first} if first <= newest else {})
            found: dict[int, bytes] = {}
            while reached < newest:
                for record in await tail.fetch(timeout_ms=500, max_records=_FETCH_RECORDS):
                    found[record.offset] = sha256(record.value)
                reached = await tail.position(topic, partition) - 1
            tail.assign({})
            return found

        return await self._ask(f"{topic}[{partition}]", read)

    async def _ask(self, what: str, question: Callable[[LogTail], Awaitable[_Result]]) -> _Result:
        try:
            async with asyncio.timeout(self._timeout_s), self._lock:
                try:
                    return await question(await self._connected())
                except BaseException:
                    await self._drop()
                    raise
        except TimeoutError as error:
            raise LogUnavailableError(f"{what} doesn't answer") from error

    async def _connected(self) -> LogTail:
        if self._tail is None:
            tail = LogTail(self._connection, {})
            await tail.start()
            self._tail = tail
        return self._tail

    async def close(self) -> None:
        """Idempotent; the next call connects again."""
        async with self._lock:
            await self._drop()

    async def _drop(self) -> None:
        tail, self._tail = self._tail, None
        if tail is not None:
            await tail.stop()
