"""The CPU tier of a simulated engine: copies of what the GPU stores, told by hash alone, outliving a reset."""

from __future__ import annotations

import pytest

from events.hooks.engine_event import BlockRemoved, BlockStored, EngineEvent, EngineTier
from kvledger.simulate.engine import EngineStep, SimEngine
from kvledger.simulate.offload import CpuTier
from kvledger.simulate.residency import ResidencyLog
from kvledger.simulate.trace import TraceRequest
from kvledger.simulate.truth import Truth


class Offloading:
    def __init__(self, capacity_blocks: int) -> None:
        self.now_ns = 0
        self.truth = Truth(self._tick)
        self.log: ResidencyLog = self.truth.log_of("w", 0, "cpu")
        self.engine = SimEngine(
            "w",
            capacity_blocks=8,
            clock_ns=self._tick,
            log=self.truth.log_of("w"),
            cpu=CpuTier(capacity_blocks, self.log),
        )

    def serve(self, *ids: int) -> EngineStep:
        for _ in self.engine.serve(TraceRequest(0.0, None, "acme", ids, 16 * len(ids), 1, 16)):
            pass
        self.engine.drain()
        step = self.engine.take_step()
        assert step is not None
        return step

    def _tick(self) -> int:
        self.now_ns += 1
        return self.now_ns


def of_cpu(events: tuple[EngineEvent, ...]) -> list[EngineEvent]:
    return [
        event
        for event in events
        if isinstance(event, BlockStored | BlockRemoved) and event.tier is EngineTier.CPU
    ]


def test_what_the_gpu_stores_is_copied_and_told_by_hash_alone() -> None:
    one = Offloading(16)
    step = one.serve(1, 2, 3)
    (stored,) = of_cpu(step.events)
    assert isinstance(stored, BlockStored)
    assert (len(stored.hashes), stored.tokens, stored.block_size) == (3, b"", 0)
    assert one.engine.keys_by_tier()["cpu"] == one.engine.keys_by_tier()["gpu"]


def test_what_is_here_already_is_not_told_again() -> None:
    one = Offloading(16)
    one.serve(1, 2)
    assert of_cpu(one.serve(1, 2).events) == []


def test_a_full_tier_drops_what_was_copied_longest_ago() -> None:
    one = Offloading(3)
    first = one.serve(1, 2)
    second = one.serve(3, 4)
    removed = [event for event in of_cpu(second.events) if isinstance(event, BlockRemoved)]
    (stored,) = of_cpu(first.events)
    assert isinstance(stored, BlockStored)
    assert [event.hashes for event in removed] == [stored.hashes[:1]]
    assert len(one.engine.keys_by_tier()["cpu"]) == 3


def test_a_prompt_longer_than_the_tier_leaves_its_end_there() -> None:
    one = Offloading(2)
    one.serve(1, 2, 3, 4)
    assert len(one.engine.keys_by_tier()["cpu"]) == 2


def test_evicted_from_the_gpu_it_is_still_on_the_cpu_until_the_engine_dies() -> None:
    one = Offloading(16)
    prompt = one.engine.plan(TraceRequest(0.0, None, "acme", (1, 2), 32, 1, 16))
    one.serve(1, 2)
    assert one.engine.reset()
    now_ns = one.now_ns
    gpu, cpu = one.truth.levels_of(("w", 0))[:2]
    assert gpu[0].length_at(prompt.keys, now_ns) == 0
    assert [log.length_at(prompt.keys, now_ns) for log in cpu] == [0, 2]
    one.engine.restart()
    assert one.engine.keys_by_tier() == {"gpu": set(), "cpu": set()}
    assert one.log.length_at(prompt.keys, one.now_ns + 1) == 0


def test_what_is_published_includes_this_tier() -> None:
    one = Offloading(16)
    one.serve(1, 2)
    through_ns = one.truth.log_of("w").published_through_ns(one.now_ns + 1)
    assert through_ns > one.log.last_ns


def test_a_tier_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        CpuTier(0, ResidencyLog(lambda: 0))
