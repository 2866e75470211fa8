"""Every fault put into the fold is caught by the exhaustive scope; the fold as it is passes the same stories."""

from __future__ import annotations

import pytest

from tests.model.events.fold_mutant import MUTANTS, Mutant
from tests.model.events.scope_story import BY_NAME
from tests.model.events.small_scope import decoded_once, explore


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_faulty_fold_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    with decoded_once():
        mutant.apply(monkeypatch)
        report = explore(
            BY_NAME[mutant.plot],
            repeats=mutant.repeats,
            strangers=mutant.strangers,
            stop_at_lie=True,
            most_states=2_000,
        )
    assert report.lies, report
