"""A Kafka client that is given up while it starts leaves no connection behind.

aiokafka closes the connection over which it asks for its first metadata when that fails, and not when whoever starts
it is cancelled or runs out of time meanwhile: nobody else knows that connection then (aio-libs/aiokafka #715). The
garbage collector would end it some day.
"""

from __future__ import annotations

import asyncio
import inspect
from functools import partial
from typing import Any


def leaves_nothing(client: Any) -> None:
    """Sees to it for one `AIOKafkaClient`; call it before the client, or the producer or consumer whose it is, is
    started. Stopping that is still its owner's affair."""
    client.bootstrap = partial(_bootstrap, client)


async def _bootstrap(client: Any) -> None:
    work = type(client).bootstrap(client)
    task = asyncio.get_running_loop().create_task(work)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        left = inspect.getcoroutinelocals(work).get("bootstrap_conn")
        task.cancel()
        if left is not None:
            left.close()
        await asyncio.gather(task, return_exceptions=True)
        raise
    task.result()
