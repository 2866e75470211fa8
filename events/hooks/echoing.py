"""Which beacon a hook has confirmed, and the one confirmation that is under way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from events.ids import Basis
from events.model.signal import Echo

LOG = logging.getLogger(__name__)


class Echoing:
    """One hook's. `confirm` asks the engine, from now on: the basis of its word, None without one."""

    def __init__(self, confirm: Callable[[], Awaitable[Basis | None]]) -> None:
        self.newest: Echo | None = None
        self.basis = Basis.UNCONFIRMED
        self._confirm = confirm
        self._task: asyncio.Task[None] | None = None

    def begin(self, beacon: Echo, *, ready: bool) -> asyncio.Task[None] | None:
        """See `events.hooks.pulse.PulsingHook.echo`; nothing is begun unless `ready`."""
        if self._task is not None and not self._task.done():
            return self._task
        if not ready or beacon == self.newest:
            return None
        self._task = asyncio.get_running_loop().create_task(self._confirm_for(beacon))
        self._task.add_done_callback(_tell)
        return self._task

    def reset(self) -> None:
        """Another epoch has confirmed nothing yet."""
        self.newest, self.basis = None, Basis.UNCONFIRMED

    async def stop(self) -> None:
        """Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _confirm_for(self, beacon: Echo) -> None:
        basis = await self._confirm()
        if basis is not None:
            self.newest, self.basis = beacon, basis


def _tell(task: asyncio.Task[None]) -> None:
    """Nobody waits for a confirmation's result; without an echo readers leave the engine out."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        LOG.error("a confirmation failed: %s", type(error).__name__)
