"""A small model of vLLM's block pool: LRU, duplicates, references; enough to be an engine's truth."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field


def chain_hashes(
    tokens: Sequence[int],
    block_size: int,
    *,
    seed: str = "",
    parent: bytes | None = None,
    salt: str | None = None,
    lora: str | None = None,
) -> list[bytes]:
    """32-byte hashes of all full blocks, each over its parent, its tokens and its extra keys."""
    parent = parent if parent is not None else b""
    root = parent or hashlib.sha256(b"none" + seed.encode()).digest()
    hashes: list[bytes] = []
    for start in range(0, len(tokens) - block_size + 1, block_size):
        first = start == 0 and not parent
        extra = repr((lora, salt if first else None)).encode()
        body = b"".join(token.to_bytes(4, "little") for token in tokens[start : start + block_size])
        root = hashlib.sha256(root + body + extra).digest()
        hashes.append(root)
    return hashes


class PoolExhaustedError(Exception):
    """All blocks are referenced by running requests."""


@dataclass(slots=True)
class BlockPool:
    """`capacity` physical blocks; a hash may lie in several of them.

    Free blocks keep their hash until they are allocated again, oldest first: that is the eviction.
    """

    capacity: int
    free: OrderedDict[int, None] = field(default_factory=OrderedDict)
    hash_of: dict[int, bytes] = field(default_factory=dict)
    blocks_of: dict[bytes, dict[int, None]] = field(default_factory=dict)
    references: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free = OrderedDict.fromkeys(range(self.capacity))

    def resident(self, block_hash: bytes) -> int:
        """Number of physical copies of a hash that a request could hit."""
        return len(self.blocks_of.get(block_hash, ()))

    def hit(self, hashes: Sequence[bytes]) -> list[int]:
        """Longest resident prefix as block ids, referenced."""
        ids: list[int] = []
        for block_hash in hashes:
            copies = self.blocks_of.get(block_hash)
            if not copies:
                break
            block = next(iter(copies))
            self.free.pop(block, None)
            self.references[block] = self.references.get(block, 0) + 1
            ids.append(block)
        return ids

    def allocate(self, count: int) -> tuple[list[int], list[bytes]]:
        """Take `count` blocks; returns them and the hashes that were evicted, in order."""
        if count > len(self.free):
            raise PoolExhaustedError(f"{count} blocks wanted, {len(self.free)} free")
        ids: list[int] = []
        evicted: list[bytes] = []
        for _ in range(count):
            block, _none = self.free.popitem(last=False)
            old = self.hash_of.pop(block, None)
            if old is not None:
                self._forget(old, block)
                evicted.append(old)
            self.references[block] = 1
            ids.append(block)
        return ids, evicted

    def cache(self, block: int, block_hash: bytes) -> None:
        """Give a filled block its hash."""
        self.hash_of[block] = block_hash
        self.blocks_of.setdefault(block_hash, {})[block] = None

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference each; the last block of a chain is evicted first."""
        for block in reversed(blocks):
            self.references[block] -= 1
            if not self.references[block]:
                del self.references[block]
                self.free[block] = None

    def evict(self, block_hash: bytes) -> int:
        """Take all copies of one hash out of the cache; returns how many there were."""
        copies = self.blocks_of.pop(block_hash, {})
        for block in copies:
            del self.hash_of[block]
        return len(copies)

    def reset(self) -> bool:
        """Forget all hashes; refused (False) while a request holds blocks."""
        if self.references:
            return False
        self.hash_of.clear()
        self.blocks_of.clear()
        return True

    def _forget(self, block_hash: bytes, block: int) -> None:
        copies = self.blocks_of[block_hash]
        del copies[block]
        if not copies:
            del self.blocks_of[block_hash]
