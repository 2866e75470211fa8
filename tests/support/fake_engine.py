"""An engine that speaks vLLM's event wire exactly, with a real block pool and without a model.

In a test, drive it directly (`async with FakeEngine() as engine: await engine.complete([...])`), or play a
capture through it. Alone (`python -m tests.support.fake_engine`) it prints one JSON line with its addresses
and serves until it is told to end. It binds the loopback address only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import json
import signal
import struct
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec
import zmq
import zmq.asyncio

from tests.support.block_pool import BlockPool, PoolExhaustedError, chain_hashes
from tests.support.capture import CapturedMessage, load_capture
from tests.support.fake_engine_http import HttpFrontEnd

_STORED = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
)
_BIND_TIMEOUT_S = 5.0
_STORED_0_16 = 7
_ALWAYS = frozenset({"type", *_STORED[:_STORED_0_16]})


@dataclass(frozen=True, slots=True)
class Wire:
    """What differs between vLLM's versions."""

    version: str
    array_events: bool
    replay_topic: bool


WIRES = {
    wire.version: wire
    for wire in (
        Wire("0.16", array_events=True, replay_topic=False),
        Wire("0.24", array_events=False, replay_topic=False),
        Wire("0.28", array_events=False, replay_topic=True),
        Wire("0.32", array_events=False, replay_topic=True),
    )
}


@dataclass(slots=True)
class Faults:
    """What goes wrong; set them at any time.

    `drop_publications`: so many next messages reach the replay buffer but no subscriber.
    `lose_publications`: so many next messages take a sequence number and vanish everywhere.
    `cut_replay_after`: an answer ends after so many records, without end mark, `cut_replays` times.
    """

    drop_publications: int = 0
    lose_publications: int = 0
    silent_replay: bool = False
    cut_replay_after: int = 0
    cut_replays: int = 0
    refuse_reset: bool = False


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


