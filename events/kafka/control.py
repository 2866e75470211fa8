"""Writing signed records to `kv.control` and following it from its first record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from aiokafka.errors import KafkaError

from events.chain import sha256
from events.codec import encode_control
from events.errors import GrantError, SignatureError
from events.fold.registry import Registry
from events.ids import KeyId, Role
from events.kafka.connection import (
    KafkaConnection,
    LogTail,
    LogTruncatedError,
    LogUnavailableError,
    RawRecord,
    make_producer,
)
from events.kafka.continuity import LOOK_EVERY_S, Continuity
from events.kafka.deadline import within
from events.kafka.partition_log import KafkaPartitionLog
from events.model.control import ROLE_OF_KIND, ControlBody, ControlRecord, Genesis
from events.signing import Signer
from events.topic import CONTROL, SIGNATURE_HEADER


@dataclass(frozen=True, slots=True)
class Appended:
    """A control record that was read back: its number, the SHA-256 of its raw value, and the value."""

    offset: int
    record_sha256: bytes
    value: bytes


class Rising:
    """A wall clock that never says the same twice: of two records that are equal in all, also in when they were
    written, the second is a copy and no order."""

    def __init__(self, read_ms: Callable[[], int]) -> None:
        self._read_ms = read_ms
        self._last_ms = -1

    def __call__(self) -> int:
        self._last_ms = max(self._read_ms(), self._last_ms + 1)
        return self._last_ms


class AskedFold(Protocol):
    """A fold of `kv.control`, as far as a writer asks it: `events.fold.registry.Registry`, or an auditor's own."""

    @property
    def log(self) -> str:
        """The log's id, "" before its genesis."""

    def why_not(self, signer: KeyId, role: Role, body: ControlBody) -> str:
        """Why folds would ignore a record that this key signs now, for its signer's sake; "" if they would not."""


