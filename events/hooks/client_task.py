"""Keeps a Kafka client's own CancelledError from being taken for ours.

With its broker away the client can end a call in a cancellation that nobody asked for; it would end a task
without a word. So such a call runs in a task of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Never, TypeVar

from events.kafka.connection import LogUnavailableError

LOG = logging.getLogger(__name__)
T = TypeVar("T")


class ClientEndedError(LogUnavailableError):
    """A Kafka client gave a call up by itself; whether it was carried out isn't known. Try again."""


async def guarded(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; raises ClientEndedError if its client cancelled it. Our own cancellation goes
    through, once `work` has ended."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        await asyncio.wait({task})
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    if task.cancelled():
        raise ClientEndedError(f"{work!r} was ended by its client")
    return task.result()


async def again(run: Callable[[], Coroutine[Any, Any, None]]) -> Never:
    """Runs what has no end; what its client ended is begun anew. Errors are passed on."""
    while True:
        try:
            await guarded(run())
        except ClientEndedError as error:
            LOG.warning("%s and begins again", error)
