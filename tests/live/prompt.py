"""A prompt as it was sent, and how others are made."""

from __future__ import annotations

import random
from typing import NamedTuple

from tests.live.tiny_model import FIRST_WORD, VOCABULARY


class Prompt(NamedTuple):
    """`rank`: the data-parallel rank that it was sent to; None: the engine chose."""

    tokens: tuple[int, ...]
    domain: str = "default"
    adapter: str | None = None
    rank: int | None = None


def words(source: random.Random, count: int) -> list[int]:
    return [source.randrange(FIRST_WORD, VOCABULARY) for _ in range(count)]
