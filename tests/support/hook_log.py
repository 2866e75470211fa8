"""A log on a real broker as a reader of it sees it: every stream folded, pulses kept, orders written."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from events.chain import sha256
from events.codec import BatchDecodeError, decode_batch, decode_pulse, dump, encode_control
from events.fold.apply import apply
from events.fold.change import Outcome
from events.fold.registry import Registry
from events.fold.state import Standing, StreamState
from events.ids import Role, StreamKey
from events.kafka.connection import KafkaConnection, LogTail, LogUnavailableError, RawRecord, make_producer
from events.kafka.control import ControlTail, ControlWriter
from events.kafka.topic_admin import TopicAdmin
from events.keyring import KeyRing
from events.model.control import (
    AuditNonce,
    ControlBody,
    DeletionRequested,
    DomainCreated,
    DomainScope,
    Genesis,
    Granted,
    SchemaEnabled,
    Scope,
)
from events.model.part import Ack
from events.model.signal import Beacon, Echo, RankPulse, ResyncRequested
from events.signing import Signer, verify
from events.topic import CONTROL, EVENTS, PULSE, SIGNALS, SIGNATURE_HEADER, TopicNames

PARTITIONS = 2
SIGNERS = {role: Signer.from_seed(sha256(role.value.encode())) for role in Role}
DOMAINS = ("default", "acme", "beta")


def ring() -> KeyRing:
    return KeyRing({domain: sha256(domain.encode()) for domain in DOMAINS})


async def until(holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Waits for a condition; raises AssertionError when it doesn't come."""
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, f"nothing within {timeout_s:g} s"
        await asyncio.sleep(0.02)


