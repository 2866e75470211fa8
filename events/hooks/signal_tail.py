"""Follows `kv.signals` from its end: the newest beacon of anybody, who asks for a resync, and whose turn it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from events.codec import decode_signal
from events.errors import DecodeError
from events.kafka.connection import KafkaConnection, LogTail, LogUnavailableError, RawRecord
from events.model.signal import Beacon, Echo, ResetTurn, ResyncRequested
from events.topic import SIGNALS


class SignalTail:
    """One for a process. `newest` is the newest beacon seen, as a hook would echo it; None until one was
    read, and again when the log turns out to have been cut behind it."""

    def __init__(
        self,
        connection: KafkaConnection,
        resync: Callable[[ResyncRequested], None],
        turn: Callable[[int, ResetTurn], None],
    ) -> None:
        self.newest: Echo | None = None
        self.unreadable = 0
        self._connection = connection
        self._resync = resync
        self._turn = turn
        self._tail: LogTail | None = None

    async def run(self) -> None:
        """Follows until cancelled; a broker that is away is tried again, `newest` then stands still."""
        while True:
            try:
                if self._tail is None:
                    await self._start()
                await self._fetch()
            except LogUnavailableError:
                await self.stop()
                await asyncio.sleep(0.5)

    async def stop(self) -> None:
        """Idempotent."""
        tail, self._tail = self._tail, None
        if tail is not None:
            await tail.stop()

    async def _start(self) -> None:
        topic = self._connection.topic(SIGNALS)
        tail = LogTail(self._connection, {(topic, 0): 0})
        await tail.start()
        self._tail = tail
        end = (await tail.end_offsets())[topic, 0]
        if self.newest is not None and self.newest.offset >= end:
            self.newest = None
        # What was missed while away would only be older beacons and requests that are asked again.
        tail.seek(topic, 0, end)

    async def _fetch(self) -> None:
        assert self._tail is not None
        for record in await self._tail.fetch(timeout_ms=200, max_records=2_000):
            self.read(record)

    def read(self, record: RawRecord) -> None:
        """Takes one record in; what can't be read is somebody else's garbage."""
        try:
            signal = decode_signal(record.value)
        except DecodeError:
            self.unreadable += 1
            return
        match signal:
            case Beacon():
                self.newest = Echo(offset=record.offset, nonce=signal.nonce)
            case ResyncRequested():
                self._resync(signal)
            case ResetTurn():
                self._turn(record.offset, signal)
