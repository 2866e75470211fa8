"""Which worker gets a request: the one that has least to compute for it, counting what it was just given."""

from __future__ import annotations

from collections.abc import Mapping


class Placement:
    """Cost of a worker = blocks that it must compute, plus `load_weight` for each that it was given lately.

    What was given counts half after `half_life_s` of the trace's own time. Without a usable answer every
    worker has all blocks to compute, so the request goes to the least loaded.
    """

    def __init__(self, workers: int, *, load_weight: float = 0.1, half_life_s: float = 10.0) -> None:
        if workers < 1 or half_life_s <= 0:
            raise ValueError("a placement needs a worker and a half-life")
        self._given = [0.0] * workers
        self._at_s = 0.0
        self._load_weight = load_weight
        self._half_life_s = half_life_s

    def choose(self, blocks: int, matched: Mapping[int, int], at_s: float) -> int:
        """Index of the worker for a prompt of that many blocks, which is then counted as given to it.

        `matched` has leading blocks by worker index; workers left out have none. `at_s` is the request's
        arrival; going back in time counts as standing still.
        """
        if at_s > self._at_s:
            decay = 0.5 ** ((at_s - self._at_s) / self._half_life_s)
            self._given = [given * decay for given in self._given]
            self._at_s = at_s
        given = self._given
        best = min(
            range(len(given)),
            key=lambda at: (blocks - matched.get(at, 0) + self._load_weight * given[at], given[at]),
        )
        given[best] += blocks - matched.get(best, 0)
        return best
