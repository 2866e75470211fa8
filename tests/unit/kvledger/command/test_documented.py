"""Commands in the documents exist, with the options that are written there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from typer.main import get_command

from kvledger.cli import make_app

PAGES = [Path("README.md"), *sorted(Path("docs").glob("*.md"))]
WRITTEN = re.compile(r"^(?:    |\t)?(?:[A-Z_]+=\S+ )*(?:\S*/)?kvledger (\S.*)$", re.MULTILINE)


def examples() -> list[tuple[str, str]]:
    """(page, what follows `kvledger`) of every line of its own, lines that go on joined."""
    found = []
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL) + re.findall(
            r"(?:^    .*\n)+", text, re.MULTILINE
        )
        found += [(page.name, line) for block in blocks for line in WRITTEN.findall(block)]
    return found


def fault(root: Any, line: str) -> str:
    """What is wrong with a written command; empty if nothing is."""
    plain = re.split(r" [&|>](?: |$)", line)[0].replace("[", " ").replace("]", " ")
    words, command = shlex.split(plain, comments=True), root
    while words and hasattr(command, "commands"):
        if words[0] not in command.commands:
            return f"there is no {words[0]}"
        command = command.commands[words.pop(0)]
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help"}
    strange = {word.partition("=")[0] for word in words if word.startswith("--")} - known
    return f"there is no {', '.join(sorted(strange))}" if strange else ""


def test_documented_commands_have_their_options() -> None:
    root = get_command(make_app())
    assert [(page, line, why) for page, line in examples() if (why := fault(root, line))] == []


def test_there_are_examples_to_look_at() -> None:
    assert len(examples()) > 40
