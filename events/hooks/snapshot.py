"""Restates a stream's whole inventory when somebody could not follow it; live events go on in between."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from events.hooks.engine_port import RestatementOverrunError, Translation
from events.kafka.deadline import within

LOG = logging.getLogger(__name__)


class SnapshotHook(Protocol):
    """The hook, as far as a repair needs it."""

    @property
    def epoch_no(self) -> int | None:
        """The open epoch; a snapshot that was begun in another one is void."""
        ...

    def write_translation(self, translation: Translation) -> bool:
        """Numbers it now; False if the record was dropped."""
        ...

    def restatement(self) -> Iterator[Translation]: ...

    def repaired(self) -> None:
        """The snapshot's end was numbered."""
        ...


@dataclass(frozen=True, slots=True)
class RepairPace:
    """`interval_s`: a snapshot at least this often; `spacing_s`: never more often than this."""

    interval_s: float = 3.5 * 86_400
    spacing_s: float = 1.0
    retry_s: float = 0.2


class Repair:
    """Runs beside a hook and writes a snapshot whenever one is asked for and there is room for it."""

    def __init__(
        self,
        hook: SnapshotHook,
        room: Callable[[float], Awaitable[bool]],
        *,
        pace: RepairPace,
        monotonic_s: Callable[[], float],
    ) -> None:
        self.written = 0
        self.overrun = 0
        self._hook = hook
        self._room = room
        self._pace = pace
        self._monotonic_s = monotonic_s
        self._asked = asyncio.Event()
        self._writing = False
        self._not_before_s = 0.0
        self._hold_until_s = 0.0

    @property
    def pending(self) -> bool:
        """Whether the stream has, or may have, a hole that isn't repaired yet."""
        return self._writing or self._asked.is_set()

    def ask(self, *, hold_s: float = 0.0) -> None:
        """A snapshot is due, not before `hold_s` from now; asking twice is asking once."""
        self._hold_until_s = max(self._hold_until_s, self._monotonic_s() + hold_s)
        self._asked.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if not await self._due():
                self._asked.set()
            await self._pause()
            epoch_no = self._hook.epoch_no
            if epoch_no is None or not await self._room(5.0):
                await asyncio.sleep(self._pace.retry_s)
                continue
            self._asked.clear()
            self._writing = True
            try:
                whole = await self._write(epoch_no)
            except RestatementOverrunError as error:
                LOG.warning("%s; beginning again", error)
                self.overrun += 1
                whole = False
            finally:
                self._writing = False
            if whole:
                self.written += 1
                self._not_before_s = self._monotonic_s() + self._pace.spacing_s
                self._hook.repaired()
            else:
                self._asked.set()
                await asyncio.sleep(self._pace.retry_s)

    async def _due(self) -> bool:
        """Waits until asked; False when the interval has passed without."""
        try:
            await within(self._asked.wait(), self._pace.interval_s)
        except TimeoutError:
            return False
        return True

    async def _pause(self) -> None:
        while True:
            wait_s = max(self._not_before_s, self._hold_until_s) - self._monotonic_s()
            if wait_s <= 0:
                return
            await asyncio.sleep(wait_s)

    async def _write(self, epoch_no: int) -> bool:
        for translation in self._hook.restatement():
            if self._hook.epoch_no != epoch_no or not self._hook.write_translation(translation):
                return False
            # Between two ranges the engine's own events go on; a large inventory must not hold them up.
            await asyncio.sleep(0)
            if not await self._room(5.0):
                return False
        return True
