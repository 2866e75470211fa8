"""The fake engine's HTTP side: what vLLM's server offers of it, and `/fake` to break things from outside.

| route | as in vLLM |
|---|---|
| POST /v1/completions | `prompt` (token ids, or text: a token a byte), `max_tokens`, `cache_salt`, `model` |
| POST /reset_prefix_cache | only in dev mode, otherwise 404 |
| GET /health, GET /kv_event_sources | yes |
| POST /fake | no: `{"restart": true}` or any field of `Faults` |
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from tests.support.block_pool import PoolExhaustedError

if TYPE_CHECKING:
    from tests.support.fake_engine import FakeEngine

BASE_MODEL = "fake"
_REQUEST_TIMEOUT_S = 10.0
_MAX_BODY_BYTES = 8 << 20


class HttpFrontEnd:
    """One request a connection, HTTP/1.1, JSON."""

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine
        self._server: asyncio.Server | None = None

    async def start(self, port: int) -> str:
        """Listen on the loopback address; returns the URL."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                status, answer = await self._respond(reader)
                body = json.dumps(answer).encode()
                head = (
                    f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n"
                    f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
                )
                writer.write(head.encode() + body)
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _respond(self, reader: asyncio.StreamReader) -> tuple[str, object]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        request_line, *header_lines = head.strip().split("\r\n")
        method, target, _version = request_line.split(" ", 2)
        headers = {
            name.strip().lower(): value.strip()
            for name, _colon, value in (line.partition(":") for line in header_lines)
        }
        length = int(headers.get("content-length", "0"))
        if length > _MAX_BODY_BYTES:
            return "413 Content Too Large", {"detail": "body too large"}
        raw = await reader.readexactly(length)
        try:
            body = json.loads(raw) if raw else {}
        except ValueError:
            return "400 Bad Request", {"detail": "body is not JSON"}
        return await self._route(f"{method} {target.partition('?')[0]}", body)

    async def _route(self, route: str, body: Any) -> tuple[str, object]:
        engine = self._engine
        match route:
            case "GET /health":
                return "200 OK", {}
            case "GET /kv_event_sources" if engine.wire.version == "0.32":
                source = {
                    "enable_kv_cache_events": True,
                    "publisher": "zmq",
                    "endpoint": engine.endpoint,
                    "replay_endpoint": engine.replay_endpoint,
                    "topic": engine.topic,
                }
                return "200 OK", {str(engine.rank): source}
            case "POST /reset_prefix_cache" if engine.dev_mode:
                return "200 OK", {"success": engine.reset()}
            case "POST /v1/completions":
                return await self._complete(body)
            case "POST /fake":
                return await self._fake(body)
            case _:
                return "404 Not Found", {"detail": "Not Found"}

    async def _complete(self, body: Any) -> tuple[str, object]:
        prompt = body.get("prompt")
        tokens = list(prompt.encode()) if isinstance(prompt, str) else prompt
        if not isinstance(tokens, list) or not tokens or not all(isinstance(one, int) for one in tokens):
            return "400 Bad Request", {"detail": "prompt must be text or token ids"}
        count = int(body.get("max_tokens", 1))
        model = body.get("model", BASE_MODEL)
        # The last token ends a request and is never computed, so it fills no block.
        output = [tokens[index % len(tokens)] for index in range(count)]
        try:
            request = await self._engine.complete(
                tokens,
                generate=output[:-1],
                salt=body.get("cache_salt"),
                lora=None if model == BASE_MODEL else model,
                session=body.get("session_id"),
            )
        except PoolExhaustedError as error:
            return "503 Service Unavailable", {"detail": str(error)}
        return "200 OK", {
            "object": "text_completion",
            "model": model,
            "choices": [{"index": 0, "text": "", "finish_reason": "length", "token_ids": output}],
            "usage": {
                "prompt_tokens": len(tokens),
                "completion_tokens": count,
                "prompt_tokens_details": {"cached_tokens": request.cached_tokens},
            },
        }

    async def _fake(self, body: Any) -> tuple[str, object]:
        known = {one.name for one in fields(self._engine.faults)} | {"restart"}
        if not isinstance(body, dict) or not body.keys() <= known:
            return "400 Bad Request", {"detail": f"one of {sorted(known)}"}
        for name, value in body.items():
            if name != "restart":
                setattr(self._engine.faults, name, value)
        if body.get("restart"):
            await self._engine.restart()
        return "200 OK", {"next_seq": self._engine.next_seq}
