"""Writing this reader's beacons, and asking hooks for snapshots: all that a reader says to the log."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Any

from aiokafka.errors import KafkaError

from events.codec import dump
from events.ids import CANARY_WORKER, StreamKey, StreamStatus
from events.kafka.connection import KafkaConnection, make_producer
from events.kafka.deadline import within
from events.model.signal import Beacon, ResyncRequested
from events.topic import SIGNALS
from router_client.view import LocalView

LOG = logging.getLogger(__name__)
ASK_AGAIN_NS = 5_000_000_000
SEND_TIMEOUT_S = 5.0
COMPLAIN_EVERY_NS = 60_000_000_000
FAILURES_BEFORE_REBUILD = 5


class BeaconWriter:
    """A beacon every interval, whatever became of the ones before: the instant at which it began to write
    one is taken before anything is sent. A producer that keeps failing is replaced."""

    def __init__(
        self, connection: KafkaConnection, view: LocalView, *, monotonic_ns: Callable[[], int]
    ) -> None:
        self._connection = connection
        self._topic = connection.topic(SIGNALS)
        self._view = view
        self._monotonic_ns = monotonic_ns
        self._interval_s = view.limits.beacon_interval_ms / 1_000
        self._asked_ns: dict[StreamKey, int] = {}
        self._failures = 0
        self._complain_again_ns = 0
        self.written = 0
        self.resyncs = 0

    async def run(self) -> None:
        """Until cancelled; a broker that is away is retried for ever, answers grow stale meanwhile."""
        while True:
            producer = make_producer(self._connection, client_id=f"kvledger-{self._view.reader}")
            try:
                await within(producer.start(), SEND_TIMEOUT_S * 2)
                self._failures = 0
                await self._write(producer)
            except (KafkaError, TimeoutError) as error:
                self._complain(error)
                await asyncio.sleep(0.5)
            finally:
                await _quietly_stop(producer)

    def _complain(self, error: Exception) -> None:
        now_ns = self._monotonic_ns()
        if now_ns >= self._complain_again_ns:
            self._complain_again_ns = now_ns + COMPLAIN_EVERY_NS
            LOG.warning(
                "beacons can't be written: %s; trying again", type(error).__name__, extra={"action": "beacon"}
            )

    async def _write(self, producer: Any) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while self._failures < FAILURES_BEFORE_REBUILD:
            nonce = secrets.token_bytes(16)
            beacon = dump(Beacon(reader=self._view.reader, nonce=nonce))
            self._view.book.began(nonce, self._monotonic_ns())
            await self._send(producer, beacon)
            self.written += 1
            for stream, reason in self._to_ask():
                request = ResyncRequested(
                    worker=stream.worker, rank=stream.rank, epoch=stream.epoch, reason=reason
                )
                await self._send(producer, dump(request))
                self.resyncs += 1
            due = max(due + self._interval_s, loop.time())
            await asyncio.sleep(due - loop.time())

    async def _send(self, producer: Any, value: bytes) -> None:
        key = self._view.reader.encode()
        sent = await within(producer.send(self._topic, value, key=key, partition=0), SEND_TIMEOUT_S)
        sent.add_done_callback(self._delivered)

    def _delivered(self, sent: asyncio.Future[Any]) -> None:
        if sent.cancelled() or sent.exception() is not None:
            self._failures += 1
        else:
            self._failures = 0

    def _to_ask(self) -> list[tuple[StreamKey, str]]:
        """(stream, reason) of those that only a snapshot makes whole again and that weren't asked lately. A
        fault that no snapshot heals is the reason's first word: the hook answers it with a new epoch."""
        now_ns, view = self._monotonic_ns(), self._view
        for key in self._asked_ns.keys() - view.streams.keys():
            del self._asked_ns[key]
        found: list[tuple[StreamKey, str]] = []
        forked = sum(stream.forked for stream in view.streams.values())
        # Where most contradict this replica, it is the odd one out, and may not end everybody's epochs.
        ask_forked = 0 < forked <= max(1, len(view.streams) // 2)
        for key, stream in view.streams.items():
            state = stream.state
            broken = state.status in (StreamStatus.GAP, StreamStatus.QUARANTINED) or stream.divergent
            broken = broken or (stream.forked and ask_forked)
            if not broken:
                self._asked_ns.pop(key, None)
            elif (
                key.worker != CANARY_WORKER
                and key in view.registry.registrations
                and not view.registry.ended(key)
                and key not in view.registry.fenced
                and state.snapshot is None
                and not stream.shed
                and now_ns - self._asked_ns.get(key, -ASK_AGAIN_NS) >= ASK_AGAIN_NS
            ):
                self._asked_ns[key] = now_ns
                fault = "forked" if stream.forked else state.fault if state.sticky else "not whole"
                found.append((key, f"{fault} here"))
        return found


async def _quietly_stop(producer: Any) -> None:
    try:
        await within(producer.stop(), SEND_TIMEOUT_S)
    except (KafkaError, TimeoutError):
        LOG.warning("a producer did not stop in time", extra={"action": "beacon"})
