"""Samples of a page in Prometheus' text format, without its client library: a bridge runs where that isn't."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?$")
_LABEL = re.compile(r'(\w+)="((?:\\.|[^"\\])*)"')
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


def _unescape(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]
