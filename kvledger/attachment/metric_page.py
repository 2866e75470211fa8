"""Samples of a page in Prometheus' text format, without its client library: a bridge runs where that isn't."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?$")
_LABEL = re.compile(r'(\w+)="((?:\\.|[^"\\])*)"')
_DIGITS = 15
_ESCAPE = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: `name{labels} value`."""

    name: str
    labels: Mapping[str, str]
    value: float


def samples(page: str) -> Iterator[Sample]:
    """Every sample in order; lines that are none are left out."""
    for line in page.splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        name, labels, value = found.groups()
        try:
            number = float(value)
        except ValueError:
            continue
        if not math.isfinite(number):
            # No counter and no gauge that is read here can be that.
            continue
        pairs = {key: _ESCAPE.sub(_unescape, text) for key, text in _LABEL.findall(labels or "")}
        yield Sample(name, pairs, number)


def total(found: Iterable[Sample], name: str, **labels: str) -> float | None:
    """Sum of the samples of that name which have these labels; None if there is none."""
    values = [
        sample.value
        for sample in found
        if sample.name == name and all(sample.labels.get(key) == value for key, value in labels.items())
    ]
    return sum(values) if values else None


def count_of(text: str | None) -> int | None:
    """A count that stands in a label; None for whatever else stands there."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= _DIGITS else None


def _unescape(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]
