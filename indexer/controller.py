"""The controller: quotas, calls for snapshots, fences, retention. One is active; neither lookups nor ingest wait."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from aiokafka.errors import KafkaError

from events.codec import decode_pulse, decode_signal, dump
from events.errors import DecodeError, KvledgerError
from events.fold.quota import HolderUsage, QuotaKey, counts, differs, evaluate
from events.fold.registry import Registry
from events.ids import CANARY_WORKER, StreamKey, StreamStatus, Tier
from events.kafka.connection import (
    KafkaConnection,
    LogTail,
    LogTruncatedError,
    LogUnavailableError,
    RawRecord,
    make_producer,
)
from events.kafka.control import ControlTail, ControlWriter
from events.kafka.deadline import within
from events.model.audit import QuotaState
from events.model.control import ControllerStarted, Fenced
from events.model.signal import Beacon, ResyncRequested
from events.topic import PULSE, QUOTA, SIGNALS, Topic
from indexer.database import UNAVAILABLE, connect
from indexer.retention import PRINCIPAL, due_requests
from indexer.silence import SilenceLimits, SilenceWatch
from indexer.store import StoreUnavailableError

log = logging.getLogger(__name__)
ADVISORY_LOCK = 0x6B766C64
RETRY_S = 1.0
SEND_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 5.0
MAX_REASON = 2_000

USAGE = """
SELECT s.worker, s.rank, s.epoch, d.tenant, u.tier, sum(u.blocks)::int8 AS blocks, sum(u.bytes) AS bytes,
    (SELECT CASE WHEN bool_and(h.durable_id IS NOT NULL) THEN array_agg(h.durable_id) END
     FROM holder h WHERE h.stream_id = s.id AND h.tier = u.tier) AS durable
