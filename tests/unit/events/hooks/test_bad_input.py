"""What an engine should never say, in bytes through real sockets: each costs itself, visibly, and nothing else."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncIterator

import pytest

from events.identity import Extra
from events.ids import CopyState, Inventory
from tests.support.bridged_stream import LONG_S, Bridged, bridged
from tests.support.folded_stream import FoldedStream
from tests.support.raw_engine import END, RawEngine, numbered
from tests.support.vllm_message import SIZE, ids, removed, stored
from tests.support.vllm_message import message as batch


@pytest.fixture
async def engine() -> AsyncIterator[RawEngine]:
    async with RawEngine() as engine:
        yield engine


@pytest.fixture
async def reader(engine: RawEngine) -> AsyncIterator[Bridged]:
    async with bridged(engine.endpoint, engine.replay_endpoint) as reader:
        yield reader


def prompt(blocks: int, first: int = 100) -> list[int]:
    return list(range(first, first + blocks * SIZE))


GOOD = stored([1, 2], prompt(2))


def lost_all_certainty(folded: FoldedStream) -> bool:
    return not folded.credited() and folded.state.holders["gpu"].inventory is Inventory.PARTIAL


async def test_a_batch_that_is_none_is_a_hole_in_its_place_and_said_as_an_error(
    engine: RawEngine, reader: Bridged, caplog: pytest.LogCaptureFixture
) -> None:
    await engine.publish(batch(GOOD))
    await engine.publish(b"\xc1\xff no msgpack")
    await engine.publish(batch(stored([3], prompt(1, 500))))
    with caplog.at_level(logging.ERROR):
        folded = await reader.upto(3)
    assert folded.credited() == set(ids(prompt(1, 500)))
    assert {copy[1].state for copy in folded.copies().values()} == {CopyState.COMMITTED, CopyState.UNCERTAIN}
    assert folded.state.unknown_events == 1
    assert reader.bridge.counts.unreadable == 1
    assert "can't be read" in caplog.text


async def test_one_event_that_is_none_costs_itself_and_what_it_may_have_changed(
    engine: RawEngine, reader: Bridged, caplog: pytest.LogCaptureFixture
) -> None:
    await engine.publish(
        batch(GOOD, stored([3], prompt(1), block_hashes="three"), stored([4], prompt(1, 500)))
    )
    with caplog.at_level(logging.ERROR):
        folded = await reader.upto(1)
    assert folded.credited() == set(ids(prompt(1, 500)))
    assert folded.state.unknown_events == 1
    assert folded.state.holders["gpu"].inventory is Inventory.PARTIAL
    assert reader.bridge.counts.malformed == 1
    assert "BlockStored: block_hashes" in caplog.text


async def test_an_engine_that_renames_its_fields_is_an_alarm_once_and_counted_each_time(
    engine: RawEngine, reader: Bridged, caplog: pytest.LogCaptureFixture
) -> None:
    """A changed encoding must not look like an idle engine."""
    for number in range(20):
        event = stored([number], prompt(1, 100 * number))
        event["hashes"] = event.pop("block_hashes")
        await engine.publish(batch(event))
    with caplog.at_level(logging.ERROR):
        folded = await reader.upto(20)
    assert folded.state.unknown_events == 20
    assert reader.bridge.counts.malformed == 20
    assert lost_all_certainty(folded)
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1


async def test_an_encoding_that_nobody_reads_is_said_once_and_counted_each_time(
    engine: RawEngine, reader: Bridged, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(20):
        await engine.publish(b"\xa5proto" + bytes([number]))
    with caplog.at_level(logging.WARNING, logger="events.hooks"):
        folded = await reader.upto(20)
    assert reader.bridge.counts.unreadable == 20
    assert folded.state.unknown_events == 20
    assert lost_all_certainty(folded)
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1


async def test_kinds_and_media_that_are_newer_are_flagged_and_named_once(
    engine: RawEngine, reader: Bridged, caplog: pytest.LogCaptureFixture
) -> None:
    await engine.publish(batch(GOOD))
    for _ in range(3):
        await engine.publish(batch({"type": "BlockPinned", "block_hashes": [1]}, removed(1, medium="TAPE")))
    with caplog.at_level(logging.WARNING):
        folded = await reader.upto(4)
    assert folded.credited() == set(ids(prompt(2)))
    assert folded.state.unknown_events == 6
    counts = reader.bridge.counts
    assert (counts.unknown_kinds, counts.unknown_media) == (3, 3)
    told = [record.getMessage() for record in caplog.records]
    assert [len([line for line in told if word in line]) for word in ("BlockPinned", "TAPE")] == [1, 1]


async def test_newer_fields_are_ignored(engine: RawEngine, reader: Bridged) -> None:
    await engine.publish(batch(stored([1, 2], prompt(2), priority=3, origin={"node": [1]})))
    folded = await reader.upto(1)
    assert folded.credited() == set(ids(prompt(2)))
    assert folded.state.unknown_events == 0
    assert await reader.confirmed()


async def test_a_parent_that_was_never_seen_makes_orphans_down_the_chain(
    engine: RawEngine, reader: Bridged
) -> None:
    await engine.publish(batch(stored([5], prompt(1), parent_block_hash=4)))
    await engine.publish(batch(stored([6], prompt(1), parent_block_hash=5)))
    folded = await reader.upto(2)
    assert not folded.copies()
    assert folded.stream.orphan_counts() == (2, 0)
    await engine.publish(batch(removed(5), removed(6)))
    folded = await reader.upto(3)
    assert folded.stream.orphan_counts() == (0, 0)


@pytest.mark.parametrize("tokens", [[], prompt(1), prompt(2)[:-1], prompt(3)])
async def test_token_ids_of_the_wrong_count_name_nothing(
    engine: RawEngine, reader: Bridged, tokens: list[int]
) -> None:
    await engine.publish(batch(stored([1, 2], tokens)))
    folded = await reader.upto(1)
    assert not folded.copies()
    assert folded.stream.orphan_counts() == (2, 0)


@pytest.mark.parametrize("value", [None, "abc", [1.5] * 32, [-1] * 32, [1 << 32] * 32, {}])
async def test_token_ids_that_are_none_are_a_loss(engine: RawEngine, reader: Bridged, value: object) -> None:
    await engine.publish(batch(GOOD))
    event = stored([3, 4], prompt(2, 500))
    event["token_ids"] = value
    await engine.publish(batch(event))
    folded = await reader.upto(2)
    assert lost_all_certainty(folded)
    assert folded.state.unknown_events == 1


async def test_token_ids_left_out_are_a_loss(engine: RawEngine, reader: Bridged) -> None:
    event = stored([3], [])
    del event["token_ids"]
    await engine.publish(batch(GOOD))
    await engine.publish(batch(event))
    assert lost_all_certainty(await reader.upto(2))


async def test_a_negative_offset_of_an_image_is_part_of_the_id(engine: RawEngine, reader: Bridged) -> None:
    """It began in an earlier block."""
    keys = [[["img", 5]], [["img", -11]]]
    await engine.publish(batch(stored([1, 2], prompt(2), extra_keys=keys)))
    folded = await reader.upto(1)
    extras = [Extra(modality=(("img", at),), prompt_embeds=()).to_bytes() for at in (5, -11)]
    assert folded.credited() == set(ids(prompt(2), extras=extras))


@pytest.mark.parametrize(
    "name", [0, 1, 127, 128, 65_536, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -1, -(1 << 63)]
)
async def test_hashes_are_integers_of_any_width(engine: RawEngine, reader: Bridged, name: int) -> None:
    await engine.publish(batch(stored([name], prompt(1))))
    await engine.publish(batch(stored([77], prompt(2)[SIZE:], parent_block_hash=name)))
    folded = await reader.upto(2)
    assert folded.credited() == set(ids(prompt(2)))
    await engine.publish(batch(removed(name)))
    assert (await reader.upto(3)).credited() == {ids(prompt(2))[1]}


@pytest.mark.parametrize("length", [1, 8, 16, 32, 64])
async def test_hashes_are_bytes(engine: RawEngine, reader: Bridged, length: int) -> None:
    await engine.publish(batch(stored([b"\xfe" * length], prompt(1)), removed(b"\xfd" * length)))
    folded = await reader.upto(1)
    assert folded.credited() == set(ids(prompt(1)))
    assert folded.stream.removed_unknown == 1


async def test_an_integer_beyond_64_bits_is_a_loss(engine: RawEngine, reader: Bridged) -> None:
    """msgpack has none, so an engine must have sent something else."""
    await engine.publish(batch(GOOD))
    await engine.publish(batch(stored([struct.pack(">9Q", *[1] * 9)], prompt(1))))
    assert lost_all_certainty(await reader.upto(2))


async def test_empty_lists_change_nothing(engine: RawEngine, reader: Bridged) -> None:
    await engine.publish(batch(GOOD))
    await engine.publish(batch())
    await engine.publish(batch(stored([], []), removed(), stored([], prompt(2))))
    folded = await reader.upto(3)
    assert folded.credited() == set(ids(prompt(2)))
    assert folded.stream.orphan_counts() == (0, 0)
    assert folded.state.unknown_events == 0
    assert await reader.confirmed()


async def test_another_engine_s_topic_is_left_out(engine: RawEngine) -> None:
    async with bridged(engine.endpoint, engine.replay_endpoint, topic="kv@w0") as reader:
        engine.answer = lambda start: [
            [b"kv@w0", *frames[1:]] if frames is not END else END for frames in engine.honest(start)
        ]
        async with asyncio.timeout(LONG_S):
            while not reader.bridge.counts.foreign_topics:
                # Its subscription is a prefix, so this one comes through.
                await engine.publish(batch(stored([9], prompt(1, 900))), topic=b"kv@w01", seq=7)
                await reader.bridge.confirm(0.2)
        assert reader.bridge.counts.messages == 0
        await engine.publish(batch(GOOD), topic=b"kv@w0")
        folded = await reader.upto(1)
        assert folded.credited() == set(ids(prompt(2)))
        assert len(reader.hook.lives) == 1


async def test_sockets_of_two_engines_are_never_confirmed_as_one(engine: RawEngine) -> None:
    """Endpoint and replay were mixed up: the numbers agree, the bytes don't."""
    async with RawEngine() as other, bridged(engine.endpoint, other.replay_endpoint) as reader:
        await other.publish(batch(stored([9], prompt(1, 900))))
        await reader.upto(1)
        async with asyncio.timeout(LONG_S):
            while reader.bridge.counts.lives == 1:
                await engine.publish(batch(GOOD), seq=0)
                await reader.bridge.confirm(1.0)
        assert len(reader.hook.lives) > 1


