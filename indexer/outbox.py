"""What the indexer itself writes to Kafka: dead letters before the transaction that passes them, and calls
for a snapshot after it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from events.chain import sha256
from events.codec import decode_dead, dump
from events.ids import StreamKey
from events.kafka.connection import PRODUCER_LIMIT_BYTES, KafkaConnection, make_producer
from events.model.audit import DeadRecord
from events.model.signal import ResyncRequested
from events.topic import DEAD, SIGNALS, Topic
from indexer.delta import DeadLetter

log = logging.getLogger(__name__)
RETRY_S = 0.5
SEND_TIMEOUT_S = 15.0
"""How long one attempt may take; the client itself gives up a request after 10 s."""
STOP_TIMEOUT_S = 2.0
MAX_REASON = 2_000
MAX_LETTER_BYTES = 2 * PRODUCER_LIMIT_BYTES
"""A letter holds a whole record in base64; `kv.dead` takes as much."""


def _without_value(letter_bytes: bytes, letter: DeadLetter) -> bytes:
    """The same letter with the record's length and SHA-256 in the reason instead of its bytes."""
    record = decode_dead(letter_bytes)
    told = f"{len(letter.value)} bytes, sha256 {sha256(letter.value).hex()}: {letter.reason}"
    return dump(record.model_copy(update={"value": b"", "reason": told[:MAX_REASON], "key": None}))


class Outbox(Protocol):
    """Writes are keyed, so that repeating one is harmless."""

    async def bury(self, topic: str, partition: int, letters: list[DeadLetter]) -> None:
        """Returns once every letter is in `kv.dead`, however long the broker is away."""

    async def ask_resync(self, streams: dict[StreamKey, str]) -> None:
        """Asks each stream's hook for a snapshot; a request that can't be written now is dropped, for the
        controller asks again."""


class KafkaOutbox:
    """`Outbox` on one idempotent producer, rebuilt whenever it failed."""

    def __init__(self, connection: KafkaConnection, *, send_timeout_s: float = SEND_TIMEOUT_S) -> None:
        self._connection = connection
        self._send_timeout_s = send_timeout_s
        self._producer: Any = None
        self._starting = asyncio.Lock()

    async def _send(self, topic: Topic, key: bytes, value: bytes) -> None:
        """Raises KafkaError, OSError or TimeoutError: it isn't known whether the record was written."""
        async with asyncio.timeout(self._send_timeout_s):
            producer = await self._started()
            await producer.send_and_wait(self._connection.topic(topic), value, key=key, partition=0)

    async def _started(self) -> Any:
        async with self._starting:
            if self._producer is None:
                producer = make_producer(
                    self._connection, client_id="kvledger-indexer", max_request_bytes=MAX_LETTER_BYTES
                )
                try:
                    await producer.start()
                except BaseException:
                    await _end(producer)
                    raise
                self._producer = producer
            return self._producer

    async def _rebuild(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await _end(producer)

    async def bury(self, topic: str, partition: int, letters: list[DeadLetter]) -> None:
        for letter in letters:
            record = DeadRecord(
                topic=topic,
                partition=partition,
                offset=letter.offset,
                reason=letter.reason[:MAX_REASON],
                key=letter.key,
                value=letter.value,
                signature=letter.signature,
            )
            key = f"{topic}/{partition}/{letter.offset}".encode()
            await self._until_sent(DEAD, key, dump(record), letter)

    async def _until_sent(self, topic: Topic, key: bytes, value: bytes, letter: DeadLetter) -> None:
        while True:
            try:
                return await self._send(topic, key, value)
            except MessageSizeTooLargeError:
                # Only a record that its writer had compressed gets here: its bytes stay where they were.
                log.error(
                    "a dead record of %d bytes is too large for the dead letters",
                    len(letter.value),
                    extra={"action": "dead_letter_too_large"},
                )
                value = _without_value(value, letter)
            except (KafkaError, OSError, TimeoutError) as error:
                log.warning("dead letters wait for Kafka: %s", type(error).__name__)
                await self._rebuild()
                await asyncio.sleep(RETRY_S)

    async def ask_resync(self, streams: dict[StreamKey, str]) -> None:
        for stream, reason in streams.items():
            body = ResyncRequested(
                worker=stream.worker, rank=stream.rank, epoch=stream.epoch, reason=reason[:MAX_REASON]
            )
            try:
                await self._send(SIGNALS, stream.worker.encode(), dump(body))
            except (KafkaError, OSError, TimeoutError) as error:
                log.warning("a resync request was dropped: %s", type(error).__name__)
                await self._rebuild()

    async def close(self) -> None:
        """Idempotent."""
        await self._rebuild()


async def _end(producer: Any) -> None:
    stopping = asyncio.ensure_future(producer.stop())
    await asyncio.wait({stopping}, timeout=STOP_TIMEOUT_S)
    if not stopping.done():
        stopping.cancel()
    if not stopping.done() or stopping.cancelled() or stopping.exception() is not None:
        log.warning("a producer could not be stopped in order", extra={"action": "outbox_rebuilt"})
