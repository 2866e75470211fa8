"""A real log on a real broker, and a hook small enough to see that it is right: it echoes a beacon only after
everything it wrote before was acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from events.chain import MODULUS, sha256
from events.codec import EncodedBatch, decode_signal, dump
from events.fold.registry import Registry
from events.ids import Basis, Role, Tier
from events.kafka.connection import KafkaConnection, LogTail, make_producer
from events.kafka.control import ControlTail, ControlWriter
from events.kafka.topic_admin import TopicAdmin
from events.keyring import KeyRing
from events.model.batch import ControlPosition
from events.model.control import (
    ControlBody,
    DomainCreated,
    Genesis,
    Granted,
    Registered,
)
from events.model.part import (
    BlockEvicted,
    BlockStored,
    DomainEvent,
    Group,
    Opened,
    ProfileDeclared,
    StreamEvent,
)
from events.model.profile import ContentProfile
from events.model.signal import Beacon, Echo, Pulse, PulseChecksum, RankPulse
from events.signing import Signer, verify
from events.topic import EVENTS, PULSE, SIGNALS, TopicNames, pinned_partition, stream_record_key
from tests.support.heedless import Heedless
from tests.support.log import PROFILE, StreamBuilder, opened

PARTITIONS = 4
RING = KeyRing({"default": b"d" * 32, "acme": b"a" * 32})
SIGNERS = {role: Signer.from_seed(sha256(role.value.encode())) for role in Role}


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


async def until(holds: Callable[[], Any], *, timeout_s: float = 60.0) -> Any:
    """Waits for a condition that can be seen; its value when it holds."""
    async with asyncio.timeout(timeout_s):
        while True:
            found = holds()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(0.02)


@dataclass
class LiveLog:
    """Topics of one log with genesis, grants and the default domain."""

    connection: KafkaConnection
    writer: ControlWriter
    producer: Any
    log: str

    async def order(self, body: ControlBody) -> Any:
        return await self.writer.append(body)

    async def send(self, topic: str, partition: int, value: bytes, key: bytes = b"") -> int:
        sent = await self.producer.send_and_wait(topic, value, key=key, partition=partition)
        return int(sent.offset)


@contextlib.asynccontextmanager
async def live_log(kafka: str, prefix: str, *, begin: bool = True) -> AsyncIterator[LiveLog]:
    """Makes the topics and, unless told not to, the log's first records."""
    connection = KafkaConnection(kafka, TopicNames(prefix))
    await TopicAdmin(connection, partitions=PARTITIONS).ensure()
    log = f"log-{prefix.rstrip('.')}"
    writer = ControlWriter(connection, Heedless(log), signers=SIGNERS, wall_ms=wall_ms)
    producer = make_producer(connection, client_id="test-hook")
    await writer.start()
    await producer.start()
    found = LiveLog(connection, writer, producer, log)
    try:
        if begin:
            await begin_log(found)
        yield found
    finally:
        await producer.stop()
        await writer.stop()


async def begin_log(log: LiveLog) -> None:
    await log.order(
        Genesis(log=log.log, operator_key=SIGNERS[Role.OPERATOR].public_key, partitions=PARTITIONS)
    )
    for role in Role:
        if role is not Role.OPERATOR:
            await log.order(Granted(public_key=SIGNERS[role].public_key, roles=(role,), label=role.value))
    for domain in RING:
        await log.order(DomainCreated(domain=domain, tenant=domain))


