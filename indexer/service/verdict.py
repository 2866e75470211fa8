"""The newest verdict on each request, from `kv.audit`, as far as an auditor of this log signed it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import ValidationError

from events.codec import decode_audit
from events.errors import DecodeError
from events.fold.registry import Registry
from events.ids import KeyId, Role
from events.kafka.connection import KafkaConnection, LogTail, LogUnavailableError
from events.model.audit import VerdictGiven
from events.signing import verify
from events.topic import AUDIT

LOG = logging.getLogger(__name__)
RETRY_S = 1.0
POLL_MS = 500
MAX_EARLY = 200
"""Verdicts of keys that nobody has granted anything yet, as far as is read here; tried again, the newest kept."""


@dataclass(frozen=True, slots=True)
class Judged:
    """`offset` is the verdict's in `kv.audit`; `signer` the auditor's key id."""

    given: VerdictGiven
    signer: str
    offset: int


class VerdictFeed:
    """Runs until cancelled. It holds one verdict for each request that was judged, so it is as bounded as the
    requests are. Until a broker answers, `newest` holds what was read last."""

    def __init__(
        self, connection: KafkaConnection, registry: Registry, control_read: Callable[[], bool]
    ) -> None:
        self.newest: dict[int, Judged] = {}
        self._control_read = control_read
        self._early: deque[tuple[int, bytes]] = deque(maxlen=MAX_EARLY)
        self._connection = connection
        self._registry = registry
        self._next = 0

    async def run(self) -> None:
        while True:
            # Without the grants nobody's verdict would count.
            if self._control_read():
                try:
                    await self._follow()
                except LogUnavailableError as error:
                    LOG.debug("kv.audit: %s", error)
            await asyncio.sleep(RETRY_S)

    async def _follow(self) -> None:
        topic = self._connection.topic(AUDIT)
        tail = LogTail(self._connection, {(topic, 0): self._next})
        try:
            await tail.start()
            first, end = await tail.bounds(topic, 0)
            if self._next > end or self._next < first:
                self.newest, self._next = {}, first  # it was cut: what it said may not be there any more
                tail.seek(topic, 0, first)
            while True:
                early, self._early = list(self._early), deque(maxlen=MAX_EARLY)
                for offset, value in early:
                    self.take(offset, value)
                for record in await tail.fetch(timeout_ms=POLL_MS, max_records=500):
                    self.take(record.offset, record.value)
                    self._next = record.offset + 1
        finally:
            await tail.stop()

    def take(self, offset: int, value: bytes) -> None:
        """One record; what isn't a verdict of an auditor of this log is passed over."""
        try:
            record = decode_audit(value)
            given = VerdictGiven.model_validate_json(record.statement)
        except (DecodeError, ValidationError):
            return
        if KeyId(record.signer) not in self._registry.grants:
            self._early.append((offset, value))  # its grant may not be read here yet
            return
        known = self.newest.get(given.request)
        if known is not None and known.offset >= offset:
            return
        if given.log == self._registry.log and self._is_auditors(
            record.signer, record.signature, record.statement
        ):
            self.newest[given.request] = Judged(given, record.signer, offset)

    def of(self, request: int) -> Judged | None:
        """The newest verdict, unless its auditor's key was revoked since."""
        found = self.newest.get(request)
        if found is None:
            return None
        grant = self._registry.grants.get(KeyId(found.signer))
        return found if grant is not None and grant.revoked_at is None else None

    def _is_auditors(self, signer: str, signature: bytes, statement: bytes) -> bool:
        grant = self._registry.grants.get(KeyId(signer))
        return (
            grant is not None
            and grant.revoked_at is None
            and Role.AUDITOR in grant.roles
            and verify(grant.public_key, signature, statement)
        )
