"""An engine that speaks vLLM's event wire exactly, with a real block pool and without a model.

In a test, drive it directly (`async with FakeEngine() as engine: await engine.complete([...])`), or play a
capture through it. Alone (`python -m tests.support.fake_engine`) it prints one JSON line with its addresses
and serves until it is told to end. It binds the loopback address only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import zmq

from tests.support.block_pool import BlockPool, PoolExhaustedError, chain_hashes
from tests.support.capture import load_capture
from tests.support.fake_engine_http import HttpFrontEnd
from tests.support.fake_engine_publisher import FakePublisher
from tests.support.fake_engine_report import Served, ServerFacts
from tests.support.fake_engine_wire import WIRES


@dataclass(slots=True)
class Request:
    """A running request: it holds its blocks until it is finished."""

    tokens: list[int]
    hashes: list[bytes]
    blocks: list[int]
    cached_tokens: int
    salt: str | None
    lora: str | None
    session: str | None
    done: bool = field(default=False)


class FakeEngine(FakePublisher):
    """One data-parallel rank of an engine."""

    def __init__(
        self,
        *,
        port: int = 0,
        replay_port: int = 0,
        connect_to: str | None = None,
        http_port: int | None = None,
        version: str = "0.32",
        topic: str = "kv@w0@fake",
        rank: int = 0,
        blocks: int = 256,
        block_size: int = 16,
        buffer_steps: int = 10_000,
        hash_bytes: bool = False,
        hash_seed: str = "",
        dev_mode: bool = True,
        eagle: bool = False,
        facts: ServerFacts | None = None,
    ) -> None:
        super().__init__(
            port=port,
            replay_port=replay_port,
            connect_to=connect_to,
            version=version,
            topic=topic,
            rank=rank,
            block_size=block_size,
            buffer_steps=buffer_steps,
            hash_bytes=hash_bytes,
            hash_seed=hash_seed,
        )
        self.dev_mode = dev_mode
        self.pool = BlockPool(blocks)
        self.facts = facts or ServerFacts(speculative=eagle)
        self.served = Served()
        self.ranks: list[FakeEngine] = [self]
        """All data-parallel ranks that this one's HTTP server speaks for."""
        self.told_endpoint = connect_to
        self.http_url = ""
        self._eagle = eagle
        self._http_port = http_port
        self._waiting: list[dict[str, Any]] = []
        self._running: list[Request] = []
        self._http: HttpFrontEnd | None = None

    async def __aenter__(self) -> Self:
        await self._open()
        if self._http_port is not None:
            self._http = HttpFrontEnd(self)
            self.http_url = await self._http.start(self._http_port)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._http is not None:
            await self._http.stop()
        await self._close()
        self._context.term()

    async def complete(
        self,
        tokens: Sequence[int],
        *,
        generate: Sequence[int] = (),
        salt: str | None = None,
        lora: str | None = None,
        session: str | None = None,
    ) -> Request:
        """Run one request to its end: prefill in one step, then one step a generated token."""
        request = await self.begin(tokens, salt=salt, lora=lora, session=session)
        await self.generate(request, generate)
        self.finish(request)
        return request

    async def begin(
        self,
        tokens: Sequence[int],
        *,
        salt: str | None = None,
        lora: str | None = None,
        session: str | None = None,
    ) -> Request:
        """Prefill a request and leave it running."""
        size = self.block_size
        hashes = chain_hashes(tokens, size, seed=self._hash_seed, salt=salt, lora=lora)
        # As vLLM does, at least one token is computed: the last block is never a hit of a whole prompt.
        blocks = self.pool.hit(hashes[: (len(tokens) - 1) // size]) if self.facts.caching else []
        if self._eagle and blocks:
            # The draft head needs the last hit block's hidden states, so it is computed again.
            self.pool.release([blocks.pop()])
        hits = len(blocks)
        self.served.prompts.append(len(tokens))
        self.served.hits += hits * size
        try:
            fresh, evicted = self.pool.allocate(len(tokens) // size + 1 - hits)
        except PoolExhaustedError:
            self.pool.release(blocks)
            raise
        blocks += fresh
        events = [self.removed([old]) for old in evicted]
        if not self.facts.caching:
            hashes = hashes[:hits]
        for block, block_hash in zip(blocks[hits:], hashes[hits:], strict=False):
            self.pool.cache(block, block_hash)
        if hashes[hits:]:
            events.append(
                self.stored(
                    hashes[hits:],
                    tokens[hits * size : len(hashes) * size],
                    parent=hashes[hits - 1] if hits else None,
                    salt=salt,
                    lora=lora,
                    session=session,
                )
            )
        request = Request(list(tokens), hashes, blocks, hits * size, salt, lora, session)
        self._running.append(request)
        await self.step(events)
        return request

    async def generate(self, request: Request, tokens: Sequence[int]) -> None:
        """Decode: each filled block is announced by the step that filled it."""
        size = self.block_size
        for token in tokens:
            request.tokens.append(token)
            events: list[dict[str, Any]] = []
            if len(request.tokens) % size == 0:
                parent = request.hashes[-1] if request.hashes else None
                salt = None if request.hashes else request.salt
                (filled,) = chain_hashes(
                    request.tokens[-size:],
                    size,
                    seed=self._hash_seed,
                    parent=parent,
                    salt=salt,
                    lora=request.lora,
                )
                self.pool.cache(request.blocks[len(request.hashes)], filled)
                request.hashes.append(filled)
                fresh, evicted = self.pool.allocate(1)
                request.blocks += fresh
                events += [self.removed([old]) for old in evicted]
                events.append(
                    self.stored(
                        [filled],
                        request.tokens[-size:],
                        parent=parent,
                        salt=salt,
                        lora=request.lora,
                        session=request.session,
                    )
                )
            await self.step(events)

    def finish(self, request: Request) -> None:
        """End a request; its blocks stay cached and may be evicted from now on. Idempotent."""
        if not request.done:
            request.done = True
            self._running.remove(request)
            self.pool.release(request.blocks)

    def reset(self) -> bool:
        """Reset the prefix cache; the event goes out with the next step. False if blocks are in use."""
        if self.faults.refuse_reset or not self.pool.reset():
            return False
        self._waiting.append({"type": "AllBlocksCleared"})
        return True

    async def step(self, events: Sequence[dict[str, Any]] = ()) -> None:
        """One scheduler step: publishes what is waiting and `events`; nothing if there is nothing."""
        batch = [*self._waiting, *events]
        self._waiting.clear()
        if batch and self.facts.publishes:
            await self.publish(batch)

    async def restart(self) -> None:
        """Die and start again on the same ports: nothing is said, sequence and cache begin anew."""
        await self._close()
        self._buffer.clear()
        self._next_seq = 0
        self._waiting.clear()
        self._running.clear()
        self.pool = BlockPool(self.pool.capacity)
        self.served = Served()
        self.facts.started_s += 1.0
        await self._open()


async def _serve(arguments: argparse.Namespace) -> None:
    async with FakeEngine(
        port=arguments.port,
        replay_port=arguments.replay_port,
        http_port=arguments.http_port,
        version=arguments.version,
        topic=arguments.topic,
        rank=arguments.rank,
        blocks=arguments.blocks,
        block_size=arguments.block_size,
        hash_seed=arguments.hash_seed,
        dev_mode=arguments.dev_mode,
    ) as engine:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        if arguments.capture:
            for message in load_capture(arguments.capture):
                if message.channel == "pub" and arguments.capture_source in {"", message.source}:
                    await engine.publish_captured(message)
        ready = {
            "endpoint": engine.endpoint,
            "replay": engine.replay_endpoint,
            "http": engine.http_url,
            "topic": engine.topic,
            "version": engine.wire.version,
            "block_size": engine.block_size,
            "blocks": engine.pool.capacity,
        }
        print(json.dumps(ready), flush=True)
        await stop.wait()


def main() -> None:
    """Serve until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(description="A fake vLLM engine: event publisher, replay, HTTP.")
    parser.add_argument("--port", type=int, default=0, help="event publisher (0: any free port)")
    parser.add_argument("--replay-port", type=int, default=0)
    parser.add_argument("--http-port", type=int, default=0)
    parser.add_argument("--version", choices=sorted(WIRES), default="0.32")
    parser.add_argument("--topic", default="kv@w0@fake")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--blocks", type=int, default=256)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--hash-seed", default="")
    parser.add_argument("--dev-mode", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--capture", default="", help="publish this capture into the replay buffer first")
    parser.add_argument("--capture-source", default="", help="only this source of the capture")
    try:
        asyncio.run(_serve(parser.parse_args()))
    except (OSError, zmq.ZMQError) as error:
        ports = "is one of --port, --replay-port and --http-port taken?"
        raise SystemExit(f"fake engine: {error.strerror}; {ports}") from error


if __name__ == "__main__":
    main()
