"""A replica of the lookup service whose answers to orders never come: its record is in the log, its caller waits.

The real service in a process of its own. The one thing changed is that reading a written record back takes for ever,
so that whoever runs it can kill it exactly between the write and the answer. Prints its port.
"""

from __future__ import annotations

import asyncio

from indexer.service.server import start
from kvledger.command.serve import make_config
from kvledger.settings import load_settings


async def main() -> None:
    config = make_config(
        load_settings(), host="127.0.0.1", port=0, credentials=None, replica=None, canary=False
    )
    server = await start(config)
    control = server.service.feed.control

    async def for_ever(offset: int, timeout_s: float) -> bool:
        print(f"written {offset}", flush=True)
        await asyncio.Event().wait()
        return False

    control.wait_for = for_ever  # type: ignore[method-assign]
    print(f"port {server.port}", flush=True)
    await server.task


if __name__ == "__main__":
    asyncio.run(main())
