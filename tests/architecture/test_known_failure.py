"""`docs/known-failures.md` names a test that exists for every known failure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "known-failures.md"
LINES = range(1, 57)
CELLS = 5


def rows() -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of every row."""
    for line in TABLE.read_text().splitlines():
        if re.match(r"\| \d+ \|", line):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            yield int(cells[0]), cells


@cache
def names_in(path: str) -> frozenset[str]:
    """Names of a file's tests as pytest has them, without parameters."""
    names: set[str] = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        names.update(
            f"{prefix}{one.name}"
            for one in inner
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name.startswith("test_")
        )
    return frozenset(names)


def test_every_line_is_there_once_and_whole() -> None:
    found = dict(rows())
    assert [number for number, _ in rows()] == list(LINES)
    assert [number for number, cells in found.items() if len(cells) != CELLS or not all(cells)] == []


def test_every_line_names_tests_that_exist() -> None:
    missing: list[str] = []
    for number, cells in rows():
        named = re.findall(r"`([^`]+)`", cells[-1])
        if not named:
            missing.append(f"line {number} names none")
        for test in named:
            path, _, name = test.partition("::")
            if not (ROOT / path).is_file() or name not in names_in(path):
                missing.append(f"line {number}: {test}")
    assert missing == []
