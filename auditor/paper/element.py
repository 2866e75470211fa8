"""What a paper is made of, whatever it is written as; every text is plain and escaped by who writes it. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

Tone = Literal["good", "bad", "waiting", "open"]
"""How a verdict is coloured. The words say it too: colour alone never does."""


@dataclass(frozen=True, slots=True)
class Heading:
    text: str
    level: Literal[2, 3] = 2


@dataclass(frozen=True, slots=True)
class Paragraph:
    """`leads`: stands on one page with what follows."""

    text: str
    leads: bool = False


@dataclass(frozen=True, slots=True)
class Items:
    """A list of sentences."""

    items: Sequence[str]


@dataclass(frozen=True, slots=True)
class Notice:
    """A boxed remark that no reader may miss."""

    title: str
    text: str
    tone: Tone


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values."""

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Table:
    """`caption` says what a row is."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Bars:
    """A figure: numbers from 0 on, drawn to one scale and written out; each with what it means."""

    caption: str
    rows: Sequence[tuple[str, int, str]]


Element = Heading | Paragraph | Items | Notice | Facts | Table | Bars


@dataclass(frozen=True, slots=True)
class Paper:
    """`running` stands at the foot of every page: what the paper renders, and whether that was checked."""

    title: str
    running: str
    elements: Sequence[Element]


def visible(text: str) -> str:
    """The text with every character that could hide, reorder or break it written out as `\\u{…}`: controls, format
    and direction marks, surrogates, separators, unassigned ones."""
    return "".join(
        sign if sign == " " or unicodedata.category(sign)[0] not in "CZ" else f"\\u{{{ord(sign):x}}}"
        for sign in text
    )


def moment(written_ms: int) -> str:
    """A wall clock's milliseconds as UTC, to the second; the bare number where no calendar has it."""
    try:
        when = datetime.fromtimestamp(written_ms / 1_000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{written_ms} ms after 1970"
    return when.strftime("%Y-%m-%d %H:%M:%S UTC")


def span(seconds: float) -> str:
    """A duration in the largest units that say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    if minutes < 90:
        return f"{minutes:.0f} min"
    hours = minutes / 60
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"
