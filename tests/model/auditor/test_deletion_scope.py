"""Everything that a small deletion can come to, a few acts deep; the long form goes as deep as ten minutes allow."""

from __future__ import annotations

import pytest

from events.ids import VerdictKind
from tests.model.auditor.deletion_scope import PLOTS, explore
from tests.model.auditor.deletion_world import Act


@pytest.mark.parametrize("plot", sorted(PLOTS))
def test_nothing_that_can_happen_next_makes_a_verdict_unsound(plot: str) -> None:
    states = 0
    for depth, faults in ((2 if plot in ("landing", "answered") else 1, 0), (1, 1)):
        report = explore(PLOTS[plot], depth, faults)
        assert report.complete
        states += report.states
        assert not report.wrong, [str(act) for act in report.wrong[0][1]]
    assert states > 20


def test_a_deletion_is_proven_in_two_acts_once_all_were_asked() -> None:
    report = explore(PLOTS["answered"], 1, 0)
    assert report.verdicts[VerdictKind.PROVEN] > 0


def test_a_rule_that_lacks_a_condition_is_caught() -> None:
    """The worker keeps what it says to have removed; only its statements contradict it."""
    kept = Act("obey", 0, fault="kept")
    start = (Act("compute", 0, 0), Act("request"), kept, Act("obey", 1), Act("nonce"), Act("obey", 1))
    assert not explore(start, 1, 0).wrong
    assert explore(start, 1, 0, without=frozenset({"P7"})).wrong
