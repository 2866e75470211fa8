"""A small keep-alive HTTP client, so that the time it measures is the service's and not its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pydantic_core import from_json

from events.errors import KvledgerError

MAX_BODY_BYTES = 64 << 20


class RestError(KvledgerError):
    """The service gave no whole answer in time; nothing is known of what it did. The next request opens a
    new connection."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON; raises RestError if it is none."""
        try:
            return from_json(self.body)
        except ValueError as error:
            raise RestError(f"status {self.status} came with a body that is not JSON") from error


class _Line:
    """One connection; dropped after any failure."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def exchange(self, head: bytes, body: bytes) -> Reply:
        if self._writer is None or self._writer.is_closing():
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        assert self._reader is not None
        self._writer.write(head + body)
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(lines[0].partition(" ")[2][:3])
        headers: dict[str, str] = {}
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if colon:
                headers[name.strip().lower()] = value.strip()
        if "content-length" not in headers and status != 204:
            raise ValueError("an answer without content-length")
        length = int(headers.get("content-length", "0"))
        if not 0 <= length <= MAX_BODY_BYTES:
            raise ValueError(f"a body of {length} bytes")
        content = await self._reader.readexactly(length) if length else b""
        if headers.get("connection", "").lower() == "close":
            await self.close()
        return Reply(status, headers, content)

    async def close(self) -> None:
        writer, self._writer, self._reader = self._writer, None, None
        if writer is not None:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


class RestClient:
    """Requests to one service over up to `connections` kept connections; more wait for their turn."""

    def __init__(
        self,
        url: str,
        *,
        connections: int = 4,
        timeout_s: float = 10.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        at = urlsplit(url)
        if at.scheme != "http" or at.hostname is None or at.port is None:
            raise ValueError(f"{url} is not http://host:port")
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        fixed = {"Host": f"{at.hostname}:{at.port}", "Accept": "application/json", **(headers or {})}
        self._fixed = "".join(f"{name}: {value}\r\n" for name, value in fixed.items())
        self._lines = [_Line(at.hostname, at.port) for _ in range(connections)]
        self._idle: asyncio.LifoQueue[_Line] = asyncio.LifoQueue()
        for line in self._lines:
            self._idle.put_nowait(line)

    async def request(
        self,
        method: str,
        target: str,
        *,
        body: bytes = b"",
        content_type: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """One exchange, never repeated here. Raises RestError."""
        more = {"Content-Type": content_type} if content_type else {}
        own = "".join(f"{name}: {value}\r\n" for name, value in {**more, **(headers or {})}.items())
        head = f"{method} {target} HTTP/1.1\r\n{self._fixed}{own}Content-Length: {len(body)}\r\n\r\n"
        async with self._line() as line:
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await line.exchange(head.encode("latin-1"), body)
            except (OSError, ValueError, EOFError, TimeoutError, asyncio.LimitOverrunError) as error:
                await line.close()
                raise RestError(f"{method} {self.url}: no answer ({type(error).__name__})") from error
            except BaseException:
                await line.close()
                raise

    async def post(self, target: str, document: object, **headers: str) -> Reply:
        """POST of a JSON document; underscores in header names stand for hyphens."""
        return await self.request(
            "POST",
            target,
            body=json.dumps(document).encode(),
            content_type="application/json",
            headers={name.replace("_", "-"): value for name, value in headers.items()},
        )

    async def get(self, target: str) -> Reply:
        """GET."""
        return await self.request("GET", target)

    async def close(self) -> None:
        """Ends all connections. Idempotent."""
        for line in self._lines:
            await line.close()

    @asynccontextmanager
    async def _line(self) -> AsyncIterator[_Line]:
        line = await self._idle.get()
        try:
            yield line
        finally:
            self._idle.put_nowait(line)