@dataclass
class HookLog:
    """Enter it to have topics, genesis, grants and domains, and a reader that keeps up."""

    bootstrap: str
    prefix: str
    states: dict[StreamKey, StreamState] = field(default_factory=dict)
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    records: list[RawRecord] = field(default_factory=list)
    pulses: dict[tuple[str, int], RankPulse] = field(default_factory=dict)
    registry: Registry = field(default_factory=lambda: Registry(verify))
    unreadable: int = 0
    enables: bool = True

    def __post_init__(self) -> None:
        self.connection = KafkaConnection(self.bootstrap, TopicNames(self.prefix))
        self.keyring = ring()
        self._task: asyncio.Task[None] | None = None
        self._tail: LogTail | None = None
        self._producer: Any = None
        self.control: ControlTail
        self.writer: ControlWriter

    async def __aenter__(self) -> Self:
        await TopicAdmin(self.connection, partitions=PARTITIONS).ensure()
        self.writer = ControlWriter(
            self.connection, self.registry, signers=SIGNERS, wall_ms=lambda: time.time_ns() // 1_000_000
        )
        await self.writer.start()
        self._producer = make_producer(self.connection)
        await self._producer.start()
        await self.begin()
        self.control = ControlTail(self.connection, self.registry, monotonic_ns=time.monotonic_ns)
        await self.control.catch_up()
        assert not self.registry.ignored
        await self._open_tail()
        self._task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._tail is not None:
            await self._tail.stop()
        await self._producer.stop()
        await self.control.stop()
        await self.writer.stop()

    async def begin(self) -> None:
        """Genesis, grants, domains, and the version that hooks write; all at once, for there are many logs."""
        operator = SIGNERS[Role.OPERATOR]
        bodies: list[ControlBody] = [
            Genesis(log="log-1", operator_key=operator.public_key, partitions=PARTITIONS)
        ]
        bodies += [
            Granted(public_key=SIGNERS[role].public_key, roles=(role,), label=role.value)
            for role in Role
            if role is not Role.OPERATOR
        ]
        if self.enables:
            bodies.append(SchemaEnabled(record="event_batch", version=1))
        bodies += [DomainCreated(domain=domain, tenant=domain) for domain in DOMAINS]
        sent = []
        for body in bodies:
            role = Role.CONTROL if isinstance(body, DomainCreated) else Role.OPERATOR
            signer = SIGNERS[role]
            value, line = encode_control(body, log="log-1", signer=signer.id, role=role, written_ms=1)
            headers = [(SIGNATURE_HEADER, signer.sign(line))]
            topic = self.connection.topic(CONTROL)
            sent.append(await self._producer.send(topic, value, partition=0, headers=headers))
        await asyncio.gather(*sent)

    # --- reading ------------------------------------------------------------------------------------

    def current(self, worker: str, rank: int = 0) -> StreamState | None:
        """The newest registered stream of a rank, as far as it was read."""
        stream = self.registry.current.get((worker, rank))
        return None if stream is None else self.states.get(stream)

    def state(self, stream: StreamKey) -> StreamState:
        """A stream as far as it was read; unopened if nothing of it was."""
        return self.states.get(stream) or StreamState(stream, 0)

    def copies(self, worker: str, rank: int = 0, holder: str = "gpu", group: int = 0) -> set[bytes]:
        state = self.current(worker, rank)
        return set() if state is None else set(state.copies.get((holder, group), {}))

    def standing(self, worker: str, domain: str, number: int, rank: int = 0) -> Standing | None:
        state = self.current(worker, rank)
        if state is None:
            return None
        alias = self.keyring[domain].alias(worker, rank, state.epoch_no)
        return state.standings.get((alias, number))

    def told(self, worker: str, domain: str, number: int) -> list[int]:
        """How many old copies each ack of the current stream said are left of the request, in order."""
        state = self.current(worker)
        if state is None:
            return []
        alias = self.keyring[domain].alias(worker, state.key.rank, state.epoch_no)
        batches = [decode_batch(record.value) for record in self.records]
        return [
            standing.old_left
            for batch in batches
            if batch.header.stream == state.key
            for part in batch.parts
            if part.alias == alias
            for event in part.events
            if isinstance(event, Ack)
            for standing in event.requests
            if standing.request == number
        ]

    def discharged(self, worker: str, domain: str, number: int, rank: int = 0) -> bool:
        standing = self.standing(worker, domain, number, rank)
        return standing is not None and standing.discharged

    def echoed(self, worker: str, beacon: Echo, rank: int = 0) -> bool:
        """Whether the worker's newest pulse echoes that beacon or a newer one, and was read up to there."""
        pulse, state = self.pulses.get((worker, rank)), self.current(worker, rank)
        return (
            pulse is not None
            and pulse.echo is not None
            and state is not None
            and state.key.epoch == pulse.epoch
            and pulse.echo.offset >= beacon.offset
            and state.next_seq >= pulse.next_seq
        )

    # --- writing ------------------------------------------------------------------------------------

    async def beacon(self) -> Echo:
        nonce = secrets.token_bytes(16)
        value = dump(Beacon(reader="test", nonce=nonce))
        sent = await self._producer.send_and_wait(self.connection.topic(SIGNALS), value, partition=0)
        return Echo(offset=int(sent.offset), nonce=nonce)

    async def resync(self, stream: StreamKey, reason: str = "test") -> None:
        request = ResyncRequested(worker=stream.worker, rank=stream.rank, epoch=stream.epoch, reason=reason)
        await self._producer.send_and_wait(self.connection.topic(SIGNALS), dump(request), partition=0)

    async def delete(self, scope: Scope | str) -> int:
        """Writes a deletion request; a name is a domain. Returns its number."""
        wanted = DomainScope(domain=scope) if isinstance(scope, str) else scope
        return (await self.writer.append(DeletionRequested(scope=wanted, requester="test"))).offset

    async def nonce(self, request: int) -> int:
        body = AuditNonce(request=request, nonce=secrets.token_hex(4))
        return (await self.writer.append(body)).offset

    # --- inside -------------------------------------------------------------------------------------

    async def _open_tail(self) -> None:
        events, pulse = self.connection.topic(EVENTS), self.connection.topic(PULSE)
        positions = {(topic, at): 0 for topic in (events, pulse) for at in range(PARTITIONS)}
        for record in self.records:
            where = (record.topic, record.partition)
            positions[where] = max(positions[where], record.offset + 1)
        tail = LogTail(self.connection, positions)
        await tail.start()
        self._tail = tail

    async def _follow(self) -> None:
        while True:
            try:
                if self._tail is None:
                    await self._open_tail()
                assert self._tail is not None
                await self.control.catch_up()
                for record in await self._tail.fetch(timeout_ms=50):
                    self._read(record)
            except LogUnavailableError:
                if self._tail is not None:
                    await self._tail.stop()
                    self._tail = None
                await self.control.stop()
                self.control = ControlTail(self.connection, self.registry, monotonic_ns=time.monotonic_ns)
                await asyncio.sleep(0.1)

    def _read(self, record: RawRecord) -> None:
        if record.topic == self.connection.topic(PULSE):
            pulse = decode_pulse(record.value)
            for rank in pulse.ranks:
                self.pulses[pulse.worker, rank.rank] = rank
            return
        self.records.append(record)
        try:
            batch = decode_batch(record.value)
        except BatchDecodeError:
            self.unreadable += 1
            return
        stream = batch.header.stream
        state = self.states.setdefault(stream, StreamState(stream, batch.header.epoch_no))
        self.outcomes[apply(state, batch).outcome] += 1
