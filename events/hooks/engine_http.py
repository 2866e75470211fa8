"""The two things that a bridge without an agent asks of an engine's HTTP server: a reset, and one step."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import httpx

from events.hooks.engine_port import RefusalReason

MAX_ANSWER_BYTES = 16 << 20
"""A page of metrics of an engine of 64 ranks with 100 adapters is a tenth of it."""


class AnswerTooLargeError(httpx.HTTPError):
    """The server sends more than any engine has to say."""


@dataclass(frozen=True, slots=True)
class ResetAnswer:
    """What the engine said to a reset; `refused` None: it was done."""

    refused: RefusalReason | None = None
    cure: str = ""


class EngineHttp:
    """An OpenAI-compatible vLLM server. `rank` addresses one data-parallel rank, `model` is used if the
    server doesn't list its models; `api_key` goes with every request. Nothing of an answer's text is kept."""

    def __init__(
        self, url: str, *, rank: int = 0, model: str | None = None, api_key: str | None = None
    ) -> None:
        self.url = url.rstrip("/")
        self._rank = rank
        self._model = model
        self._api_key = api_key

    async def reset(self, timeout_s: float) -> ResetAnswer:
        """Empties the prefix cache; vLLM does it only while no block is in use."""
        try:
            answer = await self.ask("POST", "/reset_prefix_cache", None, timeout_s)
        except (httpx.HTTPError, TimeoutError) as error:
            return ResetAnswer("engine_error", f"the engine's server did not answer: {type(error).__name__}")
        if answer.status_code in (404, 405):
            return ResetAnswer(
                "no_delete_path", "start vLLM with VLLM_SERVER_DEV_MODE=1 to have a reset route"
            )
        if answer.status_code in (401, 403):
            return ResetAnswer("not_authorised", "the engine's server wants a key for its reset route")
        if answer.status_code != 200:
            return ResetAnswer("engine_error", f"the reset route answered {answer.status_code}")
        if not _success(answer):
            return ResetAnswer("blocks_in_use", "drain the worker: a reset needs every request to have ended")
        return ResetAnswer()

    async def step(self, timeout_s: float) -> bool:
        """Forces one scheduler step by a request of one token; False if the engine did not do it in time."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        try:
            body = {"model": await self._served_model(timeout_s), "prompt": [0], "max_tokens": 1}
            left_s = max(0.1, deadline_s - loop.time())
            answer = await self.ask("POST", "/v1/completions", body, left_s)
        except (httpx.HTTPError, TimeoutError):
            return False
        return answer.status_code == 200

    async def _served_model(self, timeout_s: float) -> str:
        answer = await self.ask("GET", "/v1/models", None, timeout_s)
        try:
            return str(json_of(answer)["data"][0]["id"])
        except (ValueError, KeyError, IndexError, TypeError):
            return self._model or "default"

    async def ask(self, method: str, path: str, body: Any, timeout_s: float) -> httpx.Response:
        """One request and its whole answer, of at most `MAX_ANSWER_BYTES` also where it was packed.

        Raises httpx.HTTPError, also for an address that is none, or TimeoutError.
        """
        headers = {"X-data-parallel-rank": str(self._rank)} if self._rank else {}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        # Reading the certificates of all authorities would hold every other engine's hook up.
        secured = self.url.startswith("https:")
        async with (
            asyncio.timeout(timeout_s),
            httpx.AsyncClient(timeout=timeout_s, trust_env=False, verify=secured) as client,
        ):
            try:
                asked = client.build_request(method, self.url + path, json=body, headers=headers)
                answer = await client.send(asked, stream=True)
            except (httpx.InvalidURL, UnicodeError) as error:
                raise httpx.UnsupportedProtocol("no address of a server") from error
            try:
                return httpx.Response(answer.status_code, content=await _read(answer), request=asked)
            finally:
                await answer.aclose()


async def _read(answer: httpx.Response) -> bytes:
    body = bytearray()
    async for part in answer.aiter_bytes():
        body += part
        if len(body) > MAX_ANSWER_BYTES:
            raise AnswerTooLargeError(f"more than {MAX_ANSWER_BYTES} bytes")
    return bytes(body)


def json_of(answer: httpx.Response) -> Any:
    """The JSON of an answer. Raises ValueError for what is none, is nested without end, or holds text that can't
    be written down again (half a surrogate pair)."""
    try:
        document = answer.json()
        json.dumps(document, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return document


def _success(answer: httpx.Response) -> bool:
    """Older servers answer a done reset with an empty body."""
    try:
        document = json_of(answer)
    except ValueError:
        return True
    return not isinstance(document, dict) or document.get("success", True) is True
