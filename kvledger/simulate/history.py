"""A run on record: every change of the truth and every lookup, in one file that can be judged again.

JSON lines, compressed where the name ends in `.gz`: a head with the truth as it was and what the checker
allows, then `[operation, arguments, stamps]` for each change and `{"lookup", "verdict"}` for each lookup, in the
order in which they happened. Blocks are the simulator's own keys; nothing of a prompt is in it.
"""

from __future__ import annotations

import gzip
import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, cast

from events.errors import KvledgerError
from kvledger.simulate.lookup import Credit, Exclusion, Lookup, Outcome, Verdict
from kvledger.simulate.refusal_rule import Allowance
from kvledger.simulate.truth import Truth

VERSION = 1


class HistoryError(KvledgerError):
    """The file isn't a whole history; `line` is the first that can't be read, from 1. Take another file."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(f"{path}, line {line}: {reason}")
        self.path = path
        self.line = line


class History:
    """Give it to the checker. In memory it keeps the newest `kept` lookups with their verdicts (`newest`);
    with `path` everything goes to that file, which is overwritten. Close it, or the file lacks its end."""

    def __init__(self, path: Path | None = None, *, kept: int = 256) -> None:
        self.newest: deque[tuple[Lookup, Verdict]] = deque(maxlen=kept)
        self.lines = 0
        self._file = None if path is None else _open(path, "wt")

    def begin(self, truth: Truth, allowance: Allowance) -> None:
        """From now on all is recorded; the checker calls it."""
        if self._file is None:
            return
        self._write({"version": VERSION, "allowance": asdict(allowance), "truth": truth.dump()})
        truth.record(self._changed)

    def judged(self, lookup: Lookup, verdict: Verdict) -> None:
        """A lookup was judged; the checker calls it."""
        self.newest.append((lookup, verdict))
        if self._file is not None:
            self._write({"lookup": asdict(lookup), "verdict": asdict(verdict)})

    def close(self) -> None:
        """Idempotent; nothing is recorded afterwards."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _changed(self, operation: str, arguments: Sequence[object], stamps: Sequence[int]) -> None:
        if self._file is not None:
            self._write([operation, arguments, stamps])

    def _write(self, document: object) -> None:
        assert self._file is not None
        self.lines += 1
        self._file.write(json.dumps(document, separators=(",", ":")) + "\n")


class RecordedClock:
    """Gives the stamps on record, one after the other, and the last one again when there is none."""

    def __init__(self) -> None:
        self.waiting: deque[int] = deque()
        self._now_ns = 0

    def __call__(self) -> int:
        if self.waiting:
            self._now_ns = self.waiting.popleft()
        return self._now_ns


class RecordedRun:
    """A history's truth, which grows as its `lookups` are taken: judge each before the next is taken.

    Raises HistoryError, here and while iterating; OSError if there is no such file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._clock = RecordedClock()
        self.truth = Truth(self._clock)
        self._lines = self._read()
        head = next(self._lines, (1, None))[1]
        if not isinstance(head, dict) or head.get("version") != VERSION:
            raise HistoryError(path, 1, f"no history of version {VERSION}")
        try:
            self.allowance = Allowance(**head["allowance"])
            self.truth.load(head["truth"])
        except (KeyError, TypeError, ValueError) as error:
            raise HistoryError(path, 1, "its head can't be read") from error

    def lookups(self) -> Iterator[tuple[Lookup, Verdict]]:
        """Each lookup in turn, with the verdict of the run itself."""
        for number, document in self._lines:
            try:
                if isinstance(document, list):
                    operation, arguments, stamps = document
                    self._clock.waiting = deque(stamps)
                    self.truth.repeat(operation, arguments)
                    continue
                verdict = document["verdict"] | {"outcome": Outcome(document["verdict"]["outcome"])}
                found = _lookup(document["lookup"]), Verdict(**verdict)
            except (KeyError, TypeError, ValueError) as error:
                raise HistoryError(self._path, number, f"{type(error).__name__}: {error}") from error
            yield found

    def _read(self) -> Iterator[tuple[int, Any]]:
        whole = 0
        with _open(self._path, "rt") as file:
            try:
                for line in file:
                    document = json.loads(line)
                    whole += 1
                    yield whole, document
            except (EOFError, gzip.BadGzipFile, UnicodeDecodeError, json.JSONDecodeError) as error:
                raise HistoryError(self._path, whole + 1, "cut or damaged") from error


def _lookup(document: dict[str, Any]) -> Lookup:
    credits = [
        Credit(**credit | {"tier_blocks": tuple(credit["tier_blocks"]) if credit["tier_blocks"] else None})
        for credit in document["credits"]
    ]
    exclusions = [Exclusion(**one) for one in document["exclusions"]]
    coverage = document["coverage"]
    lists = {
        "credits": credits,
        "exclusions": exclusions,
        "coverage": None if coverage is None else tuple(coverage),
    }
    return Lookup(**document | lists)


def _open(path: Path, mode: str) -> IO[str]:
    if path.name.endswith(".gz"):
        return cast(IO[str], gzip.open(path, mode, compresslevel=3, encoding="utf-8"))
    return cast(IO[str], path.open(mode.replace("t", ""), encoding="utf-8"))