@dataclass
class TinyHook:
    """One rank's stream: `store`, `evict`, and a pulse every 50 ms while `pulsing`."""

    log: LiveLog
    builder: StreamBuilder
    partition: int
    copies: dict[tuple[str, int], set[bytes]] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    newest: Echo | None = None
    silent: bool = False

    def alias(self, domain: str = "default") -> bytes:
        b = self.builder
        return RING[domain].alias(b.worker, b.rank, b.epoch_no)

    async def write(
        self, *stream_events: StreamEvent, events: Sequence[DomainEvent] = (), domain: str = "default"
    ) -> EncodedBatch:
        async with self.lock:
            parts = [(self.alias(domain), list(events))] if events else []
            record = self.builder.seal(*stream_events, parts=parts)
            await self._send(record)
            return record

    async def lose(self, events: Sequence[DomainEvent]) -> None:
        """A record that is numbered and never arrives."""
        async with self.lock:
            self.builder.seal(parts=[(self.alias(), list(events))])
            self.builder.prev = self.builder.sent[-2].header_sha256

    async def _send(self, record: EncodedBatch) -> None:
        b = self.builder
        topic = self.log.connection.topic(EVENTS)
        await self.log.send(topic, self.partition, record.value, stream_record_key(b.worker, b.rank))

    async def store(
        self,
        ids: Sequence[bytes],
        parent: bytes | None = None,
        *,
        holder: str = "gpu",
        domain: str = "default",
    ) -> None:
        self.copies.setdefault((holder, 0), set()).update(ids)
        event = BlockStored(holder=holder, group=0, profile=0, ids=tuple(ids), parent=parent)
        await self.write(events=[event], domain=domain)

    async def evict(self, ids: Sequence[bytes], *, holder: str = "gpu") -> None:
        self.copies.setdefault((holder, 0), set()).difference_update(ids)
        await self.write(events=[BlockEvicted(holder=holder, group=0, ids=tuple(ids))])

    async def start(self) -> None:
        """Follows kv.signals and pulses."""
        topic = self.log.connection.topic(SIGNALS)
        tail = LogTail(self.log.connection, {(topic, 0): 0})
        await tail.start()
        self.tasks = [asyncio.create_task(self._listen(tail)), asyncio.create_task(self._pulse())]

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        for task in self.tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _listen(self, tail: LogTail) -> None:
        try:
            while True:
                for record in await tail.fetch(timeout_ms=100):
                    signal = decode_signal(record.value)
                    if isinstance(signal, Beacon):
                        self.newest = Echo(offset=record.offset, nonce=signal.nonce)
        finally:
            await tail.stop()

    async def _pulse(self) -> None:
        topic = self.log.connection.topic(PULSE)
        while True:
            await asyncio.sleep(0.05)
            seen = self.newest
            async with self.lock:
                pulse = self._pulse_now(seen)
            if not self.silent:
                await self.log.send(topic, self.partition, dump(pulse), self.builder.worker.encode())

    def _pulse_now(self, echo: Echo | None) -> Pulse:
        b = self.builder
        stated = tuple(
            PulseChecksum(
                holder=holder,
                group=group,
                count=len(ids),
                checksum=(sum(int.from_bytes(i, "big") for i in ids) % MODULUS).to_bytes(16, "big"),
            )
            for (holder, group), ids in self.copies.items()
        )
        rank = RankPulse(
            rank=b.rank,
            epoch=b.epoch,
            next_seq=b.seq,
            prev=b.prev,
            basis=Basis.PUBLISHED,
            echo=echo,
            checksums=stated,
        )
        return Pulse(worker=b.worker, ranks=(rank,))


@contextlib.asynccontextmanager
async def tiny_hook(
    log: LiveLog,
    worker: str = "w0",
    epoch: str = "e1",
    *,
    tiers: Sequence[Tier] = (),
    groups: Sequence[Group] = (),
    profile: ContentProfile = PROFILE,
    model: str | None = None,
) -> AsyncIterator[TinyHook]:
    """Registers a stream, opens it and pulses until the end."""
    partition = pinned_partition(worker, 0, PARTITIONS)
    key = Signer.from_seed(sha256(f"{worker}/{epoch}".encode()))
    done = await log.order(
        Registered(
            worker=worker,
            rank=0,
            epoch=epoch,
            engine_life=f"life-{epoch}",
            public_key=key.public_key,
            partition=partition,
            endpoint=f"http://{worker}",
            model=model,
        )
    )
    registry = Registry(verify)
    control_tail = ControlTail(log.connection, registry, monotonic_ns=time.monotonic_ns)
    await control_tail.catch_up()
    await control_tail.stop()
    control = ControlPosition(offset=done.offset, hash=registry.hashes[done.offset])
    hook = TinyHook(
        log, StreamBuilder(worker, 0, epoch, done.offset, done.record_sha256, control=control), partition
    )
    start: Opened = opened(*tiers, groups=groups)
    await hook.write(start, events=[ProfileDeclared(profile=0, content=profile, block_bytes=(100,))])
    await hook.start()
    try:
        yield hook
    finally:
        await hook.stop()
