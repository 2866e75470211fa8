"""A simulated engine's CPU tier, as vLLM's OffloadingConnector fills it and tells of it.

Every block that the GPU stores is copied; the least recently copied go when it is full. By default that
connector names hashes only, without tokens, and a reset of the GPU's cache leaves it as it is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from events.hooks.engine_event import BlockRemoved, BlockStored, EngineEvent, EngineHash, EngineTier
from kvledger.simulate.residency import ResidencyLog

CPU_MEDIUM = "CPU"


class CpuTier:
    """Up to `capacity_blocks` copies; mutations are stamped in `log` when they are made."""

    def __init__(self, capacity_blocks: int, log: ResidencyLog) -> None:
        if capacity_blocks < 1:
            raise ValueError("a tier has at least one block")
        self._capacity = capacity_blocks
        self._log = log
        self._copies: OrderedDict[int, EngineHash] = OrderedDict()

    @property
    def keys(self) -> set[int]:
        """What it holds now."""
        return set(self._copies)

    def offload(self, keys: Sequence[int], hashes: Sequence[EngineHash]) -> list[tuple[EngineEvent, int]]:
        """Copies what isn't here yet; the events in order, each with the stamp of its first mutation."""
        told: list[tuple[EngineEvent, int]] = []
        new: list[tuple[int, EngineHash]] = []
        for key, name in zip(keys, hashes, strict=True):
            if key in self._copies:
                self._copies.move_to_end(key)
            else:
                new.append((key, name))
        new = new[-self._capacity :]
        while len(self._copies) + len(new) > self._capacity:
            key, name = self._copies.popitem(last=False)
            told.append((BlockRemoved((name,), EngineTier.CPU, CPU_MEDIUM), self._log.drop(key)))
        if new:
            self._copies.update(new)
            stored = BlockStored(tuple(name for _, name in new), None, b"", 0, EngineTier.CPU, CPU_MEDIUM)
            told.append((stored, self._log.store([key for key, _ in new])))
        return told

    def die(self, life: str) -> None:
        """The process is gone, and its memory with it."""
        self._copies.clear()
        self._log.begin_life(life)
