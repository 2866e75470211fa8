"""How many copies of each block an engine has said that it holds, with the moments: a fold of the run's own."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

KEPT_S = 90.0


class Doubt(Enum):
    """What is wrong with a number of blocks that somebody named."""

    NONE = "none"
    TOO_MUCH = "too much"
    TOO_LITTLE = "too little"


class History:
    """Copies by engine hash. One thread tells, others ask. What is older than a minute and a half is forgotten, but
    for the newest."""

    def __init__(self) -> None:
        self._counts: defaultdict[bytes, list[tuple[float, int]]] = defaultdict(list)
        self._lock = threading.Lock()

    def apply(self, at_s: float, events: Iterable[Any]) -> None:
        """The events of one message, in vLLM's map form, all of one moment."""
        with self._lock:
            for event in events:
                if event["type"] == "AllBlocksCleared":
                    for name, counts in self._counts.items():
                        if counts[-1][1]:
                            self._note(name, at_s, 0)
                    continue
                change = 1 if event["type"] == "BlockStored" else -1
                for number in event["block_hashes"]:
                    name = int(number).to_bytes(8, "big")
                    counts = self._counts[name]
                    self._note(name, at_s, max(0, (counts[-1][1] if counts else 0) + change))

    def held(self) -> set[bytes]:
        """Hashes with a copy now."""
        with self._lock:
            return {name for name, counts in self._counts.items() if counts[-1][1] > 0}

    def judge(self, chain: Sequence[bytes], blocks: int, began_s: float, ended_s: float) -> Doubt:
        """Whether so many leading blocks of a prompt, and no more, may have been held at a moment of that time.
        Each block is looked at by itself, so a doubt is only said where there is one."""
        with self._lock:
            if blocks > len(chain):
                return Doubt.TOO_MUCH
            if any(max(self._within(name, began_s, ended_s)) == 0 for name in chain[:blocks]):
                return Doubt.TOO_MUCH
            if blocks < len(chain) and all(
                min(self._within(name, began_s, ended_s)) > 0 for name in chain[: blocks + 1]
            ):
                return Doubt.TOO_LITTLE
            return Doubt.NONE

    def _note(self, name: bytes, at_s: float, count: int) -> None:
        counts = self._counts[name]
        counts.append((at_s, count))
        while len(counts) > 1 and counts[1][0] < at_s - KEPT_S:
            del counts[0]

    def _within(self, name: bytes, began_s: float, ended_s: float) -> list[int]:
        """Its counts in that time, with the one that it begins with."""
        before, found = 0, []
        for at_s, count in self._counts.get(name, ()):
            if at_s <= began_s:
                before = count
            elif at_s <= ended_s:
                found.append(count)
        return [before, *found]
