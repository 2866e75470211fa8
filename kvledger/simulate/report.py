"""The end of a run on one screen, and as one line for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text


def percentile(values: Iterable[float], share: float) -> float | None:
    """Nearest-rank percentile (`share` from 0 to 1), a value that occurred; None without values."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What a run did. Rates are shares of prompt tokens, `*_ms` milliseconds (None: nothing was measured).

    `wrong_unflagged` counts lookups that the truth contradicts and nothing flagged; `verdict` is that of the
    deletion; `whys` are the first faults that the checker found, in words.
    """

    trace: str
    workers: int
    elapsed_s: float
    requests: int
    events: int
    blocks_stored: int
    blocks_evicted: int
    hit_rate: float
    round_robin_hit_rate: float
    lookups: int
    lookups_refused: int
    unjustified_refusals: int
    wrong_unflagged: int
    lookup_p50_ms: float | None
    lookup_p99_ms: float | None
    visible_p50_ms: float | None
    visible_p99_ms: float | None
    verdict: str | None
    whys: tuple[str, ...] = ()

    def json_line(self) -> str:
        """All fields as one line of JSON without a line end."""
        rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(self).items()}
        return json.dumps(rounded, separators=(",", ":"))

    def render(self) -> Panel:
        """One screen for people; print it on a rich console."""
        table = Table.grid(padding=(0, 3))
        table.add_column(style="dim")
        table.add_column(justify="right")
        table.add_column(style="dim")
        speed = self.requests / self.elapsed_s if self.elapsed_s > 0 else 0.0
        table.add_row("requests", f"{self.requests:,}", f"{speed:,.0f}/s over {self.workers} workers")
        table.add_row("events", f"{self.events:,}", "")
        table.add_row("blocks", f"{self.blocks_stored:,}", f"{self.blocks_evicted:,} evicted")
        gain = self.hit_rate - self.round_robin_hit_rate
        table.add_row(
            "hit rate",
            f"{self.hit_rate:.1%}",
            f"round-robin {self.round_robin_hit_rate:.1%} ({gain:+.1%} points)",
        )
        table.add_row("event to visible", _ms(self.visible_p50_ms), f"p99 {_ms(self.visible_p99_ms)}")
        table.add_row("lookup", _ms(self.lookup_p50_ms), f"p99 {_ms(self.lookup_p99_ms)}")
        table.add_row("lookups", f"{self.lookups:,}", f"{self.lookups_refused:,} refused")
        good = self.wrong_unflagged == 0
        wrong = Text(f"{self.wrong_unflagged:,}", style="bold green" if good else "bold red")
        table.add_row("wrong, unflagged", wrong, "of all answers, judged by the simulator's truth")
        if self.unjustified_refusals:
            table.add_row(
                "refused for no cause", Text(f"{self.unjustified_refusals:,}", style="bold red"), ""
            )
        table.add_row("deletion", Text(self.verdict or "none asked", style="bold"), "")
        for why in self.whys:
            table.add_row("", "", Text(why))
        title = Text(f"{self.trace} in {self.elapsed_s:.1f} s", style="bold")
        return Panel(Group(table), title=title, title_align="left", border_style="green" if good else "red")


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"
