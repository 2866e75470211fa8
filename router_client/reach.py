"""How much of a prefix an engine can really use: the rule over attention groups, stated once.

A length counts only if every group can serve it: full attention needs every block, a sliding window the last
⌈(window − 1)/block⌉ before that length (the token that is computed next is in its window, too: so vLLM's
SlidingWindowManager counts), a recurrent state a checkpoint at that length. The answer is the longest
such length, which isn't always a prefix of the full-attention match. Lengths are in tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

from events.ids import GroupKind


@dataclass(frozen=True, slots=True)
class GroupReach:
    """One group's rule and what of the prefix it holds.

    `leading`: for full attention, the number of leading blocks held. `held`: for the other kinds, for each
    block of the prefix whether it is held.
    """

    kind: GroupKind
    block_tokens: int
    window: int | None
    leading: int = 0
    held: Sequence[bool] = ()


def longest(groups: Sequence[GroupReach], limit_tokens: int) -> int:
    """The longest length, at most `limit_tokens`, that every group can serve; 0 without groups.

    O(blocks) for windows and recurrent states, O(groups) where all groups are full attention.
    """
    if not groups:
        return 0
    step = lcm(*(group.block_tokens for group in groups))
    top = limit_tokens
    for group in groups:
        blocks = group.leading if group.kind is GroupKind.FULL else len(group.held)
        top = min(top, blocks * group.block_tokens)
    top -= top % step
    sparse = [group for group in groups if group.kind is not GroupKind.FULL]
    if not sparse:
        return top
    runs = [_runs(group.held) for group in sparse]
    for length in range(top, 0, -step):
        if all(_serves(group, run, length) for group, run in zip(sparse, runs, strict=True)):
            return length
    return 0


def _runs(held: Sequence[bool]) -> list[int]:
    """For each block how many blocks up to and with it are held without a hole."""
    runs: list[int] = []
    run = 0
    for here in held:
        run = run + 1 if here else 0
        runs.append(run)
    return runs


def _serves(group: GroupReach, runs: Sequence[int], length: int) -> bool:
    blocks = length // group.block_tokens
    if group.kind is GroupKind.RECURRENT:
        return runs[blocks - 1] > 0
    wanted = -(-((group.window or 1) - 1) // group.block_tokens)
    return runs[blocks - 1] >= min(wanted, blocks)