class ControlWriter:
    """Appends signed records and reads each back before it answers, so an answer names what the log holds.

    `fold` is this process' own of the same log: it is asked before each record whether the key may say it, here and
    nowhere else, so whoever writes for long keeps it up to date. `signers` maps a role to the key that acts under it;
    `wall_ms` is an injected clock.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        fold: AskedFold,
        *,
        signers: dict[Role, Signer],
        wall_ms: Callable[[], int],
        timeout_s: float = 10.0,
    ) -> None:
        self._connection = connection
        self._fold = fold
        self._signers = dict(signers)
        self._wall_ms = Rising(wall_ms)
        self._timeout_s = timeout_s
        self._producer: Any = None
        self._tail: LogTail | None = None
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        """Raises LogUnavailableError if no broker answers."""
        topic = self._connection.topic(CONTROL)
        producer = make_producer(self._connection, client_id="kvledger-control")
        tail = LogTail(self._connection, {(topic, 0): 0})
        try:
            await within(producer.start(), self._timeout_s)
            await tail.start()
        except (KafkaError, TimeoutError) as error:
            await producer.stop()
            raise LogUnavailableError(f"no answer from Kafka at {self._connection.bootstrap}") from error
        except (LogUnavailableError, asyncio.CancelledError):
            await producer.stop()
            raise
        self._producer, self._tail = producer, tail

    async def stop(self) -> None:
        """Idempotent."""
        producer, tail = self._producer, self._tail
        self._producer = self._tail = None
        if producer is not None:
            await producer.stop()
        if tail is not None:
            await tail.stop()

    async def append(
        self,
        body: ControlBody,
        *,
        idempotency_key: str | None = None,
        key_scope: str | None = None,
    ) -> Appended:
        """Signs with the key of the role that `body` needs, writes, reads back.

        Not deduplicated here: folds ignore a later record with the same (key_scope, idempotency_key).
        Raises SignatureError without a fitting key, GrantError with one that was revoked or isn't granted this:
        nothing is written then. LogUnavailableError when nothing came back in time.
        """
        role = next((r for r in self._signers if r in ROLE_OF_KIND[body.kind]), None)
        if role is None:
            raise SignatureError("no_key_for_role", key_id=body.kind)
        signer = self._signers[role]
        async with self._lock:
            why = self._fold.why_not(signer.id, role, body)
            if why:
                raise GrantError(why, key_id=signer.id, role=role.value)
            value, line = encode_control(
                body,
                log=body.log if isinstance(body, Genesis) else self._fold.log,
                signer=signer.id,
                role=role,
                written_ms=self._wall_ms(),
                idempotency_key=idempotency_key,
                key_scope=key_scope,
            )
            try:
                return await within(self._write(body.kind, value, signer.sign(line)), self._timeout_s)
            except (KafkaError, TimeoutError) as error:
                raise LogUnavailableError(f"{body.kind}: {type(error).__name__}") from error

    async def _write(self, kind: str, value: bytes, signature: bytes) -> Appended:
        if self._producer is None or self._tail is None:
            raise LogUnavailableError("the control writer is not started")
        topic = self._connection.topic(CONTROL)
        sent = await self._producer.send_and_wait(
            topic, value, key=kind.encode(), partition=0, headers=[(SIGNATURE_HEADER, signature)]
        )
        offset = int(sent.offset)
        self._tail.seek(topic, 0, offset)
        while True:
            for record in await self._tail.fetch(timeout_ms=200, max_records=1):
                if record.offset == offset and record.value == value:
                    return Appended(offset, sha256(value), value)
                raise LogUnavailableError(f"{kind}: the log holds another record at {offset}")


ControlListener = Callable[[RawRecord, ControlRecord | None, str], None]
"""(raw record, decoded record or None, why it was ignored or ""); called in offset order."""


class ControlTail:
    """Folds all of `kv.control` into a Registry and keeps up with it.

    `monotonic_ns` is the reader's clock; `current_ns` is when the last fetch that reached the log's end was
    started, which bounds how fresh anything decided by the registry can be.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        registry: Registry,
        *,
        monotonic_ns: Callable[[], int],
        interval_s: float = 0.05,
        hole_after_s: float = 15.0,
    ) -> None:
        self.registry = registry
        self.current_ns: int | None = None
        self._connection = connection
        self._monotonic_ns = monotonic_ns
        self._interval_s = interval_s
        self._hole_after_s = hole_after_s
        self._listeners: list[ControlListener] = []
        self._moved = asyncio.Condition()
        self._tail: LogTail | None = None
        self._log = KafkaPartitionLog(connection)
        self._continuity = Continuity(self._log, connection.topic(CONTROL))
        self._looked_ns: int | None = None

    def listen(self, listener: ControlListener) -> None:
        """Called for every record from now on; register before `catch_up` to see all."""
        self._listeners.append(listener)

    async def catch_up(self) -> None:
        """Reads up to the end that the log had when this call began. Raises LogUnavailableError, and
        LogTruncatedError if the log ends before what was read, begins behind it, holds other records there or
        jumps: then nothing known here counts."""
        topic = self._connection.topic(CONTROL)
        await self._look_back()
        if self._tail is None:
            tail = LogTail(self._connection, {(topic, 0): self.registry.next_offset})
            await tail.start()
            self._tail = tail
            begin = (await tail.beginning_offsets())[topic, 0]
            if begin > self.registry.next_offset:
                raise LogTruncatedError(
                    f"kv.control begins at {begin}, {self.registry.next_offset} is wanted"
                )
        started = self._monotonic_ns()
        end = (await self._tail.end_offsets())[topic, 0]
        if end < self.registry.next_offset:
            raise LogTruncatedError(f"kv.control ends at {end}, {self.registry.next_offset} was read")
        moved_ns = started
        while self.registry.next_offset < end:
            records = await self._tail.fetch(timeout_ms=200, max_records=2_000)
            if not records and self._monotonic_ns() - moved_ns >= self._hole_after_s * 1e9:
                records = await self._behind_hole(self._tail, topic)
            moved_ns = self._monotonic_ns() if records else moved_ns
            for record in records:
                try:
                    decoded, why = self.registry.fold(record.offset, record.value, record.signature)
                except ValueError as error:
                    raise LogTruncatedError(str(error)) from error
                if why == "redelivered":
                    continue
                self._continuity.read(record)
                for listener in self._listeners:
                    listener(record, decoded, why)
        self.current_ns = started
        async with self._moved:
            self._moved.notify_all()

    async def _look_back(self) -> None:
        now_ns = self._monotonic_ns()
        if self._looked_ns is not None and now_ns - self._looked_ns < LOOK_EVERY_S * 1e9:
            return
        await self._continuity.begin([0])
        found = await self._continuity.look()
        for lost_at in found.lost.values():
            where = "what was read" if lost_at is None else f"what was read from {lost_at} on"
            raise LogTruncatedError(f"kv.control holds other records than {where}")
        if found.moved:
            await self._drop_tail()
            self._continuity.settle(0)
        self._looked_ns = now_ns

    async def _behind_hole(self, tail: LogTail, topic: str) -> list[RawRecord]:
        """The records that a broker which answers gives after all, where nothing came for long. Raises
        LogTruncatedError if it has none where one must be, LogUnavailableError if it doesn't answer."""
        end = (await tail.end_offsets())[topic, 0]
        records = await tail.fetch(timeout_ms=2_000, max_records=2_000)
        if not records and self.registry.next_offset < end:
            raise LogTruncatedError(
                f"kv.control holds no record at {self.registry.next_offset} and ends at {end}: it must be "
                "written without transactions and never be compacted"
            )
        return records

    async def run(self) -> None:
        """Keeps catching up until cancelled; a broker that is away is retried, `current_ns` then stands still.

        Raises LogTruncatedError: the process ends and begins anew.
        """
        while True:
            try:
                await self.catch_up()
            except LogUnavailableError:
                await self._drop_tail()
                await asyncio.sleep(0.5)
            await asyncio.sleep(self._interval_s)

    async def wait_for(self, offset: int, timeout_s: float) -> bool:
        """Waits until the record at `offset` is folded; False if that took longer. Needs `run` or
        `catch_up` going on elsewhere."""

        async def reached() -> None:
            async with self._moved:
                await self._moved.wait_for(lambda: self.registry.next_offset > offset)

        try:
            await within(reached(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """Idempotent."""
        await self._drop_tail()
        await self._log.close()

    async def _drop_tail(self) -> None:
        tail, self._tail = self._tail, None
        if tail is not None:
            await tail.stop()
