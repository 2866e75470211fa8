"""The part of LMCache's coordinator that its servers send cache events to, as an ASGI application."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from events.errors import DecodeError
from events.hooks.lmcache_source import LmcacheIntake

LOG = logging.getLogger(__name__)
MAX_BODY_BYTES = 16 << 20
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class LmcacheDoor:
    """`POST /events` as the coordinator answers it, and the registration without which a server sends nothing.
    It keeps no directory: what a server asks of it beside that gets 404. Bodies hold token ids: none is logged.
    """

    def __init__(self, intake: LmcacheIntake) -> None:
        self._intake = intake

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        method, path = str(scope["method"]), str(scope["path"])
        body = await _body(receive)
        status, answer = (413, {"detail": "too large"}) if body is None else self._answer(method, path, body)
        content = b"" if status == 204 else json.dumps(answer).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    def _answer(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        match method, path.strip("/").split("/"):
            case "POST", ["events"]:
                return self._events(body)
            case "POST", ["instances"]:
                return 200, {"instance_id": _asked_name(body)}
            case "PUT", ["instances", name, "heartbeat"]:
                return 200, {"instance_id": name}
            case "DELETE", ["instances", _]:
                return 204, {}
            case "GET", ["healthz"]:
                return 200, {"status": "healthy"}
            case _:
                return 404, {"detail": "this takes cache events only"}

    def _events(self, body: bytes) -> tuple[int, dict[str, Any]]:
        try:
            offered = self._intake.offer(body)
        except DecodeError as error:
            return 422, {"detail": error.reason}
        counts = {"applied": offered.applied, "duplicates": offered.duplicates, "stale": offered.stale}
        return 200, counts


async def _body(receive: Receive) -> bytes | None:
    """None: it is larger than is taken."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        part = bytes(message.get("body", b""))
        size += len(part)
        if size > MAX_BODY_BYTES:
            return None
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


def _asked_name(body: bytes) -> str:
    """The name that a server wants, or one for it."""
    try:
        asked = json.loads(body).get("instance_id")
    except (ValueError, AttributeError):
        asked = None
    return asked if isinstance(asked, str) and asked else f"lmcache-{secrets.token_hex(4)}"
