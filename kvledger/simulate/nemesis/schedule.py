"""Which fault comes next: every kind once in a random order, then by weight; the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

WEIGHTS: Mapping[str, float] = {
    "kill-several": 16.0,
    "kill-serve": 3.0,
    "kill-indexer": 2.0,
    "kill-postgres": 3.0,
    "kill-controller": 3.0,
    "kill-hook": 6.0,
    "kill-worker": 2.0,
    "kill-kafka": 1.0,
    "index-loss": 0.3,
    "truncated-signals": 0.4,
    "truncated-pulse": 0.4,
}
OTHER_WEIGHT = 0.7
"""Of faults that aren't named above. Kills weigh more, as a soak must survive many of them."""


def schedule(names: Sequence[str], rng: random.Random) -> Iterator[str]:
    """Endless; raises ValueError for no names."""
    if not names:
        raise ValueError("nothing to strike with")
    ordered = sorted(names)
    first = list(ordered)
    rng.shuffle(first)
    yield from first
    weights = [WEIGHTS.get(name, OTHER_WEIGHT) for name in ordered]
    while True:
        yield rng.choices(ordered, weights)[0]
