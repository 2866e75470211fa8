"""Reading a request's body within its limit, and sending documents back: plain ASGI, nothing in between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

from pydantic import ValidationError

from events.errors import KvledgerError
from indexer.service.connection import ConnectionCounts, ConnectionLimits
from router_client.problem import Problem, ProblemKind, problem
from router_client.wire import BOUND_HEADER, COVERAGE_HEADER, JSON_TYPE, PROBLEM_TYPE

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
HELD = "kvledger.body_bytes"
"""In a request's scope: bytes of its body that count against the budget."""


class ProblemError(KvledgerError):
    """A request ends in this problem document."""

    def __init__(self, document: Problem) -> None:
        super().__init__(document.title)
        self.document = document


class DisconnectedError(KvledgerError):
    """The caller went away before its body was whole: there is nobody to answer."""


def fail(kind: ProblemKind, detail: str = "", **more: Any) -> ProblemError:
    """The error to raise for a problem of this kind."""
    return ProblemError(problem(kind, detail, **more))


def header(scope: Scope, name: bytes) -> str | None:
    """A request header by its lower-case name; the first one counts."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value).decode("latin-1")
    return None


def media_type(scope: Scope) -> str:
    """The content type without its parameters, lower case."""
    return (header(scope, b"content-type") or "").partition(";")[0].strip().lower()


class BodyReader:
    """Reads bodies within their limits; all that are in flight share one budget."""

    def __init__(self, limits: ConnectionLimits, counts: ConnectionCounts) -> None:
        self._limits = limits
        self._counts = counts

    async def read(self, scope: Scope, receive: Receive, limit: int) -> bytes:
        """The whole body. Raises ProblemError above `limit` bytes, before more is read, when it takes too
        long, and when there is no room for it; DisconnectedError."""
        declared = header(scope, b"content-length")
        if declared is not None and declared.isdigit() and int(declared) > limit:
            raise fail(ProblemKind.TOO_LARGE, f"{declared} bytes", limit=limit)
        try:
            async with asyncio.timeout(self._limits.body_s):
                return await self._whole(scope, receive, limit)
        except TimeoutError as error:
            self._counts.late_bodies += 1
            raise fail(ProblemKind.TOO_SLOW, f"{self._limits.body_s:g} s for a body") from error

    def release(self, scope: Scope) -> None:
        """The request is over. Idempotent."""
        self._counts.bodies_bytes -= scope.pop(HELD, 0)

    async def _whole(self, scope: Scope, receive: Receive, limit: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise DisconnectedError("the caller went away")
            part = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise fail(ProblemKind.TOO_LARGE, f"more than {limit} bytes", limit=limit)
            self._counts.bodies_bytes += len(part)
            scope[HELD] = scope.get(HELD, 0) + len(part)
            if self._counts.bodies_bytes > self._limits.bodies_bytes:
                raise fail(ProblemKind.TOO_BUSY, "no room for the body", retry_after_ms=1_000)
            parts.append(part)
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)


def unreadable(error: ValidationError) -> Problem:
    """Where a request is wrong and why, without repeating its content."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    # A scope's type is a step of the validator's way to the field, and none of the caller's document.
    steps = list(first["loc"])
    if steps[:1] == ["scope"] and len(steps) > 2:
        del steps[1]
    where = ".".join(str(step) for step in steps) or None
    message = str(first["msg"]).removeprefix("Value error, ")
    kind = ProblemKind.BOUND_MISSING if message.startswith("a bound is required") else ProblemKind.MALFORMED
    if first["type"] == "json_invalid":
        message = "the body is not JSON"
    return problem(kind, message, field=where)


async def send_document(
    send: Send,
    status: int,
    body: bytes,
    *,
    media: str = JSON_TYPE,
    headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
) -> None:
    """One response with its length."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    raw = [(b"content-type", media.encode()), (b"content-length", str(len(body)).encode())]
    raw.extend((name.lower().encode(), value.encode("latin-1", "replace")) for name, value in pairs)
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


async def send_problem(send: Send, document: Problem) -> None:
    """A problem with the headers that belong to its status."""
    headers = {"Cache-Control": "no-store"}
    if document.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="kvledger"'
    if document.retry_after_ms is not None:
        headers["Retry-After"] = str(max(1, -(-document.retry_after_ms // 1_000)))
    if document.coverage is not None:
        headers[COVERAGE_HEADER] = str(document.coverage)
    if document.bound_ms is not None:
        headers[BOUND_HEADER] = f"{document.bound_ms:g}"
    body = document.model_dump_json(exclude_none=True).encode()
    await send_document(send, document.status, body, media=PROBLEM_TYPE, headers=headers)
