"""The REST client that a router embeds.

async with RouterClient("http://127.0.0.1:8400") as client:
    answer = await client.lookup(token_ids=tokens, profile="my-model", max_staleness=0.5)
    best = answer.matches[0].worker if answer.matches else None
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Any, Literal

import httpx
from pydantic import ValidationError

from events.identity import pack_tokens
from events.ids import Basis, ProfileId
from events.model.profile import LayoutProfile
from router_client.breaker import CircuitBreaker
from router_client.failure import RequestError, RouterError, UnavailableError, error_of
from router_client.prefix_memory import PrefixMemory
from router_client.problem import Problem
from router_client.watch import WatchEvent, events_of
from router_client.wire import BINARY_TYPE, JSON_TYPE, Answer, IdentityWanted, OnStale, binary_query

LOOKUP_PATH = "/v1/lookup"
WATCH_PATH = "/v1/watch"
WATCH_SILENCE_S = 30.0
MAX_CONNECTIONS = 128


class RouterClient:
    """Asks one replica (or what stands before several). Safe for any number of concurrent calls.

    `token` is the bearer token. With `id_key` (the domain's lookup key) and `block_tokens`, prompts under a
    profile id are hashed here, a growing one only at its new end, and no token leaves the process.
    `timeout_s` is each call's deadline unless the call gives its own. Raises RequestError for a `url` that is
    no http:// or https:// address.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        id_key: bytes | None = None,
        block_tokens: int | None = None,
        timeout_s: float = 1.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._url = _address(url)
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        self._http = httpx.AsyncClient(
            base_url=url,
            headers=headers,
            transport=transport,
            limits=httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS),
        )
        self._timeout_s = timeout_s
        self._memory = PrefixMemory(id_key) if id_key is not None else None
        self._block_tokens = block_tokens
        self.breaker = CircuitBreaker()

    async def __aenter__(self) -> RouterClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections. Idempotent."""
        await self._http.aclose()

    async def lookup(
        self,
        *,
        profile: str,
        token_ids: Sequence[int] | bytes | None = None,
        block_ids: Sequence[bytes] | None = None,
        max_staleness: float | None = None,
        consistency: Literal["any"] | None = None,
        adapter: str | None = None,
        domain: str | None = None,
        candidates: Sequence[str] | None = None,
        min_token: str | None = None,
        on_stale: OnStale = OnStale.DROP,
        min_coverage: int | float | None = None,
        wait: float = 0.0,
        basis: Basis = Basis.PUBLISHED,
        identity: IdentityWanted = IdentityWanted.ANY,
        limit: int | None = None,
        requester_layout: LayoutProfile | None = None,
        timeout_s: float | None = None,
    ) -> Answer:
        """Who has this prefix, no older than `max_staleness` seconds.

        One of `token_ids` (numbers, or u32 little endian) and `block_ids`; one of `max_staleness` and
        `consistency="any"`. `wait` (seconds) is how long the replica may wait to reach `min_token`.
        A refusal that names a moment to try again is tried once more if that moment lies within the deadline.
        Raises a `RouterError`; its kinds say what to do next.
        """
        if self._memory is not None and self._block_tokens and token_ids is not None and len(profile) == 64:
            tokens = token_ids if isinstance(token_ids, bytes) else list(token_ids)
            block_ids = self._memory.ids(ProfileId(profile), tokens, self._block_tokens)
            token_ids = None
        request: dict[str, Any] = {
            "profile": profile,
            "adapter": adapter,
            "domain": domain,
            "max_staleness_ms": None if max_staleness is None else max_staleness * 1_000,
            "consistency": consistency,
            "candidates": None if candidates is None else list(candidates),
            "min_token": min_token,
            "on_stale": on_stale.value,
            "min_coverage": min_coverage,
            "wait_ms": wait * 1_000,
            "basis": basis.value,
            "identity": identity.value,
            "limit": limit,
        }
        if requester_layout is not None:
            request["requester_layout"] = requester_layout.model_dump(mode="json")
        deadline_s = self._timeout_s + wait if timeout_s is None else timeout_s
        message = _message(request, token_ids, block_ids)
        return await self._ask(message, profile, time.monotonic() + deadline_s)

    async def watch(self, *, last_event_id: str | None = None) -> AsyncGenerator[WatchEvent, None]:
        """The replica's `/v1/watch`: first the whole present state, then what changes; see there.

        Ends when the service says so (`end`, the last event). A connection that breaks, or that is silent
        for longer than the service keeps it alive, is UnavailableError: watch again, with the id of the
        last event if the number of changes that went by matters. Close it (`aclosing`) to stop early.
        """
        headers = {"Accept": "text/event-stream"}
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        timeout = httpx.Timeout(self._timeout_s, read=WATCH_SILENCE_S)
        try:
            async with self._http.stream("GET", WATCH_PATH, headers=headers, timeout=timeout) as response:
                if response.status_code != 200:
                    await response.aread()
                    found = _read(response, self._url)
                    raise found if isinstance(found, RouterError) else _refused(found, self._url)
                async for event in events_of(response.aiter_lines()):
                    yield event
                    if event.name == "end":
                        return
        except httpx.HTTPError as error:
            raise UnavailableError(
                f"the watch of {self._url} broke ({type(error).__name__}); watch again"
            ) from error
        raise UnavailableError(f"{self._url} ended the watch without a word; watch again")

    async def _ask(self, message: dict[str, Any], profile: str, until_s: float) -> Answer:
        found = await self._send(message, until_s)
        if isinstance(found, Problem):
            pause_s = None if found.retry_after_ms is None else found.retry_after_ms / 1_000
            if pause_s is None or time.monotonic() + pause_s >= until_s:
                raise error_of(found, url=self._url, profile=profile)
            await asyncio.sleep(pause_s)
            found = await self._send(message, until_s)
            if isinstance(found, Problem):
                raise error_of(found, url=self._url, profile=profile)
        return found

    async def _send(self, message: dict[str, Any], until_s: float) -> Answer | Problem:
        now_s = time.monotonic()
        if not self.breaker.allows(now_s):
            raise UnavailableError(
                f"{self._url} failed again and again and is left alone for a moment; route without a hint"
            )
        left_s = max(until_s - now_s, 0.001)
        try:
            response = await self._http.post(LOOKUP_PATH, timeout=left_s, **message)
        except httpx.HTTPError as error:
            self.breaker.failed(time.monotonic())
            why = f"{type(error).__name__}: {error}" if str(error) else f"{type(error).__name__}"
            raise UnavailableError(
                f"no answer from {self._url} within {left_s:.3g} s ({why}); route without a hint, and see whether "
                "the lookup service runs there"
            ) from error
        except asyncio.CancelledError:
            self.breaker.abandoned()
            raise
        found = _read(response, self._url)
        if isinstance(found, UnavailableError):
            self.breaker.failed(time.monotonic())
            raise found
        self.breaker.succeeded()
        if isinstance(found, RouterError):
            raise found
        return found


def _address(url: str) -> str:
    """Scheme, host and port, for messages: never the credentials that a URL may hold."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise RequestError(f"the service's URL can't be read ({error}): give http://host:port") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise RequestError(
            "the service's URL must begin with http:// or https://, as in http://127.0.0.1:8400"
        )
    return f"{parsed.scheme}://{parsed.netloc.decode('ascii')}"


