"""LMCache's Kafka topic of cache events, read from its start: what the coordinator would read, beside it."""

from __future__ import annotations

import asyncio
import logging
from typing import Self

from events.errors import DecodeError
from events.hooks.lmcache_source import LmcacheIntake
from events.kafka.connection import KafkaConnection, LogTail, LogUnavailableError, RawRecord

LOG = logging.getLogger(__name__)
_RETRY_S = 1.0
_POLL_MS = 200
_AT_ONCE = 500
_LOOK_S = 10.0
"""How often partitions that were added are looked for."""


class LmcacheTopic:
    """One topic and the intake that it feeds; enter it, then `run` beside the bridges. It belongs to no consumer
    group and commits nothing, so it takes nothing from the coordinator."""

    def __init__(self, bootstrap: str, topic: str, intake: LmcacheIntake) -> None:
        self.topic = topic
        self._intake = intake
        self._tail = LogTail(KafkaConnection(bootstrap), {})
        self._next: dict[tuple[str, int], int] = {}
        self._moved = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Raises LogUnavailableError if the broker doesn't answer or has no such topic."""
        await self._tail.start()
        try:
            await self._assign()
            if not self._next:
                raise LogUnavailableError(f"there is no topic {self.topic}")
        except BaseException:
            await self._tail.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tail.stop()

    async def run(self) -> None:
        """Reads until cancelled; a broker that is away is waited for."""
        loop = asyncio.get_running_loop()
        looked_s = loop.time()
        while True:
            try:
                if loop.time() - looked_s > _LOOK_S:
                    looked_s = loop.time()
                    await self._assign()
                records = await self._tail.fetch(timeout_ms=_POLL_MS, max_records=_AT_ONCE)
            except LogUnavailableError as error:
                LOG.warning("the topic %s can't be read now: %s", self.topic, error)
                await asyncio.sleep(_RETRY_S)
                await self._begin_again()
                continue
            for record in records:
                while (full := self._intake.full) is not None:
                    self._moved.set()
                    await full.room.wait()
                self._take(record)
            self._moved.set()

    async def read_to_end(self, timeout_s: float) -> bool:
        """See `lmcache_source.ReadToEnd`: up to the ends that the broker names after this was asked. False, too,
        while a source is full: take what it has and ask again."""
        try:
            async with asyncio.timeout(timeout_s):
                known = set(self._next)
                ends = await self._tail.end_offsets()
                while any(self._next.get(where, 0) < end for where, end in ends.items()):
                    if self._intake.full is not None:
                        return False
                    self._moved.clear()
                    await self._moved.wait()
                return known <= set(ends)
        except (TimeoutError, LogUnavailableError):
            return False

    async def _assign(self) -> None:
        """Reads all partitions that there are, an added one from its start."""
        added = False
        for number in sorted(await self._tail.partitions(self.topic)):
            if (self.topic, number) not in self._next:
                self._next[self.topic, number], _ = await self._tail.bounds(self.topic, number)
                added = True
        if added:
            self._tail.assign(self._next)

    async def _begin_again(self) -> None:
        """What the broker has let go meanwhile can't be had: the servers' own numbers tell that it is missing."""
        try:
            for (topic, number), offset in list(self._next.items()):
                first, end = await self._tail.bounds(topic, number)
                self._next[topic, number] = min(max(offset, first), end)
            self._tail.assign(self._next)
        except LogUnavailableError:
            return

    def _take(self, record: RawRecord) -> None:
        server = None if record.key is None else record.key.decode(errors="replace")
        try:
            self._intake.offer(record.value, server=server)
        except DecodeError:
            # Its sources were told.
            pass
        finally:
            self._next[record.topic, record.partition] = record.offset + 1
