"""The real hooks and the real view are never called wrong in a virtual fleet; each way to break them is."""

from __future__ import annotations

import pytest

from kvledger.simulate.checker import Checker
from kvledger.simulate.lookup import Outcome
from tests.support.mutant import CALM, FURTHER, SPECIFIED, Mutant
from tests.support.virtual_fleet import trial

WRONG = {
    Outcome.WRONG_UNFLAGGED,
    Outcome.UNJUSTIFIED_REFUSAL,
    Outcome.UNJUSTIFIED_EXCLUSION,
    Outcome.UNJUSTIFIED_SILENCE,
}


def told(checker: Checker) -> str:
    return "\n".join(line for one in checker.explanations for line in one.lines())


@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_wrong_or_unjustified_under_any_fault(seed: int) -> None:
    checker = trial(seed).checker
    assert checker.counts.outcomes == {Outcome.OK: checker.counts.lookups}, told(checker)
    assert checker.counts.lookups > 200
    assert checker.counts.strict_share is not None
    assert checker.counts.strict_share > 0.6
    assert checker.counts.absences > 50


@pytest.mark.parametrize(
    ("unconfirmed", "apply_lag_s", "faults"),
    [(True, 0.0, None), (False, 0.2, None), (False, 0.0, ("omit",)), (False, 0.0, CALM)],
)
def test_nothing_is_wrong_where_a_mutant_needs_its_own_circumstances(
    unconfirmed: bool, apply_lag_s: float, faults: tuple[str, ...] | None
) -> None:
    checker = trial(0, unconfirmed=unconfirmed, apply_lag_s=apply_lag_s, faults=faults).checker
    assert checker.counts.outcomes == {Outcome.OK: checker.counts.lookups}, told(checker)


@pytest.mark.parametrize("seed", range(1, 7))
def test_the_calm_leaves_nothing_to_excuse(seed: int) -> None:
    checker = trial(seed, faults=CALM).checker
    assert checker.counts.outcomes == {Outcome.OK: checker.counts.lookups}, told(checker)
    assert checker.counts.strict_share is not None
    assert checker.counts.strict_share > 0.9


def test_a_seed_reproduces_a_run() -> None:
    first, second = trial(7, seconds=4.0), trial(7, seconds=4.0)
    assert first.checker.counts == second.checker.counts
    assert first.struck == second.struck
    assert first.view.token() == second.view.token()


@pytest.mark.parametrize("mutant", SPECIFIED + FURTHER, ids=lambda mutant: mutant.name)
def test_mutant_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.breaks(monkeypatch)
    for seed in range(mutant.seeds):
        counts = trial(
            seed, faults=mutant.faults, unconfirmed=mutant.unconfirmed, apply_lag_s=mutant.apply_lag_s
        ).checker.counts
        if WRONG & counts.outcomes.keys():
            return
    pytest.fail(f"{mutant.name} was not caught in {mutant.seeds} runs")