def _message(
    request: dict[str, Any], token_ids: Sequence[int] | bytes | None, block_ids: Sequence[bytes] | None
) -> dict[str, Any]:
    """Tokens go as a binary body, ids and whatever a query string can't say as JSON."""
    if (token_ids is None) == (block_ids is None):
        raise RequestError("give one of token_ids and block_ids")
    if token_ids is not None and request.get("requester_layout") is None:
        body = token_ids if isinstance(token_ids, bytes) else pack_tokens(token_ids)
        return {
            "params": binary_query(request),
            "content": body,
            "headers": {"Content-Type": BINARY_TYPE},
        }
    document = {name: value for name, value in request.items() if value is not None}
    if block_ids is not None:
        document["block_ids"] = [block.hex() for block in block_ids]
    else:
        document["token_ids"] = _numbers(token_ids)
    return {"json": document, "headers": {"Content-Type": JSON_TYPE}}


def _refused(found: Answer | Problem, url: str) -> RouterError:
    if isinstance(found, Problem):
        return error_of(found, url=url)
    return UnavailableError(f"{url} answered a watch with a lookup's answer; see whose URL it is")


def _numbers(token_ids: Sequence[int] | bytes | None) -> list[int]:
    if isinstance(token_ids, bytes):
        return [int.from_bytes(token_ids[at : at + 4], "little") for at in range(0, len(token_ids), 4)]
    return list(token_ids or ())


def _read(response: httpx.Response, url: str) -> Answer | Problem | RouterError:
    try:
        if response.status_code == 200:
            return Answer.model_validate_json(response.content)
        problem = Problem.model_validate_json(response.content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(step) for step in first["loc"]) or "body"
        fault = UnavailableError(
            f"{url} answered status {response.status_code} with a body that is none of kvledger's "
            f"({where}: {first['msg']}); see whether the URL is the lookup service's"
        )
        fault.__cause__ = error
        return fault
    if problem.status >= 500 and problem.retry_after_ms is None:
        return error_of(problem, url=url)
    return problem
