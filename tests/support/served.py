"""A lookup service over a hand-made fleet behind a real socket; its feeds are never started."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from indexer.service.app import LookupService
from indexer.service.server import bound_socket, make_server


@contextlib.asynccontextmanager
async def served(made: LookupService) -> AsyncIterator[int]:
    """The port that it listens at; stopped in order at the end."""
    listener = bound_socket("127.0.0.1", 0)
    port = int(listener.getsockname()[1])
    server = make_server(made)
    server.config.lifespan = "off"
    task = asyncio.create_task(server._serve([listener]))
    try:
        async with asyncio.timeout(10):
            while not server.started:
                await asyncio.sleep(0.01)
        yield port
    finally:
        server.should_exit = True
        await task