class FakeEngine:
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
    ) -> None:
        self.wire = WIRES[version]
        self.topic = topic
        self.rank = rank
        self.block_size = block_size
        self.dev_mode = dev_mode
        self.faults = Faults()
        self.pool = BlockPool(blocks)
        self.replay_questions: list[int] = []
        self.replay_asked = asyncio.Event()
        self.endpoint = connect_to or f"tcp://127.0.0.1:{port or '*'}"
        self.replay_endpoint = f"tcp://127.0.0.1:{replay_port or '*'}"
        self.http_url = ""
        self._connect_to = connect_to
        self._http_port = http_port
        self._hash_bytes = hash_bytes
        self._hash_seed = hash_seed
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer_steps)
        self._next_seq = 0
        self._waiting: list[dict[str, Any]] = []
        self._running: list[Request] = []
        self._lora_ids: dict[str, int] = {}
        self._context = zmq.asyncio.Context()
        self._pub: zmq.asyncio.Socket | None = None
        self._router: zmq.asyncio.Socket | None = None
        self._replay_task: asyncio.Task[None] | None = None
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

    @property
    def next_seq(self) -> int:
        """The sequence number of the next publication."""
        return self._next_seq

    # --- as an engine -----------------------------------------------------------------------------

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
        blocks = self.pool.hit(hashes[: (len(tokens) - 1) // size])
        hits = len(blocks)
        try:
            fresh, evicted = self.pool.allocate(len(tokens) // size + 1 - hits)
        except PoolExhaustedError:
            self.pool.release(blocks)
            raise
        blocks += fresh
        events = [self.removed([old]) for old in evicted]
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
        if batch:
            await self.publish(batch)

    async def restart(self) -> None:
        """Die and start again on the same ports: nothing is said, sequence and cache begin anew."""
        await self._close()
        self._buffer.clear()
        self._next_seq = 0
        self._waiting.clear()
        self._running.clear()
        self.pool = BlockPool(self.pool.capacity)
        await self._open()

    # --- as a publisher ---------------------------------------------------------------------------

    async def store(
        self, tokens: Sequence[int], *, parent: bytes | None = None, salt: str | None = None, **fields: Any
    ) -> list[bytes]:
        """Publish one BlockStored for the full blocks of `tokens`, beside the pool; returns the hashes."""
        lora = fields.get("lora_name")
        hashes = chain_hashes(
            tokens, self.block_size, seed=self._hash_seed, parent=parent, salt=salt, lora=lora
        )
        await self.publish([self.stored(hashes, tokens, parent=parent, salt=salt, lora=lora) | fields])
        return hashes

    async def remove(self, hashes: Sequence[bytes], **fields: Any) -> None:
        """Publish one BlockRemoved a hash, in one batch, beside the pool."""
        await self.publish([self.removed([one]) | fields for one in hashes])

    async def clear(self) -> None:
        """Publish AllBlocksCleared, beside the pool."""
        await self.publish([{"type": "AllBlocksCleared"}])

    def stored(
        self,
        hashes: Sequence[bytes],
        tokens: Sequence[int],
        *,
        parent: bytes | None = None,
        salt: str | None = None,
        lora: str | None = None,
        session: str | None = None,
    ) -> dict[str, Any]:
        """A BlockStored as a map, with the fields of the newest version."""
        extra: list[list[str] | None] = []
        for index in range(len(hashes)):
            keys = [*([lora] if lora else []), *([salt] if salt and parent is None and index == 0 else [])]
            extra.append(keys or None)
        return {
            "type": "BlockStored",
            "block_hashes": [self.wire_hash(one) for one in hashes],
            "parent_block_hash": None if parent is None else self.wire_hash(parent),
            "token_ids": list(tokens[: len(hashes) * self.block_size]),
            "block_size": self.block_size,
            "lora_id": self._lora_ids.setdefault(lora, len(self._lora_ids) + 1) if lora else None,
            "medium": "GPU",
            "lora_name": lora,
            "extra_keys": extra,
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
            "session_id": session,
        }

    def removed(self, hashes: Sequence[bytes]) -> dict[str, Any]:
        """A BlockRemoved as a map."""
        wire = [self.wire_hash(one) for one in hashes]
        return {"type": "BlockRemoved", "block_hashes": wire, "medium": "GPU", "group_idx": 0}

    def wire_hash(self, digest: bytes) -> int | bytes:
        """A hash as it goes over the wire: unsigned 64-bit by default."""
        return digest if self._hash_bytes else int.from_bytes(digest[-8:], "big")

    async def publish(self, events: Sequence[dict[str, Any]]) -> int:
        """Encode and send one batch in this version's form; returns its sequence number."""
        body = [self._encode(event) for event in events]
        return await self.publish_raw(msgspec.msgpack.encode([time.time(), body, self.rank]))

    async def publish_raw(self, payload: bytes) -> int:
        """Send one payload as it is, through the faults; returns its sequence number."""
        seq = self._next_seq
        self._next_seq += 1
        if self.faults.lose_publications > 0:
            self.faults.lose_publications -= 1
            return seq
        self._buffer.append((seq, payload))
        if self.faults.drop_publications > 0:
            self.faults.drop_publications -= 1
            return seq
        assert self._pub is not None
        await self._pub.send_multipart([self.topic.encode(), struct.pack(">Q", seq), payload])
        return seq

    async def publish_captured(self, message: CapturedMessage) -> None:
        """Send a captured publication under its own sequence number; a lower one is a new life."""
        if message.seq < self._next_seq:
            self._buffer.clear()
        self._next_seq = message.seq
        await self.publish_raw(message.payload)

    # --- wire -------------------------------------------------------------------------------------

    def _encode(self, event: dict[str, Any]) -> object:
        if not self.wire.array_events:
            return {key: value for key, value in event.items() if value is not None or key in _ALWAYS}
        match event["type"]:
            case "BlockStored":
                return [event["type"], *(event.get(name) for name in _STORED[:_STORED_0_16])]
            case "BlockRemoved":
                return [event["type"], event["block_hashes"], event["medium"]]
            case kind:
                return [kind]

    async def _open(self) -> None:
        self._pub = self._context.socket(zmq.PUB)
        self._pub.set(zmq.LINGER, 0)
        self._pub.set(zmq.SNDHWM, 100_000)
        if self._connect_to is None:
            self.endpoint = await _bind(self._pub, self.endpoint)
        else:
            self._pub.connect(self._connect_to)
        self._router = self._context.socket(zmq.ROUTER)
        self._router.set(zmq.LINGER, 0)
        self._router.set(zmq.SNDHWM, 0)
        self.replay_endpoint = await _bind(self._router, self.replay_endpoint)
        self._replay_task = asyncio.create_task(self._serve_replay(self._router))

    async def _close(self) -> None:
        if self._replay_task is not None:
            self._replay_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._replay_task
        for socket in (self._pub, self._router):
            if socket is not None:
                socket.close(linger=0)

    async def _serve_replay(self, router: zmq.asyncio.Socket) -> None:
        while True:
            frames = await router.recv_multipart()
            if len(frames) != 3:
                continue
            client, _delimiter, start_bytes = frames
            start = int.from_bytes(start_bytes, "big")
            self.replay_questions.append(start)
            self.replay_asked.set()
            if self.faults.silent_replay:
                continue
            head = [client, b""] + ([self.topic.encode()] if self.wire.replay_topic else [])
            records = [record for record in self._buffer if record[0] >= start]
            cut = self.faults.cut_replays > 0 and len(records) > self.faults.cut_replay_after
            if cut:
                self.faults.cut_replays -= 1
                records = records[: self.faults.cut_replay_after]
            for seq, payload in records:
                await router.send_multipart([*head, struct.pack(">Q", seq), payload])
            if not cut:
                end_head = [client, b""] + ([b""] if self.wire.replay_topic else [])
                await router.send_multipart([*end_head, struct.pack(">q", -1), b""])


async def _bind(socket: zmq.asyncio.Socket, endpoint: str) -> str:
    """Bind, waiting for the former life's socket: ZeroMQ frees a port a moment after the close."""
    deadline = time.monotonic() + _BIND_TIMEOUT_S
    while True:
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.01)
        else:
            return _bound_address(socket)


def _bound_address(socket: zmq.asyncio.Socket) -> str:
    address = socket.get(zmq.LAST_ENDPOINT)
    assert isinstance(address, bytes)
    return address.rstrip(b"\0").decode()


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
    asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
