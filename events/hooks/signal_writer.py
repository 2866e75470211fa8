"""Writes what a process has to say into `kv.signals`: now and then, and without a promise."""

from __future__ import annotations

import asyncio
import logging

from aiokafka.errors import KafkaError, ProducerClosed

from events.codec import dump
from events.hooks.producer import RebuiltProducer
from events.hooks.reset_queue import Who
from events.kafka.connection import KafkaConnection
from events.model.signal import ResetTurn
from events.topic import SIGNALS

LOG = logging.getLogger(__name__)


class SignalWriter:
    """One for a process; connects when it has something to say. `run` it; `send` waits for nothing. Of each stream
    its newest word waits for a broker: it is said again if it still holds."""

    def __init__(self, connection: KafkaConnection) -> None:
        self._topic = connection.topic(SIGNALS)
        self._producer = RebuiltProducer(connection, client_id="kvledger-turn", max_batch_bytes=16 * 1024)
        self._waiting: dict[Who, ResetTurn] = {}
        self._wake = asyncio.Event()

    def send(self, turn: ResetTurn) -> None:
        """Puts a record into the topic, in order, if that can be done soon."""
        who = (turn.worker, turn.rank)
        self._waiting.pop(who, None)
        self._waiting[who] = turn
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            waiting, self._waiting = self._waiting, {}
            await self._deliver(list(waiting.values()))

    async def close(self) -> None:
        """Ends the producer. Idempotent."""
        await self._producer.close()

    async def _deliver(self, turns: list[ResetTurn]) -> None:
        try:
            life = await self._producer.life()
        except ProducerClosed:
            return
        try:
            for turn in turns:
                await life.producer.send_and_wait(
                    self._topic, dump(turn), key=turn.worker.encode(), partition=0
                )
        except (KafkaError, OSError) as error:
            LOG.warning("a signal was not sent: %s", type(error).__name__)
            await self._producer.failed(life)
