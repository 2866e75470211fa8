"""What a tenant is charged for is what its holders hold, however often that is told."""

from __future__ import annotations

from events.fold.apply import apply
from events.fold.state import StreamState
from events.ids import StreamKey, Tier
from events.model.part import BlockEvicted, Cleared, CopyRun, DomainEvent, SnapshotPart, StreamEvent
from tests.support.log import ALIAS, StreamBuilder, block, declared, opened, stored

A, B, C = (block(name) for name in "abc")


class Account:
    """One stream with a GPU and a CPU tier; `used` is (blocks, bytes) by tier after each record."""

    def __init__(self) -> None:
        self.builder = StreamBuilder()
        self.state = StreamState(StreamKey("w0", 0, "e1"), 5)
        self.write(opened(Tier.GPU, Tier.CPU), events=[declared()])

    def write(self, *stream_events: StreamEvent, events: list[DomainEvent]) -> dict[Tier, tuple[int, int]]:
        batch = self.builder.batch(*stream_events, events=events)
        apply(self.state, batch)
        apply(self.state, batch)
        return {
            tier: (usage.blocks, usage.bytes)
            for (alias, tier), usage in self.state.usage.items()
            if alias == ALIAS and usage.blocks
        }


def test_storing_again_neither_adds_nor_zeroes() -> None:
    account = Account()
    assert account.write(events=[stored([A, B])]) == {Tier.GPU: (2, 200)}
    assert account.write(events=[stored([A, B])]) == {Tier.GPU: (2, 200)}
    assert account.write(events=[stored([A, B]), stored([C], B), stored([A])]) == {Tier.GPU: (3, 300)}
    assert account.write(events=[stored([A], holder="cpu")]) == {Tier.GPU: (3, 300), Tier.CPU: (1, 100)}


def test_removing_again_takes_nothing_away_twice() -> None:
    account = Account()
    account.write(events=[stored([A, B, C])])
    gone = BlockEvicted(holder="gpu", group=0, ids=(B,))
    assert account.write(events=[gone, gone]) == {Tier.GPU: (2, 200)}
    assert account.write(events=[gone]) == {Tier.GPU: (2, 200)}
    assert account.write(Cleared(holders=("gpu",)), events=[]) == {}
    assert account.write(events=[stored([A])]) == {Tier.GPU: (1, 100)}


def test_a_snapshot_corrects_usage_to_what_is_held() -> None:
    account = Account()
    account.write(events=[stored([A, B, C])])
    run = CopyRun(profile=0, ids=(A, C), parents=(bytes(16), B))
    for batch in account.builder.snapshot([SnapshotPart(runs=(run,))]):
        apply(account.state, batch)
    assert account.write(events=[]) == {Tier.GPU: (2, 200)}
