"""Stores that an index refused for their parent, until nothing speaks against them any more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class RefusedStores:
    """By block and the parent that was named, the bits that wait. Never more than the copies that are held.

    `bits` are those for which anything waits: they hold more than a match shows.
    """

    __slots__ = ("_counts", "_waiting", "bits")

    def __init__(self) -> None:
        self._waiting: dict[bytes, dict[bytes, int]] = {}
        self._counts: dict[int, int] = {}
        """By single bit how many blocks wait."""
        self.bits = 0

    def __len__(self) -> int:
        """Blocks that wait under any parent."""
        return len(self._waiting)

    def __contains__(self, block: bytes) -> bool:
        return block in self._waiting

    def add(self, bits: int, block: bytes, parent: bytes) -> None:
        """The block waits under `bits` until somebody takes it, or it is dropped."""
        parents = self._waiting.setdefault(block, {})
        known = parents.get(parent, 0)
        parents[parent] = known | bits
        self.bits |= bits
        for bit in _each(bits & ~known):
            self._counts[bit] = self._counts.get(bit, 0) + 1

    def drop(self, bits: int, ids: Iterable[bytes]) -> None:
        """Nothing of these blocks waits under `bits` any more."""
        for block in ids:
            parents = self._waiting.get(block)
            if parents is None:
                continue
            for parent, mask in list(parents.items()):
                self._done(mask & bits)
                if mask & ~bits:
                    parents[parent] = mask & ~bits
                else:
                    del parents[parent]
            if not parents:
                del self._waiting[block]

    def take(self, block: bytes) -> tuple[int, bytes] | None:
        """(bits, parent) of the store of this block that has waited longest; it waits no more."""
        parents = self._waiting.get(block)
        if parents is None:
            return None
        parent = next(iter(parents))
        bits = parents.pop(parent)
        if not parents:
            del self._waiting[block]
        self._done(bits)
        return bits, parent

    def _done(self, bits: int) -> None:
        for bit in _each(bits):
            self._counts[bit] -= 1
            if not self._counts[bit]:
                del self._counts[bit]
                self.bits &= ~bit


def _each(mask: int) -> Iterator[int]:
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit
