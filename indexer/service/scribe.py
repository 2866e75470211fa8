"""Writing to `kv.control` for whoever asks over REST: one writer, each record read back before it is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from events.errors import SignatureError
from events.fold.registry import Registry
from events.ids import Role
from events.kafka.connection import LogUnavailableError
from events.kafka.control import Appended, ControlWriter
from events.model.control import ControlBody
from events.signing import Signer
from indexer.service.body import fail
from indexer.service.config import ServiceConfig
from indexer.service.feed import ViewFeed
from router_client.problem import ProblemKind

READ_BACK_S = 10.0


class Scribe:
    """Holds the control key, if this replica has one."""

    def __init__(
        self, config: ServiceConfig, registry: Registry, feed: ViewFeed, *, wall_ms: Callable[[], int]
    ) -> None:
        self._config = config
        self._registry = registry
        self._feed = feed
        self._wall_ms = wall_ms
        self._writer: ControlWriter | None = None
        self._starting = asyncio.Lock()

    async def stop(self) -> None:
        """Idempotent."""
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.stop()

    def signer(self) -> Signer:
        """The control key. Raises ProblemError 403 without one, 503 while kv.control isn't read."""
        signer = self._config.signers.get(Role.CONTROL)
        if signer is None:
            raise fail(ProblemKind.FORBIDDEN, "this replica has no control key")
        if not self._registry.log:
            raise fail(ProblemKind.INDEX_UNAVAILABLE, "kv.control is still being read", retry_after_ms=500)
        return signer

    async def write(self, body: ControlBody, *, principal: str, key: str | None) -> Appended:
        """Signs, writes, and returns once this replica's registry has folded the record: a lookup here
        reflects it. Whether the registry obeyed is the caller's to look up. Raises ProblemError 503: it is
        not known whether the record is in the log, repeat with the same Idempotency-Key."""
        try:
            writer = await self._started()
            appended = await writer.append(body, idempotency_key=key, key_scope=principal)
        except (LogUnavailableError, SignatureError) as error:
            await self.stop()
            raise fail(ProblemKind.LOG_UNAVAILABLE, str(error), retry_after_ms=1_000) from error
        if not await self._feed.control.wait_for(appended.offset, READ_BACK_S):
            raise fail(ProblemKind.LOG_UNAVAILABLE, "written, not read back in time", retry_after_ms=1_000)
        return appended

    async def _started(self) -> ControlWriter:
        async with self._starting:
            if self._writer is None:
                writer = ControlWriter(
                    self._config.connection,
                    self._registry,
                    signers=self._config.signers,
                    wall_ms=self._wall_ms,
                )
                await writer.start()
                self._writer = writer
            return self._writer
