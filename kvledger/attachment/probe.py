"""Sends an engine prompts of its own making, and reads how much of them came from its cache."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import zmq
import zmq.asyncio

from events.errors import DecodeError, KvledgerError
from events.hooks.engine_event import BlockStored
from events.hooks.engine_http import EngineHttp, json_of
from events.hooks.engine_wire import decode_frames
from events.hooks.vllm import decode_batch
from events.identity import pack_tokens
from kvledger.attachment.metric_page import total
from kvledger.attachment.report import EngineReport, read_metrics

SEND_S = 60.0
COUNTED_S = 5.0
WIRE_S = 6.0
WIRE_TRY_S = 1.5
SMALL_TOKENS = range(10, 200)
"""Ids that any vocabulary has, where the engine doesn't tokenize."""
QUERIES, HITS = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"


class ProbeError(KvledgerError):
    """The engine refused the prompt."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One prompt's way: `cached` of its tokens were found, as `source` says (`usage`, `metrics`); None: nobody
    says it."""

    prompt_tokens: int
    cached: int | None
    source: str = ""


@dataclass(frozen=True, slots=True)
class Wire:
    """What was seen at a publisher's address: whether somebody listens, under which topics something came, and
    whether a block of a prompt that was sent meanwhile was among it."""

    listening: bool
    topics: tuple[str, ...] = ()
    ours: bool = False
    block_tokens: int | None = None
    topic: str | None = None
    """That of the message with our block."""


@dataclass(slots=True)
class Prober:
    """One rank's. Prompts are random, so that nobody has them cached, and are kept nowhere."""

    http: EngineHttp
    report: EngineReport
    rank: int
    wire_s: float = WIRE_S
    """How long an address is listened to."""
    _vocabulary: list[int] = field(default_factory=list)

    async def prompt(self, length: int) -> list[int]:
        """Token ids that this engine has not seen yet."""
        if not self._vocabulary:
            self._vocabulary = await self._tokens() or list(SMALL_TOKENS)
        return [secrets.choice(self._vocabulary) for _ in range(length)]

    async def send(self, tokens: Sequence[int]) -> Sent:
        """One request of one token. Raises ProbeError, or KvledgerError if the engine is gone."""
        before = await self._counters()
        body = {
            "model": self.report.model.id,
            "prompt": list(tokens),
            "max_tokens": 1,
            "temperature": 0,
        }
        try:
            answer = await self.http.ask("POST", "/v1/completions", body, SEND_S)
        except (httpx.HTTPError, TimeoutError, OSError) as error:
            raise ProbeError(f"{self.http.url} did not answer a prompt ({type(error).__name__})") from error
        if answer.status_code != 200:
            raise ProbeError(
                f"{self.http.url} answered a prompt of {len(tokens)} tokens {answer.status_code}"
            )
        cached = _cached(answer)
        if cached is not None:
            return Sent(len(tokens), cached, "usage")
        return Sent(len(tokens), await self._counted(before, len(tokens)), "metrics")

    async def watch_wire(self, endpoint: str, length: int) -> Wire:
        """Subscribes to everything at an address and sends new prompts until one of them is seen there."""
        from kvledger.attachment.address import is_listening

        if endpoint.startswith("tcp:") and not await is_listening(endpoint):
            return Wire(listening=False)
        topics: set[str] = set()
        context = zmq.asyncio.Context()
        socket = context.socket(zmq.SUB)
        try:
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            socket.connect(endpoint)
            loop = asyncio.get_running_loop()
            deadline_s = loop.time() + self.wire_s
            while loop.time() < deadline_s:
                tokens = await self.prompt(length)
                await self.send(tokens)
                found = await _hear(socket, pack_tokens(tokens), topics, loop.time() + WIRE_TRY_S)
                if found is not None:
                    topic, size = found
                    return Wire(True, tuple(sorted(topics)), True, size, topic)
            return Wire(True, tuple(sorted(topics)))
        finally:
            socket.close(linger=0)
            context.term()

    async def _tokens(self) -> list[int]:
        """Ids of ordinary text, by the engine's own tokenizer."""
        body = {"model": self.report.model.id, "prompt": secrets.token_hex(512), "add_special_tokens": False}
        try:
            answer = await self.http.ask("POST", "/tokenize", body, SEND_S)
            ids = json_of(answer)["tokens"] if answer.status_code == 200 else []
        except (httpx.HTTPError, TimeoutError, OSError, ValueError, KeyError, TypeError):
            return []
        found = {one for one in ids if isinstance(one, int) and one >= 0} if isinstance(ids, list) else set()
        return sorted(found) if len(found) > 1 else []

    async def _counters(self) -> tuple[float, float] | None:
        found = await read_metrics(self.http, SEND_S)
        queries, hits = (total(found, name, engine=str(self.rank)) for name in (QUERIES, HITS))
        return None if queries is None or hits is None else (queries, hits)

    async def _counted(self, before: tuple[float, float] | None, length: int) -> int | None:
        """Of the engine's counters; None if others were served meanwhile, or it has none."""
        if before is None:
            return None
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + COUNTED_S
        while loop.time() < deadline_s:
            now = await self._counters()
            if now is None:
                return None
            queries, hits = (after - first for after, first in zip(now, before, strict=True))
            if queries >= length:
                return int(hits) if queries == length else None
            await asyncio.sleep(0.1)
        return None


def _cached(answer: httpx.Response) -> int | None:
    """`usage.prompt_tokens_details.cached_tokens`, which vLLM gives with --enable-prompt-tokens-details."""
    try:
        details: Any = json_of(answer)["usage"]["prompt_tokens_details"]
    except (ValueError, KeyError, TypeError):
        return None
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return cached if isinstance(cached, int) and not isinstance(cached, bool) else None


async def _hear(
    socket: zmq.asyncio.Socket, prompt: bytes, topics: set[str], until_s: float
) -> tuple[str, int] | None:
    """(topic, block size) of the message that stores the prompt's first block; None if it doesn't come."""
    loop = asyncio.get_running_loop()
    while (left_s := until_s - loop.time()) > 0:
        if not await socket.poll(int(left_s * 1_000) + 1):
            return None
        try:
            topic, seq, payload = decode_frames(await socket.recv_multipart())
            topics.add(topic)
            events = decode_batch(seq, payload).events
        except DecodeError:
            continue
        for event in events:
            if isinstance(event, BlockStored) and event.tokens and prompt.startswith(event.tokens[:64]):
                return topic, event.block_size
    return None
