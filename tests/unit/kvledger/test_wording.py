"""A command says `1 member` and `2 members`, whatever it counts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvledger.wording import counted

COUNTED = re.compile(
    r"\}(?: (?!for|serve)[a-z-]+)? (?:blocks|copies|differences|files|holders|leaves|lives|lookups|members|operations|"
    r"reasons|records|requests|restarts|segments|streams|strikes|violations|witnesses|workers)\b"
)
COMMANDS = Path(__file__).parents[3] / "kvledger" / "command"


@pytest.mark.parametrize(
    ("number", "words", "said"),
    [
        (1, ("member",), "1 member"),
        (2, ("member",), "2 members"),
        (0, ("leaf", "leaves"), "0 leaves"),
        (1, ("leaf", "leaves"), "1 leaf"),
    ],
)
def test_one_is_not_said_like_many(number: int, words: tuple[str, ...], said: str) -> None:
    assert counted(number, *words) == said


def test_no_command_writes_a_number_before_a_plural_that_may_be_one() -> None:
    found = [
        f"{path.name}: {line.strip()}"
        for path in sorted(COMMANDS.glob("*.py"))
        for line in path.read_text().splitlines()
        if COUNTED.search(line)
    ]
    assert found == []
