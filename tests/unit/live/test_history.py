"""The fold that answers under load are judged by."""

from __future__ import annotations

from tests.live.endurance.history import KEPT_S, Doubt, History

A, B = (1).to_bytes(8, "big"), (2).to_bytes(8, "big")


def stored(*hashes: int) -> dict[str, object]:
    return {"type": "BlockStored", "block_hashes": list(hashes)}


def removed(*hashes: int) -> dict[str, object]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes)}


def test_what_was_true_at_some_moment_of_the_time_is_no_doubt() -> None:
    history = History()
    history.apply(10.0, [stored(1, 2)])
    history.apply(20.0, [removed(2)])

    for blocks in (1, 2):
        assert history.judge([A, B], blocks, 19.0, 21.0) is Doubt.NONE
    assert history.judge([A, B], 0, 9.0, 10.5) is Doubt.NONE


def test_a_block_that_was_gone_before_is_too_much() -> None:
    history = History()
    history.apply(10.0, [stored(1, 2)])
    history.apply(20.0, [removed(2)])

    assert history.judge([A, B], 2, 20.5, 21.0) is Doubt.TOO_MUCH
    assert history.judge([A, B], 3, 11.0, 12.0) is Doubt.TOO_MUCH
    assert history.judge([A, B], 1, 5.0, 6.0) is Doubt.TOO_MUCH


def test_a_block_that_was_there_all_the_time_is_too_little_if_left_out() -> None:
    history = History()
    history.apply(10.0, [stored(1, 2)])

    assert history.judge([A, B], 1, 11.0, 12.0) is Doubt.TOO_LITTLE
    assert history.judge([A, B], 2, 11.0, 12.0) is Doubt.NONE


def test_one_of_two_copies_removed_leaves_the_block() -> None:
    history = History()
    history.apply(10.0, [stored(1), stored(1), removed(1)])

    assert history.held() == {A}
    history.apply(11.0, [removed(1)])
    assert history.held() == set()


def test_a_clear_ends_everything_and_what_came_later_counts() -> None:
    history = History()
    history.apply(10.0, [stored(1, 2)])
    history.apply(11.0, [{"type": "AllBlocksCleared"}, stored(2)])

    assert history.held() == {B}
    assert history.judge([A, B], 1, 11.5, 12.0) is Doubt.TOO_MUCH


def test_what_is_forgotten_leaves_the_newest_count() -> None:
    history = History()
    history.apply(0.0, [stored(1)])
    for number in range(5):
        history.apply(2 * KEPT_S + number, [stored(1)])

    assert history.judge([A], 1, KEPT_S * 2 + 10, KEPT_S * 2 + 11) is Doubt.NONE
