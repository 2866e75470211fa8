"""An audit of the index that never ends: rounds at a fixed rate, what they found as figures for a monitor."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from auditor.index_audit import IndexAudit, UnsettledError
from auditor.index_comparison import Round
from auditor.index_snapshot import IndexUnavailableError
from auditor.row_finding import Finding, FindingKind
from events.errors import KvledgerError
from events.kafka.connection import LogUnavailableError

log = logging.getLogger(__name__)
NAMED = 100
"""Findings that are remembered as said already."""


@dataclass(slots=True)
class WatchFigures:
    """Of one process since its start. `last` is the newest round; `failures` counts rounds that couldn't be done, by
    whose fault: log, index, or neither (unsettled)."""

    rounds: int = 0
    copies: int = 0
    busy_s: float = 0.0
    held: int = 0
    """Copies in memory after it."""
    last: Round | None = None
    failures: dict[str, int] = field(default_factory=lambda: {"log": 0, "index": 0, "unsettled": 0})

    def lag_s(self, now_s: float) -> float:
        """How long ago the index was last compared; infinite if never."""
        return float("inf") if self.last is None else now_s - self.last.compared_s

    def oldest_s(self, now_s: float) -> float:
        """How long ago those copies were compared that have waited longest; infinite if never."""
        return float("inf") if self.last is None else now_s - self.last.oldest_s

    def findings(self) -> dict[FindingKind, int]:
        """By kind, as of the last round, every kind named."""
        counts = {} if self.last is None else self.last.findings.counts
        return {kind: counts.get(kind, 0) for kind in FindingKind}


class IndexWatch:
    """`run` it until it is cancelled. A round compares about `most_copies`, those first that have waited longest, and
    rests as long as it takes for the rounds to have no more than `share` of the time, at least `every_s` from one
    begin to the next."""

    def __init__(
        self,
        audit: IndexAudit,
        *,
        monotonic_s: Callable[[], float],
        every_s: float = 5.0,
        share: float = 0.1,
        most_copies: int = 200_000,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._audit, self._monotonic_s, self._sleep = audit, monotonic_s, sleep
        self._every_s, self._share, self._most_copies = every_s, share, most_copies
        self.figures = WatchFigures()
        self._said: dict[Finding, None] = {}

    async def run(self) -> None:
        """Whatever is away, it tries again; what it finds it logs once, and counts as long as it is there."""
        is_open = False
        try:
            while True:
                begun_s = self._monotonic_s()
                try:
                    if not is_open:
                        is_open = await self._open()
                    if is_open:
                        self._take(await self._audit.round(self._most_copies), begun_s)
                except (LogUnavailableError, IndexUnavailableError, UnsettledError) as error:
                    self._failed(error)
                took_s = self._monotonic_s() - begun_s
                await self._sleep(max(self._every_s - took_s, took_s * (1 / self._share - 1)))
        finally:
            await self._audit.close()

    async def _open(self) -> bool:
        """Without a genesis record there is nothing to compare with yet."""
        begun = ""
        try:
            begun = await self._audit.open()
        finally:
            if not begun:
                await self._audit.close()
        return bool(begun)

    def _take(self, found: Round, begun_s: float) -> None:
        figures = self.figures
        figures.rounds += 1
        figures.copies += found.copies
        figures.busy_s += self._monotonic_s() - begun_s
        figures.last, figures.held = found, self._audit.held
        fresh = {finding: None for finding in found.findings.shown}
        for finding in fresh:
            if finding not in self._said:
                log.error("%s", finding, extra={"action": "index_differs"})
        if self._said and not found.findings.total:
            log.warning("the index equals the log again", extra={"action": "index_equal"})
        self._said = dict(list(fresh.items())[:NAMED])

    def _failed(self, error: KvledgerError) -> None:
        """What was read of the log stands: the next round goes on from there."""
        whose = {LogUnavailableError: "log", IndexUnavailableError: "index"}.get(type(error), "unsettled")
        self.figures.failures[whose] += 1
        log.warning("audit of the index waits: %s", error, extra={"action": "index_audit_waits"})
