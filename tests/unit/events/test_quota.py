from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from events.fold.quota import HolderUsage, differs, evaluate, quota_level, shares
from events.ids import QuotaLevel, StreamKey, Tier, Unit
from events.model.control import LimitSet


def stream(name: str) -> StreamKey:
    return StreamKey(name, 0, "e")


def limit(soft: int | None, hard: int | None, unit: Unit = Unit.BLOCKS) -> LimitSet:
    return LimitSet(tenant="t", tier=Tier.GPU, unit=unit, soft=soft, hard=hard)


def test_limit_itself_is_within() -> None:
    assert quota_level(10, 10, 20) is QuotaLevel.WITHIN
    assert quota_level(11, 10, 20) is QuotaLevel.OVER_SOFT_LIMIT
    assert quota_level(20, None, 20) is QuotaLevel.WITHIN
    assert quota_level(21, 10, 20) is QuotaLevel.OVER_HARD_LIMIT
    assert quota_level(1 << 60, None, None) is QuotaLevel.WITHIN


def test_units_and_tiers_are_counted_apart() -> None:
    usage = [
        HolderUsage(stream("a"), "t", Tier.GPU, 6, 600),
        HolderUsage(stream("b"), "t", Tier.GPU, 6, 600),
        HolderUsage(stream("b"), "t", Tier.CPU, 100, 100),
        HolderUsage(stream("b"), "other", Tier.GPU, 100, 100),
    ]
    limits = {
        ("t", Tier.GPU, Unit.BLOCKS): limit(5, 10),
        ("t", Tier.GPU, Unit.BYTES): limit(1_000, 2_000, Unit.BYTES),
    }
    states = evaluate(usage, limits, 7)
    blocks = states["t", Tier.GPU, Unit.BLOCKS]
    assert (blocks.used, blocks.level, blocks.term) == (12, QuotaLevel.OVER_HARD_LIMIT, 7)
    assert [(share.worker, share.amount) for share in blocks.shares] == [("a", 1), ("b", 1)]
    size = states["t", Tier.GPU, Unit.BYTES]
    assert (size.used, size.level, size.shares) == (1_200, QuotaLevel.OVER_SOFT_LIMIT, ())


def test_removed_limit_still_has_a_state_that_says_within() -> None:
    usage = [HolderUsage(stream("a"), "t", Tier.GPU, 6, 0)]
    state = evaluate(usage, {("t", Tier.GPU, Unit.BLOCKS): limit(None, None)}, 1)["t", Tier.GPU, Unit.BLOCKS]
    assert (state.used, state.level) == (6, QuotaLevel.WITHIN)


def test_new_term_alone_is_no_change() -> None:
    limits = {("t", Tier.GPU, Unit.BLOCKS): limit(1, 2)}
    (before,) = evaluate([], limits, 1).values()
    (after,) = evaluate([], limits, 2).values()
    assert not differs(before, after)
    assert differs(None, after)
    (more,) = evaluate([HolderUsage(stream("a"), "t", Tier.GPU, 1, 0)], limits, 2).values()
    assert differs(after, more)


@given(
    st.dictionaries(st.sampled_from([stream(name) for name in "abcdef"]), st.integers(0, 10**15), min_size=1),
    st.integers(0, 10**16),
)
def test_shares_sum_to_the_excess_and_nobody_frees_more_than_it_holds(
    held: dict[StreamKey, int], excess: int
) -> None:
    parts = shares(excess, held)
    assert sum(parts.values()) == min(excess, sum(held.values()))
    assert all(0 < part <= held[key] for key, part in parts.items())
