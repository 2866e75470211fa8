"""What an engine really holds, by its own word and apart from everything that is tested."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import zmq

from events.hooks.agent_client import AgentClient, Residents
from tests.live.engine import BLOCK, LiveEngine

Link = tuple[Any, tuple[int, ...], str | None]


class HashTap:
    """Listens to the engine's events only to learn which hash stands for which block of tokens."""

    def __init__(self, engine: LiveEngine) -> None:
        self._hash_of: dict[Link, Any] = {}
        self._stopped = False
        self._engine = engine
        self._context = zmq.Context()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped = True
        self._thread.join(10)
        self._context.term()

    def chain(self, tokens: Sequence[int], salt: str | None) -> list[bytes]:
        """Hashes of the prompt's full blocks, as far as the engine has ever told them."""
        found: list[bytes] = []
        parent: Any = None
        for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
            link = (parent, tuple(tokens[start : start + BLOCK]), salt if start == 0 else None)
            parent = self._hash_of.get(link)
            if parent is None:
                break
            found.append(int(parent).to_bytes(8, "big"))
        return found

    def _run(self) -> None:
        socket = self._context.socket(zmq.SUB)
        # A listener that was slow for a moment must not know less than what it judges.
        socket.set_hwm(0)
        socket.subscribe(b"")
        socket.connect(self._engine.endpoint)
        while not self._stopped:
            if socket.poll(50):
                self._read(msgspec.msgpack.decode(socket.recv_multipart()[2]))
        socket.close(linger=0)

    def _read(self, batch: Any) -> None:
        for event in batch[1]:
            if event["type"] != "BlockStored":
                continue
            parent, tokens = event["parent_block_hash"], event["token_ids"]
            for at, name in enumerate(event["block_hashes"]):
                extra = (event.get("extra_keys") or [None] * (at + 1))[at]
                salt = extra[0] if extra and parent is None else None
                self._hash_of[(parent, tuple(tokens[at * BLOCK : (at + 1) * BLOCK]), salt)] = name
                parent = name


class Pool:
    """The engine's block pool, through its agent."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def look(self) -> Residents:
        """What it holds now."""
        return asyncio.run(self._look())

    async def _look(self) -> Residents:
        client = AgentClient(self._path)
        try:
            if not await client.connect(10):
                raise RuntimeError(f"no agent answers at {self._path}")
            found = await client.inspect(10)
        finally:
            client.close()
        if found is None:
            raise RuntimeError(f"the agent at {self._path} shows nothing")
        return found


def resident(chain: Sequence[bytes], pool: Residents) -> int:
    """Leading blocks of a prompt that the pool holds."""
    held = pool.copies.get(0, {})
    count = 0
    for name in chain:
        if name not in held:
            break
        count += 1
    return count
