"""What an engine really holds, by its own word and apart from everything that is tested."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import zmq

from events.hooks.agent_client import AgentClient, Residents
from events.hooks.agent_wire import Group
from tests.live.engine import BLOCK, LiveEngine

Link = tuple[Any, tuple[int, ...], str | None, str | None]
"""Parent, tokens, adapter, and on the first block the salt."""


class HashTap:
    """Listens to the engine's events only to learn which hash stands for which block of tokens. The newest word
    counts: an adapter that was loaded from elsewhere has other hashes under its name."""

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

    def chain(self, tokens: Sequence[int], salt: str | None, adapter: str | None = None) -> list[bytes]:
        """Hashes of the prompt's full blocks, as far as the engine has ever told them."""
        found: list[bytes] = []
        parent: Any = None
        for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
            link = (parent, tuple(tokens[start : start + BLOCK]), adapter, salt if start == 0 else None)
            parent = self._hash_of.get(link)
            if parent is None:
                break
            found.append(_bytes(parent))
        return found

    def forget(self, adapter: str) -> None:
        """What the adapter's hashes were; they come anew with its next prompts."""
        kept = {link: name for link, name in self._hash_of.copy().items() if link[2] != adapter}
        self._hash_of = kept

    def _run(self) -> None:
        socket = self._context.socket(zmq.SUB)
        # A listener that was slow for a moment must not know less than what it judges.
        socket.set_hwm(0)
        socket.subscribe(b"")
        for rank in range(self._engine.ranks):
            socket.connect(f"tcp://127.0.0.1:{self._engine.event_port + rank}")
        while not self._stopped:
            if socket.poll(50):
                self._read(msgspec.msgpack.decode(socket.recv_multipart()[2]))
        socket.close(linger=0)

    def _read(self, batch: Any) -> None:
        for event in batch[1]:
            if event["type"] != "BlockStored":
                continue
            parent, tokens, adapter = event["parent_block_hash"], event["token_ids"], event["lora_name"]
            if len(event["block_hashes"]) * BLOCK != len(tokens):
                # A sliding group names the last blocks only: the full group's event has them all.
                continue
            for at, name in enumerate(event["block_hashes"]):
                extra = (event.get("extra_keys") or [None] * (at + 1))[at] or []
                salts = [one for one in extra if one != adapter]
                salt = salts[0] if salts and parent is None else None
                link = (parent, tuple(tokens[at * BLOCK : (at + 1) * BLOCK]), adapter, salt)
                self._hash_of[link] = name
                parent = name


def _bytes(name: Any) -> bytes:
    return name if isinstance(name, bytes) else int(name).to_bytes(8, "big")


@dataclass(frozen=True)
class Held:
    """A pool's content and how its groups serve from it."""

    residents: Residents
    groups: tuple[Group, ...]

    @property
    def blocks(self) -> int:
        """Blocks of all groups, a duplicate counted once."""
        return sum(len(names) for names in self.residents.copies.values())

    def servable(self, chain: Sequence[bytes]) -> int:
        """The most leading blocks of a prompt that every group can serve: a full one needs all of them, a sliding
        one those in its window."""
        return next(
            count
            for count in range(len(chain), -1, -1)
            if all(self._serves(group, chain[:count]) for group in self.groups)
        )

    def _serves(self, group: Group, chain: Sequence[bytes]) -> bool:
        needed = len(chain) if group.window is None else -(-(group.window - 1) // group.block_tokens)
        last = chain[max(0, len(chain) - needed) :]
        return resident(last, self.residents, group.index) == len(last)


class Pool:
    """The block pool of one rank of an engine, through its agent."""

    def __init__(self, path: Path, rank: int = 0) -> None:
        self._path = str(path)
        self._rank = rank

    def look(self) -> Residents:
        """What it holds now."""
        return self.held().residents

    def held(self) -> Held:
        """The same, with the engine's groups."""
        return asyncio.run(self._held())

    async def _held(self) -> Held:
        client = AgentClient(self._path, rank=self._rank)
        try:
            if not await client.connect(10) or client.hello is None:
                raise RuntimeError(f"no agent answers at {client.path}")
            groups = tuple(client.hello.groups)
            found = await client.inspect(10)
        finally:
            client.close()
        if found is None:
            raise RuntimeError(f"the agent at {client.path} shows nothing")
        return Held(found, groups)


def resident(chain: Sequence[bytes], pool: Residents, group: int = 0) -> int:
    """Leading blocks of a chain that a group holds."""
    held = pool.copies.get(group, {})
    count = 0
    for name in chain:
        if name not in held:
            break
        count += 1
    return count
