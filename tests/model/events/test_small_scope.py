"""The exhaustive small scope, as far as a test run has time for; more with the module's own `main`."""

from __future__ import annotations

import pytest

from tests.model.events.scope_plot import Plot
from tests.model.events.scope_story import PLOTS
from tests.model.events.small_scope import decoded_once, explore


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.name)
@pytest.mark.parametrize(("repeats", "strangers", "most"), [(0, 0, 350), (1, 1, 200)])
def test_the_view_never_credits_what_the_worker_may_lack(
    plot: Plot, repeats: int, strangers: int, most: int
) -> None:
    with decoded_once():
        report = explore(plot, repeats=repeats, strangers=strangers, most_states=most)
    print(report)
    assert not report.lies, report.lies[0]
    assert report.complete or report.states == most
    assert report.faultless
