"""Replicas of the lookup service on a log of the test's own."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import httpx

from indexer.service.server import start
from kvledger.command.serve import make_config
from kvledger.settings import Settings
from tests.support.live_log import until

LONG_S = 120.0


@contextlib.asynccontextmanager
async def replica(settings: Settings) -> AsyncIterator[str]:
    """The address of one that is ready, in this process."""
    config = make_config(settings, host="127.0.0.1", port=0, credentials=None, replica=None, canary=False)
    server = await start(config)
    try:
        await ready(f"http://127.0.0.1:{server.port}")
        yield f"http://127.0.0.1:{server.port}"
    finally:
        await server.stop()


async def ready(url: str) -> None:
    """Waits until the replica there answers lookups."""

    async def is_ready() -> bool:
        async with httpx.AsyncClient(timeout=20) as http:
            return (await http.get(f"{url}/readyz")).status_code == 200

    await until(is_ready, timeout_s=LONG_S)
