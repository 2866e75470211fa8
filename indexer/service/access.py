"""Who asked about which domain, told to `kv.access` in batches: never on an answer's way, losses counted."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiokafka.errors import KafkaError

from events.codec import dump
from events.kafka.connection import KafkaConnection, make_producer
from events.kafka.deadline import within
from events.model.audit import AccessBatch, AccessEntry
from events.topic import ACCESS

LOG = logging.getLogger(__name__)
MAX_ENTRIES = 1_000
"""Principals and domains in one batch: within a record's size. What comes beyond is lost, and counted."""
MAX_BATCHES = 60
"""Batches that wait for the broker; the oldest is given up for a new one, and what it told counts as lost."""
SEND_TIMEOUT_S = 10.0
COMPLAIN_EVERY = 30


@dataclass(slots=True)
class AccessBook:
    """Counts since it was last taken; `note` costs a dictionary's look-up."""

    entries: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    lost: int = 0
    lost_in_all: int = 0

    def note(self, principal: str, domain: str, matched_blocks: int) -> None:
        """One lookup that was answered, with the length of its best match in blocks."""
        counts = self.entries.get((principal, domain))
        if counts is not None:
            counts[0] += 1
            counts[1] += matched_blocks
        elif len(self.entries) < MAX_ENTRIES:
            self.entries[principal, domain] = [1, matched_blocks]
        else:
            self.lose(1)

    def lose(self, lookups: int) -> None:
        """Lookups that can't be kept."""
        self.lost += lookups
        self.lost_in_all += lookups

    def take(self) -> tuple[tuple[AccessEntry, ...], int]:
        """(entries, lost) since the last call."""
        entries, self.entries = self.entries, {}
        lost, self.lost = self.lost, 0
        told = tuple(
            AccessEntry(principal=principal, domain=domain, lookups=lookups, matched_blocks=blocks)
            for (principal, domain), (lookups, blocks) in sorted(entries.items())
        )
        return told, lost


class AccessWriter:
    """`run` it beside the service; a batch is sent until the broker has it, always with the same bytes, so that one
    that arrives twice is known by its begin. A batch without lookups isn't sent."""

    def __init__(
        self,
        connection: KafkaConnection,
        book: AccessBook,
        replica: str,
        *,
        wall_ms: Callable[[], int],
        every_s: float = 5.0,
    ) -> None:
        self._connection, self._book, self._replica = connection, book, replica
        self._wall_ms, self._every_s = wall_ms, every_s
        self._topic = connection.topic(ACCESS)
        self._from_ms = wall_ms()
        self._waiting: deque[AccessBatch] = deque()
        self._producer: Any = None
        self._failures = 0

    @property
    def waiting(self) -> int:
        """Batches that the broker doesn't have yet."""
        return len(self._waiting)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            self._close_batch()
            await self._send()

    async def stop(self, timeout_s: float = 2.0) -> None:
        """Sends what there is, if the broker takes it soon; idempotent. `run` must have ended."""
        self._close_batch()
        try:
            async with asyncio.timeout(timeout_s):
                await self._send()
        except TimeoutError:
            pass
        if self._waiting:
            lost = sum(entry.lookups for batch in self._waiting for entry in batch.entries)
            LOG.warning("%d lookups are in no access log", lost, extra={"action": "access_lost"})
            self._waiting.clear()
        await self._drop_producer()

    def _close_batch(self) -> None:
        to_ms = max(self._wall_ms(), self._from_ms + 1)
        if not self._book.entries and not self._book.lost:
            self._from_ms = to_ms
            return
        while len(self._waiting) >= MAX_BATCHES:
            given_up = self._waiting.popleft()
            self._book.lose(given_up.lost + sum(entry.lookups for entry in given_up.entries))
        entries, lost = self._book.take()
        self._waiting.append(
            AccessBatch(replica=self._replica, entries=entries, lost=lost, from_ms=self._from_ms, to_ms=to_ms)
        )
        self._from_ms = to_ms

    async def _send(self) -> None:
        try:
            while self._waiting:
                if self._producer is None:
                    self._producer = make_producer(
                        self._connection, client_id=f"kvledger-access-{self._replica}"
                    )
                    await within(self._producer.start(), SEND_TIMEOUT_S)
                sent = self._producer.send_and_wait(
                    self._topic, dump(self._waiting[0]), key=self._replica.encode(), partition=0
                )
                await within(sent, SEND_TIMEOUT_S)
                self._waiting.popleft()
                self._failures = 0
        except (KafkaError, OSError, TimeoutError) as error:
            if self._failures % COMPLAIN_EVERY == 0:
                LOG.warning(
                    "the access log waits for Kafka: %s",
                    type(error).__name__,
                    extra={"action": "access_waits"},
                )
            self._failures += 1
            await self._drop_producer()

    async def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is None:
            return
        stopping = asyncio.ensure_future(producer.stop())
        await asyncio.wait({stopping}, timeout=SEND_TIMEOUT_S)
        if not stopping.done():
            stopping.cancel()
        elif not stopping.cancelled():
            stopping.exception()
