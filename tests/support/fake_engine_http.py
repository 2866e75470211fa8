"""The fake engine's HTTP side: what vLLM's server offers of it, and `/fake` to break things from outside.

| route | as in vLLM |
|---|---|
| POST /v1/completions | `prompt` (token ids, or text: a token a byte), `max_tokens`, `cache_salt`, `model` |
| POST /tokenize | `prompt`: a token a byte |
| POST /reset_prefix_cache, GET /server_info, GET /weight_info | only in dev mode, otherwise 404 |
| header X-data-parallel-rank | names one of the engine's `ranks` |
| GET /health, /v1/models, /version, /metrics | yes |
| GET /kv_event_sources | since 0.32 |
| POST /fake | no: `{"restart": true}` or any field of `Faults` |
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from tests.support.block_pool import PoolExhaustedError
from tests.support.fake_engine_report import (
    NOT_ALLOWED,
    NOT_FOUND,
    compact,
    metrics,
    models,
    server_info,
    source,
)

if TYPE_CHECKING:
    from tests.support.fake_engine import FakeEngine

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
                body = answer.encode() if isinstance(answer, str) else compact(answer)
                kind = "text/plain; version=0.0.4" if isinstance(answer, str) else "application/json"
                head = (
                    f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\n"
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
        path = target.partition("?")[0]
        key = self._engine.facts.api_key
        if key is not None and path.startswith("/v1") and headers.get("authorization") != f"Bearer {key}":
            return "401 Unauthorized", {"error": "Unauthorized"}
        rank = headers.get("x-data-parallel-rank", "0")
        return await self._route(f"{method} {path}", body, int(rank) if rank.isdigit() else 0)

    async def _route(self, route: str, body: Any, rank: int) -> tuple[str, object]:
        engine = self._engine
        match route:
            case "GET /health":
                return "200 OK", {}
            case "GET /v1/models":
                return "200 OK", models(engine.facts)
            case "GET /version":
                return "200 OK", {"version": f"{engine.wire.version}.0"}
            case "GET /metrics":
                ranks = [(one.rank, one.block_size, one.pool.capacity, one.served) for one in engine.ranks]
                return "200 OK", metrics(engine.facts, ranks)
            case "GET /kv_event_sources" if engine.wire.version == "0.32":
                told = engine.ranks if engine.facts.publishes else ()
                return "200 OK", {str(one.rank): _source(one) for one in told}
            case "GET /server_info" if engine.dev_mode and engine.wire.version == "0.32":
                return "200 OK", server_info(engine.facts, engine.block_size, engine.pool.capacity)
            case "GET /weight_info" if engine.dev_mode and engine.wire.version == "0.32":
                return "200 OK", {"weight_version": engine.facts.weight_version}
            case "POST /tokenize":
                ids = list(str(body.get("prompt", "")).encode())
                return "200 OK", {
                    "count": len(ids),
                    "max_model_len": 4_096,
                    "tokens": ids,
                    "token_strs": None,
                }
            case "GET /reset_prefix_cache" if engine.dev_mode:
                return "405 Method Not Allowed", NOT_ALLOWED
            case "POST /reset_prefix_cache" if engine.dev_mode:
                return "200 OK", {"success": engine.reset()}
            case "POST /v1/completions":
                return await self._complete(body, rank)
            case "POST /fake":
                return await self._fake(body)
            case _:
                return "404 Not Found", NOT_FOUND

    async def _complete(self, body: Any, rank: int) -> tuple[str, object]:
        prompt = body.get("prompt")
        tokens = list(prompt.encode()) if isinstance(prompt, str) else prompt
        if not isinstance(tokens, list) or not tokens or not all(isinstance(one, int) for one in tokens):
            return "400 Bad Request", {"detail": "prompt must be text or token ids"}
        count = int(body.get("max_tokens", 1))
        facts = self._engine.facts
        model = body.get("model", facts.model)
        engine = next((one for one in self._engine.ranks if one.rank == rank), self._engine)
        # The last token ends a request and is never computed, so it fills no block.
        output = [tokens[index % len(tokens)] for index in range(count)]
        try:
            request = await engine.complete(
                tokens,
                generate=output[:-1],
                salt=body.get("cache_salt"),
                lora=None if model in (facts.model, *facts.aliases) else model,
                session=body.get("session_id"),
            )
        except PoolExhaustedError as error:
            return "503 Service Unavailable", {"detail": str(error)}
        details = {"cached_tokens": request.cached_tokens, "created_cache_tokens": None}
        return "200 OK", {
            "object": "text_completion",
            "model": model,
            "choices": [{"index": 0, "text": "", "finish_reason": "length", "token_ids": output}],
            "usage": {
                "prompt_tokens": len(tokens),
                "completion_tokens": count,
                "total_tokens": len(tokens) + count,
                "prompt_tokens_details": details if facts.details else None,
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


def _source(engine: FakeEngine) -> dict[str, Any]:
    """Addresses as the engine was told them: its own sockets bind every interface."""
    if engine.told_endpoint is not None:
        return source(engine.told_endpoint, engine.replay_endpoint, engine.topic)
    port, replay = (at.rpartition(":")[2] for at in (engine.endpoint, engine.replay_endpoint))
    return source(f"tcp://*:{port}", f"tcp://*:{replay}", engine.topic)
