"""Where a table's ids lie, so that a range finds its own without a look at all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

IDS_PER_BUCKET = 256
_PREFIXES = 1 << 16


class Spread:
    """Ids in order of their first two bytes, which are uniformly distributed. It knows every id that was in the table
    when it was made, or was added: also such as have gone, and some twice."""

    __slots__ = ("_buckets", "_count")

    def __init__(self, ids: Collection[bytes]) -> None:
        self._count = max(1, min(_PREFIXES, len(ids) // IDS_PER_BUCKET))
        self._buckets: list[list[bytes]] = [[] for _ in range(self._count)]
        self.add(ids)

    def add(self, ids: Iterable[bytes]) -> None:
        buckets, count = self._buckets, self._count
        for block in ids:
            buckets[int.from_bytes(block[:2]) * count // _PREFIXES].append(block)

    def between(self, low: bytes, high: bytes) -> list[bytes]:
        """Ids from `low` to `high`, both included."""
        first, last = self._bucket(low), self._bucket(high)
        return [block for at in range(first, last + 1) for block in self._buckets[at] if low <= block <= high]

    def _bucket(self, block: bytes) -> int:
        return int.from_bytes(block[:2]) * self._count // _PREFIXES
