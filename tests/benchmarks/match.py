"""Cost of a lookup by chain length and by the number of depths at which holders end: O(changes x log blocks).

    python -m tests.benchmarks.match [--seconds 0.15] [--model ../shared/models/rooted_view.py] [--json]

`probes` are the masks that were looked at, counted, the same on every machine; the times are not. If the model
is there, it answers the same questions in the same process, and must give the same lengths.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import ceil, log2
from pathlib import Path
from typing import Any

from events.ids import ROOT_PARENT
from router_client.index import PrefixIndex

LENGTHS = (64, 512, 4_096, 32_768)
CHANGES = (1, 2, 4, 8, 16, 32, 64)
MODEL = Path(__file__).parents[2].parent / "shared" / "models" / "rooted_view.py"


@dataclass(frozen=True, slots=True)
class Row:
    """One shape: `holders` end at as many different depths of a chain of `blocks`. Times in microseconds."""

    blocks: int
    holders: int
    probes: int
    bound: int
    match_us: float
    model_us: float | None


class Counted(dict[bytes, int]):
    """Counts how often a mask is asked for."""

    asked = 0

    def get(self, key: bytes, default: Any = None) -> Any:
        self.asked += 1
        return super().get(key, default)


def load_model(path: Path) -> Callable[[], Any] | None:
    """The model's View, or None where the file isn't there."""
    if not path.is_file():
        return None
    spec = importlib.util.spec_from_file_location("rooted_view", path)
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: Callable[[], Any] = module.View
    return made


def timed(call: Callable[[], Any], seconds: float) -> float:
    """Microseconds a call: the best of five rounds, so that a busy neighbour counts less."""
    call()
    best = float("inf")
    for _ in range(5):
        count, began = 0, time.perf_counter()
        while (spent := time.perf_counter() - began) < seconds / 5:
            call()
            count += 1
        best = min(best, spent / count)
    return best * 1e6


def row(blocks: int, holders: int, model: Callable[[], Any] | None, seconds: float) -> Row:
    rng = random.Random(blocks * 100 + holders)
    chain = [rng.randbytes(16) for _ in range(blocks)]
    depths = [blocks * (n + 1) // holders for n in range(holders)]
    rng.shuffle(depths)
    index = PrefixIndex()
    bits = [index.new_bit() for _ in range(holders)]
    for bit, depth in zip(bits, depths, strict=True):
        index.store(bit, chain[:depth], [ROOT_PARENT, *chain[: depth - 1]])
    live = sum(bits)
    expected = dict(zip(bits, depths, strict=True))
    assert index.match(chain, live) == expected
    match_us = timed(lambda: index.match(chain, live), seconds)
    model_us = None
    if model is not None:
        view = model()
        for bit, depth in zip(bits, depths, strict=True):
            view.store(bit, None, chain[:depth])
        assert view.match(chain) == expected
        model_us = timed(lambda: view.match(chain), seconds)
    counted = Counted(index._rooted)
    index._rooted = counted
    index.match(chain, live)
    bound = holders * (ceil(log2(blocks)) + 3) + 1
    return Row(blocks, holders, counted.asked, bound, match_us, model_us)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.15, help="per figure")
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    model = load_model(options.model)
    shapes = [(blocks, holders) for blocks in LENGTHS for holders in CHANGES]
    rows = [row(blocks, holders, model, options.seconds) for blocks, holders in shapes]
    if options.json:
        print(json.dumps({"model": model is not None, "rows": [asdict(one) for one in rows]}))
        return
    if model is None:
        print(f"no model at {options.model}: its column is left out")
    print(f"{'blocks':>8}{'depths':>8}{'probes':>8}{'bound':>8}{'match µs':>11}{'model µs':>11}")
    for one in rows:
        model_us = "" if one.model_us is None else f"{one.model_us:.1f}"
        print(
            f"{one.blocks:8d}{one.holders:8d}{one.probes:8d}{one.bound:8d}{one.match_us:11.1f}{model_us:>11}"
        )


if __name__ == "__main__":
    main()
