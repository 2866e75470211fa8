"""How a command words what it says to people."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 block`, `2 blocks`, `0 leaves`; `plural` where it isn't the noun with an s."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
