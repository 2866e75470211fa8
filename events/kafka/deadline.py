"""Waiting with an end. `asyncio.wait_for` of Python 3.11 can swallow a cancellation that comes while its work is
just done, and then a task that should end never does; `asyncio.timeout` can't."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def within(work: Awaitable[T], timeout_s: float | None) -> T:
    """The result of `work`; raises TimeoutError after `timeout_s` seconds, `work` cancelled. None: no end."""
    async with asyncio.timeout(timeout_s):
        return await work
