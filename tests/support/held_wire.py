"""A wire between an engine's publisher and its subscriber on which bytes can be held up, as they are in the buffers of
a real one, and still arrive when the engine that sent them is gone."""

from __future__ import annotations

import asyncio
from typing import Self


class HeldWire:
    """Connect to `endpoint` instead of the engine's. `hold` what the engine sends from now on, `release` it later."""

    def __init__(self, engine: str) -> None:
        self._engine = engine.rsplit("/", 1)[1].split(":")
        self._server: asyncio.Server | None = None
        self._open = asyncio.Event()
        self._open.set()
        self._connections: set[asyncio.Task[None]] = set()
        self.held = 0
        self.endpoint = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.endpoint = f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for one in self._connections:
            one.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def hold(self) -> None:
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            engine_reader, engine_writer = await asyncio.open_connection(*self._engine)
        except OSError:
            writer.close()
            return
        up = asyncio.create_task(self._pass(reader, engine_writer))
        try:
            await self._pass(engine_reader, writer, held=True)
        finally:
            up.cancel()
            engine_writer.close()
            writer.close()

    async def _pass(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, held: bool = False
    ) -> None:
        try:
            while piece := await source.read(65_536):
                if held and not self._open.is_set():
                    self.held += len(piece)
                    await self._open.wait()
                sink.write(piece)
                await sink.drain()
        except ConnectionError:
            return
