"""The fake engine's side of the wire: events out, replay on request, and what may go wrong with both."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import struct
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from tests.support.block_pool import chain_hashes
from tests.support.capture import CapturedMessage
from tests.support.fake_engine_wire import WIRES

_BIND_TIMEOUT_S = 5.0


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


class FakePublisher:
    """The publisher of one data-parallel rank: its sockets, its replay buffer and the events it writes."""

    def __init__(
        self,
        *,
        port: int,
        replay_port: int,
        connect_to: str | None,
        version: str,
        topic: str,
        rank: int,
        block_size: int,
        buffer_steps: int,
        hash_bytes: bool,
        hash_seed: str,
    ) -> None:
        self.wire = WIRES[version]
        self.topic = topic
        self.rank = rank
        self.block_size = block_size
        self.faults = Faults()
        self.replay_questions: list[int] = []
        self.replay_asked = asyncio.Event()
        self.endpoint = connect_to or f"tcp://127.0.0.1:{port or '*'}"
        self.replay_endpoint = f"tcp://127.0.0.1:{replay_port or '*'}"
        self._connect_to = connect_to
        self._hash_bytes = hash_bytes
        self._hash_seed = hash_seed
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer_steps)
        self._next_seq = 0
        self._lora_ids: dict[str, int] = {}
        self._context = zmq.asyncio.Context()
        self._pub: zmq.asyncio.Socket | None = None
        self._router: zmq.asyncio.Socket | None = None
        self._replay_task: asyncio.Task[None] | None = None

    @property
    def next_seq(self) -> int:
        """The sequence number of the next publication."""
        return self._next_seq

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
        body = [self.wire.encode(event) for event in events]
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
