"""Step times of an engine that `tests.live.timed_server` runs, and what they come to."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ENTRY = struct.Struct("<ddd")
Span = tuple[float, float]
"""From, to; monotonic seconds."""


class Step(NamedTuple):
    """`ended_s` by the monotonic clock; `took_s` since the end of the step before; for `unserved_s` of that the
    machine gave the engine's thread no processor."""

    ended_s: float
    took_s: float
    unserved_s: float


def read_steps(file: Path, after: int = 0) -> list[Step]:
    """Steps from the entry `after` on; an entry that is being written is left for the next time."""
    data = file.read_bytes()[after * ENTRY.size :]
    return [Step(*entry) for entry in ENTRY.iter_unpack(data[: len(data) // ENTRY.size * ENTRY.size])]


def joined(spans: Iterable[Span]) -> list[Span]:
    """The same time in spans that don't touch, in order."""
    found: list[Span] = []
    for began_s, ended_s in sorted(spans):
        if found and began_s <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], ended_s))
        else:
            found.append((began_s, ended_s))
    return found


def standstills(busy: Iterable[Span], steps: Sequence[Step]) -> Iterator[tuple[float, float]]:
    """When each stretch without the end of a step began, and its length, within the time that somebody waited for
    an answer (`busy`)."""
    ends = sorted(step.ended_s for step in steps)
    at = 0
    for began_s, ended_s in joined(busy):
        while at < len(ends) and ends[at] <= began_s:
            at += 1
        last_s = began_s
        while at < len(ends) and ends[at] < ended_s:
            yield last_s, ends[at] - last_s
            last_s = ends[at]
            at += 1
        yield last_s, ended_s - last_s


def quantile(ordered: Sequence[float], share: float) -> float:
    """Of values in order; 0 of none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def spread_ms(values_s: Iterable[float]) -> dict[str, float]:
    """Count, median, p99 and maximum, in milliseconds."""
    ordered = sorted(values_s)
    shown = {
        "p50_ms": quantile(ordered, 0.5),
        "p99_ms": quantile(ordered, 0.99),
        "max_ms": quantile(ordered, 1.0),
    }
    return {"count": len(ordered)} | {name: round(1_000 * value, 3) for name, value in shown.items()}
