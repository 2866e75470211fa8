"""What the demonstration shows: titles, real requests and answers, moments in time, a progress bar."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.rule import Rule
from rich.text import Text

from kvledger.simulate.report import RunSummary

LONGEST_LIST = 3
WIDEST = 104
LINES = 10
LINE_WITHOUT_TOTAL = 1000


class Stage:
    """Prints on one console; a list longer than a few entries is shown by its beginning."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, text: str) -> None:
        """One line of plain words."""
        self._console.print(Text(text), highlight=False)

    def scene(self, title: str, about: str) -> None:
        """Begins a section."""
        self._console.print()
        self._console.print(Rule(Text(title, style="bold"), align="left"))
        self._console.print(Text(about, style="dim"))

    def command(self, line: str) -> None:
        """A command line as a person would type it."""
        self._console.print(Text.assemble(("  $ ", "dim"), (line, "bold cyan")))

    def request(self, method: str, target: str, document: Mapping[str, Any] | None = None) -> None:
        """A request to the lookup service."""
        self._console.print(Text.assemble((f"  {method} ", "bold cyan"), (target, "cyan")))
        if document:
            self._json(document)

    def reply(self, status: int, document: Mapping[str, Any]) -> None:
        """Its answer, or the part of it that matters here."""
        style = "bold green" if status < 400 else "bold yellow"
        self._console.print(Text.assemble(("  → ", "dim"), (str(status), style)))
        self._json(document)

    def printed(self, document: Mapping[str, Any]) -> None:
        """What a command has said."""
        self._json(document)

    def moment(self, at_ms: float, text: str) -> None:
        """Something that began so many milliseconds after the scene's event."""
        self._console.print(Text.assemble((f"  {at_ms:>7,.0f} ms  ", "dim"), text))

    def rows(self, rows: list[dict[str, Any]]) -> None:
        """Rows of a query, one a line."""
        if not rows:
            self._console.print(Text("    no rows", style="dim"))
        for row in rows:
            line = Text("    ")
            for name, value in row.items():
                line.append(f"{name}=", style="dim")
                line.append(f"{value}  ")
            self._console.print(line, soft_wrap=True)

    def summary(self, summary: RunSummary) -> None:
        """The last screen."""
        self._console.print()
        self._console.print(summary.render())

    @contextmanager
    def progress(self, total: int | None, unit: str) -> Iterator[Callable[[int, str], None]]:
        """A bar while the block runs, or a line now and then where there is no terminal; call what is given
        with (number done since, a word on how it goes)."""
        if not self._console.is_terminal:
            yield self._lines(total, unit)
            return
        columns = (
            TextColumn("  {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[how]}"),
        )
        with Progress(*columns, console=self._console, refresh_per_second=4) as bar:
            task = bar.add_task(unit, total=total, how="")
            yield lambda done, how: bar.update(task, advance=done, how=how)

    def _lines(self, total: int | None, unit: str) -> Callable[[int, str], None]:
        every = max(1, total // LINES) if total else LINE_WITHOUT_TOTAL
        done, shown = 0, 0

        def advance(more: int, how: str) -> None:
            nonlocal done, shown
            done += more
            if done // every > shown or (done == total and more):
                shown = done // every
                self.say(f"  {done:,}{f' of {total:,}' if total else ''} {unit}, {how}")

        return advance

    def _json(self, document: Mapping[str, Any]) -> None:
        text = JSONHighlighter()(Text(_laid_out(_shortened(document), 4)))
        self._console.print(Text("    ") + text, soft_wrap=True)


def _laid_out(value: Any, indent: int) -> str:
    """JSON whose small objects and lists stay on one line."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(flat) + indent <= WIDEST or not isinstance(value, dict | list) or not value:
        return flat
    pad = " " * (indent + 2)
    if isinstance(value, dict):
        inner = [f"{pad}{json.dumps(name)}: {_laid_out(one, indent + 2)}" for name, one in value.items()]
        return "{\n" + ",\n".join(inner) + "\n" + " " * indent + "}"
    return "[\n" + ",\n".join(pad + _laid_out(one, indent + 2) for one in value) + "\n" + " " * indent + "]"


def _shortened(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _shortened(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        shown = [_shortened(inner) for inner in value[:LONGEST_LIST]]
        return [*shown, f"… {len(value) - LONGEST_LIST} more"] if len(value) > LONGEST_LIST else shown
    if isinstance(value, float):
        return round(value, 1)
    if isinstance(value, str) and len(value) > 72:
        return f"{value[:60]}…"
    return value
