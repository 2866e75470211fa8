"""Where the cache events of LMCache servers come in: a topic that is read, or a door that is listened at."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from events.hooks.lmcache_door import LmcacheDoor
from events.hooks.lmcache_source import LmcacheIntake, LmcacheSource, ReadToEnd
from events.hooks.lmcache_topic import LmcacheTopic
from events.kafka.connection import LogUnavailableError
from kvledger.failure import CommandError, ExitCode

STOP_S = 5


@dataclass(frozen=True, slots=True)
class LmcacheInput:
    """One endpoint's intake; `read_to_end` where what came in can be read again."""

    intake: LmcacheIntake
    read_to_end: ReadToEnd | None

    def source(self, instance: str) -> LmcacheSource:
        """The stream of one server; several bridges may have one of the same server."""
        source = LmcacheSource(instance, self.read_to_end)
        self.intake.add(source)
        return source


def is_input(endpoint: str) -> bool:
    """`kafka://host:port/topic` or `http://host:port`."""
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except ValueError:
        return False
    if not parts.hostname or port is None or parts.query or parts.username:
        return False
    topic = parts.path.strip("/")
    return bool(topic) if parts.scheme == "kafka" else parts.scheme == "http" and not topic


@asynccontextmanager
async def lmcache_inputs(endpoints: Iterable[str]) -> AsyncIterator[Mapping[str, LmcacheInput]]:
    """Opens each endpoint once, reading and listening until left. Raises CommandError for one that can't be."""
    async with AsyncExitStack() as stack:
        opened: dict[str, LmcacheInput] = {}
        for endpoint in dict.fromkeys(endpoints):
            parts = urlsplit(endpoint)
            open_one = _topic if parts.scheme == "kafka" else _door
            opened[endpoint] = await stack.enter_async_context(open_one(endpoint))
        yield opened


@asynccontextmanager
async def _topic(endpoint: str) -> AsyncIterator[LmcacheInput]:
    parts = urlsplit(endpoint)
    intake = LmcacheIntake()
    topic = LmcacheTopic(parts.netloc, parts.path.strip("/"), intake)
    try:
        await topic.__aenter__()
    except LogUnavailableError as error:
        raise CommandError(
            f"the cache events of {endpoint} can't be read: {error}",
            advice="is the broker there, and has an LMCache server written to the topic?",
            exit_code=ExitCode.UNAVAILABLE,
        ) from error
    task = asyncio.create_task(topic.run(), name=endpoint)
    try:
        yield LmcacheInput(intake, topic.read_to_end)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await topic.__aexit__(None, None, None)


@asynccontextmanager
async def _door(endpoint: str) -> AsyncIterator[LmcacheInput]:
    import uvicorn

    from indexer.service.server import AddressTakenError, bound_socket

    parts = urlsplit(endpoint)
    intake = LmcacheIntake()
    taken = CommandError(f"{endpoint} can't be listened at: it is taken", exit_code=ExitCode.CONFIGURATION)
    try:
        listener = bound_socket(parts.hostname or "127.0.0.1", parts.port or 0)
    except AddressTakenError as error:
        raise taken from error
    config = uvicorn.Config(
        LmcacheDoor(intake),
        ws="none",
        lifespan="off",
        access_log=False,
        server_header=False,
        log_level="warning",
        timeout_graceful_shutdown=STOP_S,
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve([listener]), name=endpoint)
    try:
        # Two can bind an address while neither listens.
        while not server.started:
            if task.done():
                raise taken from task.exception()
            await asyncio.sleep(0.01)
        yield LmcacheInput(intake, None)
    finally:
        server.should_exit = True
        await asyncio.gather(task, return_exceptions=True)
        listener.close()
