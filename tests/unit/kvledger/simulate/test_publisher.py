"""A simulated engine's wire, read by the code that reads real engines: vLLM's bytes, replay, and its faults."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import zmq

from events.hooks.engine_position import EngineMessage
from events.hooks.engine_source import Confirmed, MessagesLost, NewEngineLife, NoAnswer, SourceItem
from events.hooks.vllm import decode_batch
from events.hooks.zmq_source import ZmqSource
from kvledger.simulate.engine import EngineStep, SimEngine
from kvledger.simulate.trace import TraceRequest
from kvledger.simulate.wire.publisher import Publisher

TIMEOUT_S = 20.0


class Wired:
    """An engine, its publisher, and a source that reads it."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], ring_steps: int) -> None:
        self.engine = SimEngine(
            "w", capacity_blocks=64, clock_ns=time.monotonic_ns, salt_of=lambda tenant: f"salt of {tenant}"
        )
        self.publisher = Publisher(self.engine, context, ring_steps=ring_steps)
        self.source: ZmqSource
        self._next_id = 0

    def step(self) -> EngineStep:
        """One step that stores two new blocks, put on the wire."""
        self._next_id += 2
        ids = (self._next_id, self._next_id + 1)
        for _ in self.engine.serve(TraceRequest(0.0, None, "acme", ids, 32, 1, 16)):
            pass
        step = self.engine.take_step(told=False)
        assert step is not None
        self.publisher.publish(step)
        return step

    async def received(self, count: int) -> list[SourceItem]:
        """What the source gives until so many messages have come."""
        items: list[SourceItem] = []
        ends_s = time.monotonic() + TIMEOUT_S
        while sum(isinstance(item, EngineMessage) for item in items) < count and time.monotonic() < ends_s:
            items += await self.source.receive(0.05)
        return items

    async def subscribed(self) -> None:
        """Steps until the subscription has arrived."""
        ends_s = time.monotonic() + TIMEOUT_S
        while time.monotonic() < ends_s:
            self.step()
            if await self.source.receive(0.05):
                return
        raise AssertionError("nothing was received")


@asynccontextmanager
async def wired(ring_steps: int = 1000) -> AsyncIterator[Wired]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    made = Wired(context, ring_steps)
    await made.publisher.open()
    try:
        async with ZmqSource(made.publisher.endpoint, made.publisher.replay_endpoint) as source:
            made.source = source
            await made.subscribed()
            yield made
    finally:
        await made.publisher.close()
        context.term()


def numbers(items: list[SourceItem]) -> list[int]:
    return [item.seq for item in items if isinstance(item, EngineMessage)]


async def test_a_step_is_read_as_what_the_engine_said() -> None:
    async with wired() as wire:
        step = wire.step()
        (message,) = await wire.received(1)
        assert isinstance(message, EngineMessage)
        batch = decode_batch(message.seq, message.payload)
        assert (message.seq, batch.rank, batch.events) == (step.engine_seq, 0, step.events)
        assert wire.publisher.made_ns(batch.raw_sha256) == step.made_ns


async def test_steps_lost_on_the_event_socket_come_by_replay() -> None:
    async with wired() as wire:
        first = wire.engine.next_seq
        wire.publisher.faults.drop = 3
        for _ in range(4):
            wire.step()
        items = await wire.received(4)
        assert numbers(items) == list(range(first, first + 4))
        assert not any(isinstance(item, MessagesLost) for item in items)


async def test_a_step_that_vanishes_is_in_no_replay_and_known_only_with_the_next() -> None:
    async with wired() as wire:
        before_ns = wire.engine.log.published_through_ns(time.monotonic_ns())
        wire.publisher.faults.vanish = 1
        lost = wire.step()
        assert wire.engine.log.published_through_ns(time.monotonic_ns()) == before_ns
        wire.step()
        assert wire.engine.log.published_through_ns(time.monotonic_ns()) > lost.made_ns
        items = await wire.received(1)
        assert MessagesLost(lost.engine_seq, lost.engine_seq) in items


async def test_a_mute_publisher_is_heard_by_confirmation() -> None:
    async with wired() as wire:
        wire.publisher.faults.mute = True
        step = wire.step()
        assert await wire.source.receive(0.05) == []
        outcome = await wire.source.confirm(TIMEOUT_S)
        assert isinstance(outcome, Confirmed)
        assert (outcome.seq, numbers(list(outcome.items))) == (step.engine_seq, [step.engine_seq])


@pytest.mark.parametrize("fault", ["deaf", "endless"])
async def test_a_replay_that_does_not_end_confirms_nothing(fault: str) -> None:
    async with wired() as wire:
        setattr(wire.publisher.faults, fault, True)
        assert isinstance(await wire.source.confirm(0.2), NoAnswer)
        setattr(wire.publisher.faults, fault, False)
        assert isinstance(await wire.source.confirm(TIMEOUT_S), Confirmed)


async def test_a_short_ring_begins_at_its_oldest_record() -> None:
    async with wired() as wire:
        wire.publisher.resize(5)
        wire.publisher.faults.mute = True
        for _ in range(9):
            wire.step()
        answer = await wire.source.replay(0, TIMEOUT_S)
        newest = wire.engine.next_seq - 1
        assert answer.complete
        assert [record.seq for record in answer.records] == list(range(newest - 4, newest + 1))


async def test_repeated_and_late_steps_are_taken_once_and_in_order() -> None:
    async with wired() as wire:
        wire.publisher.faults.repeat = True
        wire.publisher.faults.delay_s = 0.05
        first = wire.engine.next_seq
        for _ in range(5):
            wire.step()
        assert numbers(await wire.received(5)) == list(range(first, first + 5))


async def test_another_life_answers_at_the_same_addresses() -> None:
    async with wired() as wire:
        before = (wire.publisher.endpoint, wire.publisher.replay_endpoint)
        await wire.publisher.close()
        wire.engine.restart()
        await wire.publisher.open()
        assert (wire.publisher.endpoint, wire.publisher.replay_endpoint) == before
        wire.step()
        assert isinstance(await wire.source.confirm(TIMEOUT_S), NewEngineLife)
        again = await wire.source.confirm(TIMEOUT_S)
        assert isinstance(again, Confirmed)
        assert again.seq == 0
