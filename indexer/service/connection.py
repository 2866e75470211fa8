"""What a connection may cost: its head's size and time, the number of connections, the bytes of bodies in flight.

Whoever goes over a bound is told why where that is possible and cut off; everybody else is served.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from router_client.problem import ProblemKind, problem
from router_client.wire import PROBLEM_TYPE

ABORT = "kvledger.abort"
"""ASGI extension: cuts the connection off, whatever is still to be written."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """`head_bytes` and `head_s`: request line and headers, from the first byte (or the connection) on;
    `connections` at a time; `body_s` for one whole body; `bodies_bytes` of all bodies in flight."""

    head_bytes: int = 256 << 10
    head_s: float = 10.0
    connections: int = 4_096
    body_s: float = 30.0
    bodies_bytes: int = 256 << 20


@dataclass(slots=True)
class ConnectionCounts:
    """What is open and what was cut off, for metrics."""

    open: int = 0
    late_heads: int = 0
    large_heads: int = 0
    refused: int = 0
    late_bodies: int = 0
    bodies_bytes: int = 0


def guarded(limits: ConnectionLimits, counts: ConnectionCounts) -> type[asyncio.Protocol]:
    """uvicorn's protocol with these bounds."""

    class GuardedProtocol(HttpToolsProtocol):
        _head_timer: asyncio.TimerHandle | None = None
        _in_head = True
        _head_bytes = 0

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            counts.open += 1
            if counts.open > limits.connections:
                counts.refused += 1
                self._refuse(ProblemKind.TOO_BUSY, "too many connections")
            else:
                self._await_head()

        def connection_lost(self, exc: Exception | None) -> None:
            counts.open -= 1
            self._head_done()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            if self._in_head:
                self._head_bytes += len(data)
            super().data_received(data)
            if self._in_head and self._head_bytes > limits.head_bytes:
                counts.large_heads += 1
                self._refuse(ProblemKind.HEAD_TOO_LARGE, f"more than {limits.head_bytes} bytes")

        def on_message_begin(self) -> None:
            super().on_message_begin()
            extensions: dict[str, Any] = {ABORT: self.transport.abort}
            self.scope["extensions"] = extensions
            if not self._in_head:
                self._await_head()

        def on_headers_complete(self) -> None:
            self._head_done()
            super().on_headers_complete()

        def _await_head(self) -> None:
            self._in_head, self._head_bytes = True, 0
            self._head_timer = self.loop.call_later(limits.head_s, self._late)

        def _head_done(self) -> None:
            self._in_head = False
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _late(self) -> None:
            counts.late_heads += 1
            self.transport.abort()

        def _refuse(self, kind: ProblemKind, detail: str) -> None:
            document = problem(kind, detail)
            body = document.model_dump_json(exclude_none=True).encode()
            head = (
                f"HTTP/1.1 {document.status} {document.title}\r\nContent-Type: {PROBLEM_TYPE}\r\n"
                f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
            )
            self._head_done()
            self.transport.write(head.encode() + body)
            self.transport.close()

    return GuardedProtocol
