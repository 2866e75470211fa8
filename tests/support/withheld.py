"""Records that a running service hasn't read yet, though they are in the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from router_client.view import LocalView


class Withheld:
    """From now on what `which` names, by view and partition, stays here until it is handed over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, which: Callable[[LocalView, int], bool]) -> None:
        self.held: list[tuple[Any, ...]] = []
        self._monkeypatch = monkeypatch
        apply = LocalView.apply_record

        def later(view: LocalView, partition: int, *given: Any) -> Any:
            if not which(view, partition):
                return apply(view, partition, *given)
            self.held.append((partition, *given))
            return None

        monkeypatch.setattr(LocalView, "apply_record", later)

    def hand_over(self, view: LocalView) -> None:
        """Ends it: the view reads what was held, and everything else at once."""
        self._monkeypatch.undo()
        for given in self.held:
            view.apply_record(*given)
