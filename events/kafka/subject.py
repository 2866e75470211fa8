"""Writing `kv.subjects`, and reading it whole when a subject is asked for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from aiokafka.errors import KafkaError

from events.codec import dump
from events.errors import KvledgerError
from events.fold.registry import Registry
from events.kafka.connection import (
    KafkaConnection,
    LogTail,
    LogUnavailableError,
    RawRecord,
    make_producer,
)
from events.kafka.deadline import within
from events.keyring import DomainKeys
from events.model.audit import SubjectBound
from events.model.control import SubjectScope
from events.signing import Signer
from events.subject import MAX_LEAVES, Bindings, given_pseudonym
from events.topic import SIGNATURE_HEADER, SUBJECTS


class TooManyLeavesError(KvledgerError):
    """More leaves are bound to the subject than one request can name; delete its domain instead."""

    def __init__(self, leaves: int) -> None:
        super().__init__(f"{leaves} leaves are bound to the subject, a request names {MAX_LEAVES} at most")
        self.leaves = leaves


class SubjectLog:
    """One connection's view of the topic; nothing is kept between calls but the producer, and in `begins` the oldest
    offset that the last reader met: above 0 there may be leaves that nobody but an archive knows."""

    def __init__(self, connection: KafkaConnection, *, timeout_s: float = 15.0) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._producer: Any = None
        self._starting = asyncio.Lock()
        self.begins = 0

    async def bind(self, body: SubjectBound, signer: Signer) -> int:
        """Appends a signed binding; its offset. Repeating it changes nothing. Raises LogUnavailableError."""
        value = dump(body)
        try:
            producer = await self._started()
            sent = await within(
                producer.send_and_wait(
                    self._connection.topic(SUBJECTS),
                    value,
                    key=body.subject.hex().encode(),
                    partition=0,
                    headers=[(SIGNATURE_HEADER, signer.sign(value))],
                ),
                self._timeout_s,
            )
        except (KafkaError, TimeoutError) as error:
            await self.stop()
            raise LogUnavailableError(f"kv.subjects: {type(error).__name__}") from error
        return int(sent.offset)

    async def read(self, take: Callable[[RawRecord], None]) -> int:
        """Gives every record that the topic holds now to `take`; the offset behind them. Raises
        LogUnavailableError."""
        topic = self._connection.topic(SUBJECTS)
        tail = LogTail(self._connection, {(topic, 0): 0})
        until_s = time.monotonic() + self._timeout_s
        try:
            await within(tail.start(), self._timeout_s)
            first, end = await tail.bounds(topic, 0)
            tail.seek(topic, 0, first)
            self.begins = at = first
            while at < end:
                records = await tail.fetch(timeout_ms=200, max_records=2_000)
                if records:
                    until_s = time.monotonic() + self._timeout_s
                elif time.monotonic() >= until_s:
                    raise LogUnavailableError(f"kv.subjects gives no record behind {at}")
                for record in records:
                    if record.offset < end:
                        take(record)
                at = await tail.position(topic, 0)
            return end
        except TimeoutError as error:
            raise LogUnavailableError("kv.subjects: no answer in time") from error
        finally:
            await tail.stop()

    async def scope(
        self, registry: Registry, keys: Mapping[str, DomainKeys], domain: str, subject: str
    ) -> SubjectScope | None:
        """What a deletion of the subject reaches as of now; None if there is neither a sub-domain nor a leaf.

        `subject` is a name or a pseudonym; a name that isn't in the log already, as a sub-domain's, doesn't get
        there. Without the domain's keys a name reaches its sub-domain alone. Raises LogUnavailableError,
        TooManyLeavesError.
        """
        has_own = f"{domain}/{subject}" in registry.domains
        pseudonym = given_pseudonym(subject)
        if pseudonym is None:
            known = keys.get(domain)
            pseudonym = None if known is None else known.pseudonym(subject)
        if pseudonym is None or domain not in registry.domains:
            return SubjectScope(domain=domain, subject=subject) if has_own else None
        bound = Bindings.of(domain, pseudonym, registry.grants.values(), registry.verify)
        end = await self.read(lambda record: bound.take(record.value, record.signature))
        if len(bound.leaves) > MAX_LEAVES:
            raise TooManyLeavesError(len(bound.leaves))
        if not bound.leaves and not has_own:
            return None
        return SubjectScope(
            domain=domain,
            subject=subject if has_own else pseudonym.hex(),
            pseudonym=pseudonym,
            leaves=tuple(sorted(bound.leaves)) or None,
            bound_to=end,
        )

    async def stop(self) -> None:
        """Idempotent."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.stop()

    async def _started(self) -> Any:
        async with self._starting:
            if self._producer is None:
                producer = make_producer(self._connection, client_id="kvledger-subjects")
                try:
                    await within(producer.start(), self._timeout_s)
                except (KafkaError, TimeoutError, asyncio.CancelledError):
                    await producer.stop()
                    raise
                self._producer = producer
            return self._producer
