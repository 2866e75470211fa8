"""Running a lookup service on a port, until it is told to stop."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass

import uvicorn

from events.errors import KvledgerError
from indexer.service.app import LookupService
from indexer.service.config import ServiceConfig
from indexer.service.connection import guarded

KEEP_ALIVE_S = 60
STOP_WITHIN_S = 5


class AddressTakenError(KvledgerError):
    """The address can't be bound: another process has the port, or it isn't this machine's. Stop that process
    or choose another port."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"{host}:{port} can't be bound")
        self.host, self.port = host, port


class FeedFailedError(KvledgerError):
    """The view can no longer be fed; the process ends so that it is started anew. The log names the fault."""


@dataclass(slots=True)
class RunningServer:
    """A service that listens; `port` is the real one where 0 was asked for."""

    service: LookupService
    port: int
    server: uvicorn.Server
    task: asyncio.Task[None]

    async def stop(self) -> None:
        """Ends it in order. Idempotent."""
        self.server.should_exit = True
        await self.task


def bound_socket(host: str, port: int) -> socket.socket:
    """A listening address of our own. Raises AddressTakenError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Naming the protocol makes the event loop switch Nagle's rule off on accepted connections. Head and body
    # are two writes: otherwise each body waits 40 ms for the client's delayed acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise AddressTakenError(host, port) from error
    return listener


class _Server(uvicorn.Server):
    """Tells the service that it ends before connections are waited for: a watched one never ends by itself."""

    def __init__(self, config: uvicorn.Config, service: LookupService) -> None:
        super().__init__(config)
        self._service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.close()
        await super().shutdown(sockets)


def make_server(service: LookupService) -> uvicorn.Server:
    """uvicorn with its quickest parts and our bounds, without access log (it would name what was asked) or
    banner."""
    return _Server(
        uvicorn.Config(
            service,
            loop="auto",
            http=guarded(service.config.connections, service.connections),
            ws="none",
            lifespan="on",
            access_log=False,
            server_header=False,
            log_level="warning",
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=STOP_WITHIN_S,
            backlog=2_048,
        ),
        service,
    )


async def start(config: ServiceConfig) -> RunningServer:
    """Starts a service in this loop, without signal handlers, and returns when it listens."""
    listener = bound_socket(config.host, config.port)
    service = LookupService(config)
    server = make_server(service)
    task = asyncio.create_task(server._serve([listener]))
    while not server.started:
        if task.done():
            await task
            raise AddressTakenError(config.host, config.port)
        await asyncio.sleep(0.01)
    return RunningServer(service, int(listener.getsockname()[1]), server, task)


async def run(config: ServiceConfig) -> None:
    """Serves until SIGINT or SIGTERM. Raises AddressTakenError, FeedFailedError."""
    listener = bound_socket(config.host, config.port)
    service = LookupService(config)
    server = make_server(service)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    failing = asyncio.create_task(service.failed.wait())
    await asyncio.wait((serving, failing), return_when=asyncio.FIRST_COMPLETED)
    failed = failing.done()
    failing.cancel()
    server.should_exit = True
    await serving
    if failed:
        raise FeedFailedError("the view can no longer be fed")