class TestReplayThatLies:
    async def test_other_bytes_under_a_number_that_is_held_are_another_life(
        self, engine: RawEngine, reader: Bridged
    ) -> None:
        await engine.publish(batch(GOOD))
        await reader.upto(1)
        engine.answer = lambda _: [numbered(0, batch(stored([1, 2], prompt(2, 700)))), END]
        assert not await reader.confirmed()
        assert reader.bridge.counts.lives == 2
        assert not reader.folded.credited()

    async def test_a_future_that_never_was_shows_when_the_engine_gets_there(
        self, engine: RawEngine, reader: Bridged
    ) -> None:
        await engine.publish(batch(GOOD))
        await reader.upto(1)
        invented = numbered(1, batch(stored([50], prompt(1, 5_000))))
        engine.answer = lambda start: [*engine.honest(start)[:-1], invented, END]
        await reader.upto(2)
        assert len(reader.folded.credited()) == 3
        engine.answer = engine.honest
        await engine.publish(batch(stored([3], prompt(1, 900))))
        async with asyncio.timeout(LONG_S):
            while reader.bridge.counts.lives == 1:
                await reader.bridge.confirm(1.0)
        folded = await reader.reached(1)
        assert folded.credited() == {*ids(prompt(2)), *ids(prompt(1, 900))}

    async def test_records_that_run_backwards_or_repeat_are_taken_once(
        self, engine: RawEngine, reader: Bridged
    ) -> None:
        for number in range(4):
            engine.sent.append((number, batch(stored([number], prompt(1, 100 * number)))))
        engine.answer = lambda start: [
            *engine.honest(start)[:-1],
            *(frames for frames in engine.honest(0)[:-1]),
            END,
        ]
        folded = await reader.upto(4)
        assert len(folded.credited()) == 4
        assert reader.bridge.counts.messages == 4

    async def test_garbage_between_the_records_is_left_out_and_the_hole_stays_seen(
        self, engine: RawEngine, reader: Bridged
    ) -> None:
        for number in range(3):
            engine.sent.append((number, batch(stored([number], prompt(1, 100 * number)))))
        engine.answer = lambda start: [
            frames if frames is END or frames[1] != struct.pack(">q", 1) else [b"kv", b"short", b"x"]
            for frames in engine.honest(start)
        ]
        folded = await reader.reached(2)
        assert reader.bridge.counts.lost_messages == 1
        assert folded.state.holders["gpu"].inventory is Inventory.PARTIAL

    async def test_an_end_without_records_beside_a_live_stream_is_never_a_confirmation(
        self, engine: RawEngine, reader: Bridged
    ) -> None:
        await engine.publish(batch(GOOD))
        await reader.upto(1)
        engine.answer = lambda _: [END]
        assert not await reader.confirmed()
        assert not reader.folded.credited()

    async def test_a_replay_of_another_rank_confirms_nothing(self, engine: RawEngine) -> None:
        async with bridged(engine.endpoint, engine.replay_endpoint, rank=1) as reader:
            await engine.publish(batch(GOOD, rank=0))
            folded = await reader.upto(1)
            assert not folded.copies()
            assert not await reader.confirmed()