FROM tenant_usage u
JOIN stream s ON s.id = u.stream_id
JOIN stream_alias a ON a.stream_id = u.stream_id AND a.alias = u.alias
JOIN domain d ON d.name = a.domain
GROUP BY s.id, s.worker, s.rank, s.epoch, d.tenant, u.tier
"""
STATUS = "SELECT worker, rank, epoch, status, fault, sticky FROM stream WHERE status <> 'live'"


class DeposedError(KvledgerError):
    """A controller with a later term has started: this one must not write any more."""


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """`quota_every_s` bounds how often figures alone are rewritten; levels and limits show at once."""

    name: str = "controller"
    interval_s: float = 0.5
    quota_every_s: float = 10.0
    resync_after_s: float = 5.0
    resync_every_s: float = 15.0
    silence: SilenceLimits = field(default_factory=SilenceLimits)


class Controller:
    """`run` it in any number of processes: one works, the others wait for its lock."""

    def __init__(
        self,
        dsn: str,
        connection: KafkaConnection,
        registry: Registry,
        writer: ControlWriter,
        *,
        monotonic_s: Callable[[], float],
        monotonic_ns: Callable[[], int],
        wall_ms: Callable[[], int],
        nonce: Callable[[], bytes],
        options: ControllerOptions | None = None,
    ) -> None:
        self._dsn = dsn
        self._kafka = connection
        self._registry = registry
        self._writer = writer
        self._monotonic_s = monotonic_s
        self._wall_ms = wall_ms
        self._nonce = nonce
        self._options = options or ControllerOptions()
        self._control = ControlTail(connection, registry, monotonic_ns=monotonic_ns)
        self._quotas: dict[QuotaKey, QuotaState] = {}
        self._written_s: dict[QuotaKey, float] = {}
        self._broken_since_s: dict[StreamKey, float] = {}
        self._asked_s: dict[StreamKey, float] = {}
        self._closed: set[StreamKey] = set()
        self._nonces: set[bytes] = set()

    async def run(self) -> None:
        """Until cancelled; whatever is away, it tries again. Raises LogTruncatedError: begin anew."""
        try:
            while True:
                try:
                    await self._lead()
                except LogTruncatedError:
                    raise
                except (KvledgerError, KafkaError, *UNAVAILABLE) as error:
                    log.warning("controller waits: %s %s", type(error).__name__, error)
                await asyncio.sleep(RETRY_S)
        finally:
            await self._control.stop()

    async def _lead(self) -> None:
        database = await connect(self._dsn, name="kvledger controller")
        try:
            while not await database.fetchval(  # noqa: ASYNC110 - the lock is elsewhere
                "SELECT pg_try_advisory_lock($1)", ADVISORY_LOCK
            ):
                await asyncio.sleep(RETRY_S)
            await self._control.catch_up()
            if not self._registry.log:
                raise StoreUnavailableError("the log has no genesis record yet")
            await self._writer.start()
            try:
                await self._serve(database)
            finally:
                await self._writer.stop()
        finally:
            database.terminate()

    async def _serve(self, database: Any) -> None:
        term = (await self._writer.append(ControllerStarted(controller=self._options.name))).offset
        log.info("active with term %d", term)
        self._quotas.clear()
        producer = make_producer(self._kafka, client_id="kvledger-controller")
        watch = SilenceWatch(self._options.silence)
        tail: LogTail | None = None
        try:
            await within(producer.start(), SEND_TIMEOUT_S)
            tail = await self._listen()
            while True:
                await self._control.catch_up()
                if self._registry.controller_term > term:
                    raise DeposedError(f"term {self._registry.controller_term} follows term {term}")
                await self._beacon(producer)
                for record in await tail.fetch(timeout_ms=100, max_records=5_000):
                    self._hear(record, watch)
                await self._quota(database, producer, term)
                await self._resync(database, producer)
                await self._fence(watch)
                await self._retain()
                await asyncio.sleep(self._options.interval_s)
        finally:
            if tail is not None:
                await tail.stop()
            await asyncio.wait({asyncio.ensure_future(producer.stop())}, timeout=STOP_TIMEOUT_S)

    async def _listen(self) -> LogTail:
        places = {(self._kafka.topic(PULSE), number): 0 for number in range(self._registry.partitions)}
        places[self._kafka.topic(SIGNALS), 0] = 0
        tail = LogTail(self._kafka, places)
        await tail.start()
        for (topic, number), offset in (await tail.end_offsets()).items():
            tail.seek(topic, number, offset)
        return tail

    async def _send(self, producer: Any, topic: Topic, key: str, value: bytes) -> None:
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await producer.send_and_wait(self._kafka.topic(topic), value, key=key.encode(), partition=0)
        except (KafkaError, TimeoutError) as error:
            raise LogUnavailableError(f"{topic.name}: {type(error).__name__}") from error

    async def _beacon(self, producer: Any) -> None:
        nonce = self._nonce()
        self._nonces.add(nonce)
        await self._send(
            producer, SIGNALS, self._options.name, dump(Beacon(reader=self._options.name, nonce=nonce))
        )

    def _hear(self, record: RawRecord, watch: SilenceWatch) -> None:
        now_s = self._monotonic_s()
        try:
            if record.topic == self._kafka.topic(PULSE):
                pulse = decode_pulse(record.value)
                streams = [StreamKey(pulse.worker, rank.rank, rank.epoch) for rank in pulse.ranks]
                watch.pulse(record.partition, pulse.worker, streams, now_s)
                return
            signal = decode_signal(record.value)
        except DecodeError:
            return
        if isinstance(signal, Beacon) and signal.nonce in self._nonces:
            self._nonces.clear()
            watch.beacon_read_back(now_s)

    async def _quota(self, database: Any, producer: Any, term: int) -> None:
        if not self._registry.limits:
            return
        usage = [
            HolderUsage(stream, row["tenant"], Tier(row["tier"]), row["blocks"], int(row["bytes"]))
            for row in await database.fetch(USAGE)
            if counts(
                self._registry,
                stream := StreamKey(row["worker"], row["rank"], row["epoch"]),
                row["durable"] or (),
            )
        ]
        now_s = self._monotonic_s()
        for key, state in evaluate(usage, self._registry.limits, term).items():
            before = self._quotas.get(key)
            if not differs(before, state):
                continue
            is_urgent = before is None or (before.level, before.soft, before.hard) != (
                state.level,
                state.soft,
                state.hard,
            )
            if is_urgent or now_s - self._written_s.get(key, -1e9) >= self._options.quota_every_s:
                await self._send(producer, QUOTA, "/".join(key), dump(state))
                self._quotas[key], self._written_s[key] = state, now_s

    async def _resync(self, database: Any, producer: Any) -> None:
        now_s = self._monotonic_s()
        broken: dict[StreamKey, str] = {}
        self._closed.clear()
        for row in await database.fetch(STATUS):
            stream = StreamKey(row["worker"], row["rank"], row["epoch"])
            if row["status"] == StreamStatus.CLOSED:
                self._closed.add(stream)
            elif row["status"] in (StreamStatus.GAP, StreamStatus.QUARANTINED):
                # Its first word tells the hook whether a snapshot heals the stream or only another epoch.
                broken[stream] = row["fault"] if row["sticky"] else f"not whole: {row['fault']}"
        current = set(self._registry.current.values())
        self._broken_since_s = {
            stream: self._broken_since_s.get(stream, now_s) for stream in broken.keys() & current
        }
        for stream, since_s in self._broken_since_s.items():
            is_due = now_s - self._asked_s.get(stream, -1e9) >= self._options.resync_every_s
            if now_s - since_s >= self._options.resync_after_s and is_due:
                self._asked_s[stream] = now_s
                body = ResyncRequested(
                    worker=stream.worker,
                    rank=stream.rank,
                    epoch=stream.epoch,
                    reason=broken[stream][:MAX_REASON],
                )
                await self._send(producer, SIGNALS, stream.worker, dump(body))

    async def _retain(self) -> None:
        for due in due_requests(self._registry, self._wall_ms()):
            done = await self._writer.append(due.body, idempotency_key=due.key, key_scope=PRINCIPAL)
            log.info("deletion %d is requested: %s", done.offset, due.body.reason)

    async def _fence(self, watch: SilenceWatch) -> None:
        registry = self._registry
        # kvledger's own canaries are in nobody's way, dead or alive.
        current = {stream for stream in registry.current.values() if stream.worker != CANARY_WORKER}
        eligible = current - set(registry.fenced) - self._closed
        for stream in sorted(ended(registry, eligible)):
            log.warning("%s is fenced: its engine has ended", stream, extra={"action": "stream_fenced"})
            eligible.remove(stream)
            await self._writer.append(
                Fenced(worker=stream.worker, rank=stream.rank, epoch=stream.epoch, evidence="operator")
            )
        watch.tick(eligible, self._monotonic_s())
        fenced = sum(registry.fenced.get(stream) == "timeout" for stream in current)
        for stream in watch.lost(eligible, fenced):
            log.warning("%s is fenced: silent", stream, extra={"action": "stream_fenced"})
            await self._writer.append(
                Fenced(worker=stream.worker, rank=stream.rank, epoch=stream.epoch, evidence="timeout")
            )


def ended(registry: Registry, eligible: Collection[StreamKey]) -> set[StreamKey]:
    """Streams whose engine's exit is attested: to be fenced at once. Only one for each life and rank: an epoch
    registered after that contradicts the attestation, and is fenced for silence like any other."""

    def life(stream: StreamKey) -> tuple[str, int, str]:
        return stream.worker, stream.rank, registry.registrations[stream].body.engine_life

    fenced = {life(stream) for stream in registry.fenced}
    return {
        stream
        for stream in eligible
        if (stream.worker, life(stream)[2]) in registry.exits and life(stream) not in fenced
    }
