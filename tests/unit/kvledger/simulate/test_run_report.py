"""The last screen and the last line."""

from __future__ import annotations

import io
import json
from dataclasses import replace

from rich.console import Console

from kvledger.simulate.report import RunSummary, percentile

SUMMARY = RunSummary(
    trace="conversation",
    workers=4,
    elapsed_s=10.0,
    requests=1200,
    events=3400,
    blocks_stored=20_000,
    blocks_evicted=100,
    hit_rate=0.312345,
    round_robin_hit_rate=0.1,
    lookups=1200,
    lookups_refused=3,
    unjustified_refusals=0,
    wrong_unflagged=0,
    lookup_p50_ms=1.23456,
    lookup_p99_ms=9.0,
    visible_p50_ms=None,
    visible_p99_ms=None,
    verdict="PROVEN",
)


def shown(summary: RunSummary) -> str:
    out = io.StringIO()
    Console(file=out, width=100, height=30).print(summary.render())
    return out.getvalue()


def test_json_is_one_line_with_every_promised_key() -> None:
    line = SUMMARY.json_line()
    promised = (
        "requests, events, blocks_stored, hit_rate, round_robin_hit_rate, wrong_unflagged, lookups, lookups_refused, "
        "lookup_p50_ms, lookup_p99_ms, visible_p50_ms, visible_p99_ms, verdict"
    )
    assert "\n" not in line
    assert set(promised.split(", ")) <= json.loads(line).keys()
    assert json.loads(line)["hit_rate"] == 0.3123


def test_screen_fits_and_shows_what_matters() -> None:
    text = shown(SUMMARY)
    assert len(text.splitlines()) <= 24
    for part in ("31.2%", "10.0%", "+21.2%", "1.2 ms", "PROVEN", "3 refused"):
        assert part in text
    assert "no cause" not in text
    assert "no cause" in shown(replace(SUMMARY, unjustified_refusals=2))


def test_percentile_is_a_value_that_occurred() -> None:
    assert percentile([], 0.5) is None
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile(range(1, 101), 0.99) == 99
    assert percentile([7], 0.99) == 7
