"""Keeps one rank's reporting alive: registers an epoch whenever one is needed, with pauses that grow."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from events.errors import KvledgerError
from events.hooks.stream import Epoch
from events.kafka.connection import LogTruncatedError
from events.kafka.deadline import within

LOG = logging.getLogger(__name__)


class EpochRegistrar(Protocol):
    """`events.hooks.registration.Registrar`."""

    async def register(
        self, worker: str, rank: int, engine_life: str, *, endpoint: str | None, model: str | None
    ) -> Epoch: ...


class ReportingHook(Protocol):
    """The hook, as far as its epochs are concerned."""

    async def register_epoch(self, registrar: EpochRegistrar) -> Epoch | None:
        """A registered epoch of the engine life that is current; None if that changed meanwhile."""
        ...

    def open_epoch(self, epoch: Epoch) -> bool:
        """Writes record 0; False if it could not be."""
        ...


@dataclass(frozen=True, slots=True)
class EpochPace:
    """Two hooks of one identity supersede each other for ever: each waits longer every time, until an epoch
    has stood for `calm_s`."""

    first_pause_s: float = 0.2
    longest_pause_s: float = 30.0
    calm_s: float = 60.0

    def after(self, pause_s: float) -> float:
        """The pause after one of `pause_s`."""
        return min(max(self.first_pause_s, 2 * pause_s), self.longest_pause_s)


class Reporting:
    """Runs beside a hook. `room` waits until the emitter can take record 0."""

    def __init__(
        self,
        hook: ReportingHook,
        registrar: EpochRegistrar,
        room: Callable[[float], Awaitable[bool]],
        *,
        pace: EpochPace,
        monotonic_s: Callable[[], float],
    ) -> None:
        self.epochs = 0
        self.why_not_open = ""
        self._hook = hook
        self._registrar = registrar
        self._room = room
        self._pace = pace
        self._monotonic_s = monotonic_s
        self._needed = asyncio.Event()
        self._needed.set()
        self._wanted = True
        self._open = asyncio.Event()
        self._pause_s = 0.0
        self._contested_s = 0.0
        self._opened_at_s = 0.0

    def renew(self, *, contested: bool = False) -> None:
        """Another epoch is needed; `contested`: because somebody ended this one from outside."""
        self._open.clear()
        self._needed.set()
        self._wanted = True
        if contested:
            calm = self._monotonic_s() - self._opened_at_s > self._pace.calm_s
            self._contested_s = 0.0 if calm else self._pace.after(self._contested_s)
            self._pause_s = max(self._pause_s, self._contested_s)

    def end(self, why: str = "") -> None:
        """No epoch is open any more, and none is needed, until `renew`; `why`, for people."""
        self.why_not_open = why
        self._open.clear()
        self._needed.clear()
        self._wanted = False

    async def opened(self, timeout_s: float) -> bool:
        """Waits until an epoch is open; False if that took longer."""
        try:
            await within(self._open.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._needed.wait()
            await asyncio.sleep(self._pause_s)
            self._needed.clear()
            if await self._try():
                self._pause_s = 0.0
            elif self._wanted:
                self._needed.set()
                self._pause_s = self._pace.after(self._pause_s)

    async def _try(self) -> bool:
        if not await self._room(5.0) or self._void():
            return False
        try:
            epoch = await self._hook.register_epoch(self._registrar)
        except LogTruncatedError:
            raise
        except KvledgerError as error:
            LOG.warning("no epoch yet: %s", error)
            self.why_not_open = str(error)
            return False
        if epoch is None or self._void() or not self._hook.open_epoch(epoch):
            return False
        self.epochs += 1
        self.why_not_open = ""
        self._opened_at_s = self._monotonic_s()
        self._open.set()
        return True

    def _void(self) -> bool:
        """Whether this try is nobody's any more: no epoch is wanted, or another one than when it began."""
        return self._needed.is_set() or not self._wanted
