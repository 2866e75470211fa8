"""A bridge beside an engine, into a real log, as `kvledger bridge` composes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from events.hooks.bridge import Bridge
from events.hooks.engine_config import EngineConfig
from events.hooks.engine_stream import EngineStream
from events.hooks.hook import Hook, HookIdentity
from events.hooks.host import HookHost, HostPace
from events.hooks.zmq_source import ZmqSource
from events.ids import Role
from tests.support.hook_log import SIGNERS, HookLog, until


@asynccontextmanager
async def hosted(
    log: HookLog,
    source: ZmqSource,
    bridge: Bridge,
    config: Callable[[Bridge], EngineConfig],
    *,
    worker: str = "w0",
    pace: HostPace,
    attach_s: float = 5.0,
) -> AsyncIterator[Hook]:
    """Attaches it, opens its stream and runs it; leaving ends the hook, and no task of its may have failed.
    `config` is asked once the bridge knows what it is beside."""
    async with (
        HookHost(log.connection, log.keyring, SIGNERS[Role.ENROLMENT], pace=pace) as host,
        source,
    ):
        attachment = await bridge.attach(attach_s)
        stream = EngineStream(worker, 0, log.keyring, config(bridge))
        stream.open(attachment.life, from_birth=attachment.from_birth)
        hook = host.make(HookIdentity(worker), attachment.life, bridge, stream)
        bridge.bind(hook, attachment)
        host.begin(hook)
        running = asyncio.create_task(bridge.run())
        assert await hook.opened(60)
        try:
            yield hook
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await host.remove(hook)
            assert host.failed is None


async def confirmed(log: HookLog, worker: str = "w0") -> None:
    """Waits until a beacon written now is echoed, so that readers have all that was published before it."""
    beacon = await log.beacon()
    await until(lambda: log.echoed(worker, beacon))
