"""Requests go where their prefix is, unless that worker was given too much lately."""

from __future__ import annotations

import pytest

from kvledger.simulate.placement import Placement


def test_a_request_goes_to_the_longest_prefix() -> None:
    assert Placement(3).choose(10, {1: 4, 2: 8}, 0.0) == 2


def test_without_an_answer_requests_are_spread() -> None:
    placement = Placement(4)
    assert sorted(placement.choose(10, {}, 0.0) for _ in range(4)) == [0, 1, 2, 3]


def test_a_short_match_does_not_draw_everything_to_one_worker() -> None:
    placement = Placement(2, load_weight=0.1)
    chosen = [placement.choose(100, {0: 1}, 0.0) for _ in range(10)]
    assert 4 <= chosen.count(1) <= 6


def test_what_was_given_is_forgotten_with_the_traces_time() -> None:
    placement = Placement(2, load_weight=0.1, half_life_s=1.0)
    for _ in range(10):
        placement.choose(100, {0: 50}, 0.0)
    assert placement.choose(100, {0: 1}, 0.0) == 1
    assert placement.choose(100, {0: 1}, 60.0) == 0


def test_a_clock_that_goes_back_stands_still() -> None:
    placement = Placement(2)
    placement.choose(10, {}, 5.0)
    assert placement.choose(10, {}, 1.0) == 1


@pytest.mark.parametrize(("workers", "half_life_s"), [(0, 1.0), (1, 0.0)])
def test_impossible_settings_are_refused(workers: int, half_life_s: float) -> None:
    with pytest.raises(ValueError, match="needs a worker"):
        Placement(workers, half_life_s=half_life_s)
