"""Snapshots, epochs and heartbeats of an engine that has them, as they are proposed, through real sockets."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from events.hooks.engine_adapter import SGLANG, VLLM, EngineAdapter
from events.hooks.engine_recovery import Heartbeat, read_snapshot
from events.hooks.vllm import decode_batch
from events.ids import Inventory
from events.model.part import Cleared
from tests.support.bridged_stream import LONG_S, Bridged, bridged
from tests.support.raw_engine import END, SNAPSHOT, RawEngine, numbered
from tests.support.vllm_message import CLEARED, SIZE, removed
from tests.support.vllm_message import ids as block_ids
from tests.support.vllm_message import message as batch
from tests.support.vllm_message import stored as plain_stored

BEAT = b"heartbeat"


def read_heartbeat(frames: Sequence[bytes]) -> Heartbeat | None:
    """Of this test's engine: a frame that says so, the next number, and the epoch."""
    if len(frames) != 4 or frames[1] != BEAT:
        return None
    return Heartbeat(frames[3].decode(), struct.unpack(">q", frames[2])[0])


NEWER: EngineAdapter = replace(VLLM, read_heartbeat=read_heartbeat, snapshot_question=SNAPSHOT)


def beat(epoch: str, next_seq: int) -> list[bytes]:
    return [b"kv", BEAT, struct.pack(">q", next_seq), epoch.encode()]


@pytest.fixture
async def engine() -> AsyncIterator[RawEngine]:
    async with RawEngine() as engine:
        yield engine


@pytest.fixture
async def reader(engine: RawEngine) -> AsyncIterator[Bridged]:
    async with bridged(engine.endpoint, engine.replay_endpoint, adapter=NEWER) as reader:
        yield reader


def stored(name: int, parent: int | None = None, **changes: Any) -> dict[str, Any]:
    return plain_stored([name], [name] * SIZE, **{"parent_block_hash": parent, **changes})


def ids(*names: int) -> list[bytes]:
    """Of a prompt of one block for each name."""
    return block_ids([name for name in names for _ in range(SIZE)])


async def said(engine: RawEngine, reader: Bridged, *frames: bytes) -> None:
    """Until the subscription has brought it."""
    async with asyncio.timeout(LONG_S):
        before = reader.beats
        while reader.beats == before:
            await engine.send(*frames)
            await reader.drain()


class TestSnapshot:
    async def test_it_stands_for_a_history_that_is_gone(self, engine: RawEngine) -> None:
        """Blocks 1 and 2 are held; 9 is a helper that only names a parent."""
        engine.sent = [(seq, batch(stored(40 + seq))) for seq in range(50)]
        gone = engine.sent[:48]
        engine.answer = lambda start: [numbered(s, p) for s, p in engine.sent[48:] if s >= start] + [END]
        engine.snapshot = [
            numbered(49, batch(CLEARED, stored(9), stored(1, 9))),
            numbered(49, batch(stored(2), removed(9))),
            END,
        ]
        assert gone
        async with bridged(engine.endpoint, engine.replay_endpoint, adapter=NEWER) as reader:
            folded = reader.folded
            assert folded.credited() == {ids(9, 1)[1], *ids(2), *ids(89)}
            # It isn't a clear of the engine, and nobody takes from it that nothing else is there.
            assert not any(
                isinstance(event, Cleared) for told in folded.translations for event in told.stream_events
            )
            assert folded.state.holders["gpu"].inventory is Inventory.PARTIAL
            await engine.publish(batch(stored(3)))
            await reader.reached(50)
            assert folded.credited() >= {*ids(3), *ids(2)}

    async def test_a_whole_history_needs_none(self, engine: RawEngine) -> None:
        engine.sent = [(0, batch(stored(1)))]
        engine.snapshot = [numbered(1, batch(CLEARED, stored(7))), END]
        async with bridged(engine.endpoint, engine.replay_endpoint, adapter=NEWER) as reader:
            assert reader.folded.credited() == set(ids(1))
            assert reader.folded.stream.inventory_known()

    @pytest.mark.parametrize(
        "parts",
        [
            [END],
            [numbered(3, batch(stored(7)))],
            [numbered(3, batch(stored(7))), numbered(4, batch(stored(8))), END],
            [numbered(3, b"\xc1"), END],
        ],
        ids=["none", "cut", "of two moments", "unreadable"],
    )
    async def test_one_that_is_none_changes_nothing(
        self, engine: RawEngine, parts: list[list[bytes]]
    ) -> None:
        engine.sent = [(seq, batch(stored(seq))) for seq in range(3)]
        engine.answer = lambda start: [numbered(s, p) for s, p in engine.sent[1:] if s >= start] + [END]
        engine.snapshot = parts
        settings = {"adapter": NEWER, "attach_s": 3.0}
        async with bridged(engine.endpoint, engine.replay_endpoint, **settings) as reader:  # type: ignore[arg-type]
            assert reader.folded.credited() == {*ids(1), *ids(2)}
            assert reader.bridge.counts.lost_messages == 1

    def test_what_is_resident_is_what_an_inspection_of_the_pool_would_say(self) -> None:
        parts = [
            batch(CLEARED, stored(9), stored(1, 9), stored(1, 9)),
            batch(removed(9), stored(2, medium="CPU")),
        ]
        snapshot = read_snapshot([decode_batch(4, part) for part in parts])
        (name,) = {name for table in snapshot.resident().values() for name in table}
        assert snapshot.resident() == {0: {name: 2}}
        assert snapshot.resume_seq == 4


class TestHeartbeat:
    async def test_an_idle_engine_is_told_from_one_whose_events_do_not_come(
        self, engine: RawEngine, reader: Bridged
    ) -> None:
        assert not await reader.confirmed()
        await said(engine, reader, *beat("e1", 0))
        assert await reader.confirmed()
        assert not reader.folded.copies()

    async def test_a_tail_that_was_lost_is_fetched_at_once(self, engine: RawEngine, reader: Bridged) -> None:
        await engine.publish(batch(stored(1)))
        await reader.upto(1)
        engine.sent.append((1, batch(stored(2))))
        await said(engine, reader, *beat("e1", 2))
        assert reader.folded.credited() == {*ids(1), *ids(2)}

    async def test_another_epoch_is_another_life_whatever_the_numbers_say(
        self, engine: RawEngine, reader: Bridged
    ) -> None:
        await engine.publish(batch(stored(1)))
        await reader.upto(1)
        await said(engine, reader, *beat("e1", 1))
        assert reader.bridge.counts.lives == 1
        engine.sent = [(0, batch(stored(1))), (1, batch(stored(5)))]
        await said(engine, reader, *beat("e2", 2))
        assert reader.bridge.counts.lives == 2
        assert reader.folded.credited() == {*ids(1), *ids(5)}

    async def test_to_an_adapter_that_knows_none_it_is_frames_that_are_counted(
        self, engine: RawEngine
    ) -> None:
        async with bridged(engine.endpoint, engine.replay_endpoint) as reader:
            async with asyncio.timeout(LONG_S):
                while not reader.bridge.counts.unreadable:
                    await engine.send(*beat("e1", 0))
                    await reader.drain()
            assert reader.folded.state.unknown_events == reader.bridge.counts.unreadable


def test_no_released_engine_has_any_of_it() -> None:
    for adapter in (VLLM, SGLANG):
        assert adapter.read_heartbeat is None
        assert adapter.snapshot_question is None
