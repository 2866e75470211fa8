"""What is shown stays short and is still the real answer."""

from __future__ import annotations

import io

from rich.console import Console

from kvledger.demonstration.stage import Stage


def stage() -> tuple[Stage, io.StringIO]:
    out = io.StringIO()
    return Stage(Console(file=out, width=110)), out


def test_a_long_list_is_shown_by_its_beginning() -> None:
    shown, out = stage()
    shown.request("POST", "/v1/lookup", {"token_ids": list(range(400)), "domain": "acme"})
    assert '"token_ids": [0, 1, 2, "… 397 more"]' in out.getvalue()


def test_a_small_object_stays_on_one_line_and_a_large_one_does_not() -> None:
    shown, out = stage()
    shown.reply(200, {"coverage": {"included": 8, "eligible": 8}, "text": "x" * 60, "more": "y" * 60})
    lines = [line.strip() for line in out.getvalue().splitlines()]
    assert '"coverage": {"included": 8, "eligible": 8},' in lines
    assert "→ 200" in lines


def test_without_a_terminal_progress_is_a_line_for_each_tenth() -> None:
    shown, out = stage()
    with shown.progress(100, "requests") as advance:
        for _ in range(100):
            advance(1, "well")
    lines = out.getvalue().splitlines()
    assert len(lines) == 10
    assert lines[0].strip() == "10 of 100 requests, well"
    assert lines[-1].strip() == "100 of 100 requests, well"


def test_no_rows_are_called_no_rows() -> None:
    shown, out = stage()
    shown.rows([])
    shown.rows([{"worker": "w", "blocks": 3}])
    assert [line.strip() for line in out.getvalue().splitlines()] == ["no rows", "worker=w  blocks=3"]
