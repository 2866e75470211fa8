"""How old a reader's knowledge of a stream is, on the reader's own monotonic clock; no other clock counts.

Nanosecond instants are injected. Rule and its unsafe alternatives: `docs/staleness.md`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass, field

REMEMBERED_BEACONS = 4_096
"""Beacons kept, of anybody, by offset: at 10 a second and 40 readers about ten seconds' worth."""


@dataclass(slots=True)
class BeaconBook:
    """One reader's memory of `kv.signals`: its own beacons with the instant it began to write each, and
    every beacon's nonce by offset, so that an echo of another log or of a truncated one never counts."""

    reader: str
    _writing: dict[bytes, int] = field(default_factory=dict)
    _nonces: OrderedDict[int, bytes] = field(default_factory=OrderedDict)
    _own_offsets: list[int] = field(default_factory=list)
    _own_begun: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        """Beacons remembered, of anybody."""
        return len(self._nonces)

    def began(self, nonce: bytes, now_ns: int) -> None:
        """This reader starts to write a beacon now."""
        self._writing[nonce] = now_ns
        while len(self._writing) > REMEMBERED_BEACONS:
            self._writing.pop(next(iter(self._writing)))

    def read_back(self, offset: int, reader: str, nonce: bytes) -> None:
        """A beacon was read from the log at `offset`. Offsets that don't grow mean a truncated log: all
        that is remembered is void."""
        if self._nonces and offset <= next(reversed(self._nonces)):
            self.truncated()
        self._nonces[offset] = nonce
        begun = self._writing.pop(nonce, None) if reader == self.reader else None
        if begun is not None:
            self._own_offsets.append(offset)
            self._own_begun.append(begun)
        while len(self._nonces) > REMEMBERED_BEACONS:
            self._nonces.popitem(last=False)
        if len(self._own_offsets) > 2 * REMEMBERED_BEACONS:
            del self._own_offsets[:REMEMBERED_BEACONS], self._own_begun[:REMEMBERED_BEACONS]

    def truncated(self) -> None:
        """The log lost records: no echo of what was in it can be trusted."""
        self._nonces.clear()
        self._own_offsets.clear()
        self._own_begun.clear()

    def known(self, offset: int, nonce: bytes) -> bool:
        """Whether this reader itself read that nonce at that offset."""
        return self._nonces.get(offset) == nonce

    def begun_at(self, offset: int, nonce: bytes) -> int | None:
        """When this reader began to write its newest own beacon at or before an echoed one; None if the
        echo isn't of this log or no own beacon is that old."""
        if not self.known(offset, nonce):
            return None
        at = bisect_right(self._own_offsets, offset) - 1
        return self._own_begun[at] if at >= 0 else None


def staleness_ns(now_ns: int, begun_at_ns: int | None, control_current_ns: int | None) -> int | None:
    """Age of a stream's answer: since the own beacon was begun, and never less than since the last fetch of
    `kv.control` that reached its end was started. None: nothing is known, which is older than any bound."""
    if begun_at_ns is None or control_current_ns is None:
        return None
    return max(now_ns - begun_at_ns, now_ns - control_current_ns, 0)
