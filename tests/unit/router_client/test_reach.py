"""The rule over attention groups against a naive one that tries every length block by block."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from events.ids import GroupKind
from router_client.reach import GroupReach, longest

KINDS = st.sampled_from([*GroupKind])


@st.composite
def groups(draw: st.DrawFn) -> tuple[GroupKind, int, int | None, list[bool]]:
    kind, size = draw(KINDS), draw(st.sampled_from([1, 2, 4]))
    window = draw(st.integers(1, 9)) if kind is GroupKind.SLIDING_WINDOW else None
    return kind, size, window, draw(st.lists(st.booleans(), max_size=24 // size))


def naive(drawn: list[tuple[GroupKind, int, int | None, list[bool]]], limit: int) -> int:
    """What attention needs, token by token, for every length from the longest down."""
    for length in range(limit, 0, -1):
        if all(serves(*group, length) for group in drawn):
            return length
    return 0


def serves(kind: GroupKind, size: int, window: int | None, held: list[bool], length: int) -> bool:
    if length % size or length // size > len(held):
        return False
    blocks = held[: length // size]
    if kind is GroupKind.FULL:
        return all(blocks)
    if kind is GroupKind.RECURRENT:
        return blocks[-1]
    # The next token sees itself and the window - 1 before it.
    seen = range(max(0, length + 1 - (window or 1)), length)
    return all(blocks[position // size] for position in seen)


@given(drawn=st.lists(groups(), min_size=1, max_size=3), limit=st.integers(0, 24))
def test_longest_length_equals_the_naive_rule(
    drawn: list[tuple[GroupKind, int, int | None, list[bool]]], limit: int
) -> None:
    reaches = []
    for kind, size, window, held in drawn:
        leading = next((at for at, here in enumerate(held) if not here), len(held))
        if kind is GroupKind.FULL:
            reaches.append(GroupReach(kind, size, None, leading))
        else:
            reaches.append(GroupReach(kind, size, window, held=held))
    assert longest(reaches, limit) == naive(drawn, limit)


def test_a_window_of_whole_blocks_and_one_token_needs_only_the_blocks() -> None:
    full = GroupReach(GroupKind.FULL, 16, None, leading=4)
    held = [False, False, True, True]
    assert longest([full, GroupReach(GroupKind.SLIDING_WINDOW, 16, 33, held=held)], 64) == 64
    assert longest([full, GroupReach(GroupKind.SLIDING_WINDOW, 16, 34, held=held)], 64) == 0


def test_without_groups_nothing_is_served() -> None:
    assert longest([], 100) == 0


def test_a_checkpoint_can_serve_more_than_a_shorter_length_with_a_hole() -> None:
    full = GroupReach(GroupKind.FULL, 16, None, leading=6)
    state = GroupReach(GroupKind.RECURRENT, 16, None, held=[False, False, True, False, True, False])
    assert longest([full, state], 96) == 80
