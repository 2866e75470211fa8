"""Streams of nobody cost a bounded amount, and never change what the index says of those registered."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest

from events.fold.digest import index_digest
from events.fold.registry import Registry
from events.ids import StreamKey, StreamStatus
from events.signing import verify
from indexer.applier import Applier
from indexer.memory_store import MemoryStore
from indexer.stranger import StrangerLimits
from tests.support.applier_world import ApplierWorld
from tests.support.log import ControlLog, StreamBuilder, block, declared, opened, stored
from tests.support.store_contract import TOPIC, comparable, fold

FLOOD = 20_000
PASSED, TO_COME = 2, 1_000
LIMITS = StrangerLimits(max_streams=3, max_entries=200, max_noted=4, max_letters=5)


def begun(builder: StreamBuilder, *ids: bytes) -> bytes:
    return builder.seal(opened(), events=[declared(), stored(list(ids) or [block(builder.worker)])]).value


class Control:
    """A registry that is behind its log until it catches up."""

    def __init__(self, log: ControlLog, *, behind: int = 0, broken: bool = False) -> None:
        self.log, self.registry, self.asked, self.broken = log, Registry(verify), 0, broken
        self.read(len(log.records) - behind)

    def read(self, end: int) -> None:
        for offset, (value, signature) in enumerate(self.log.records[:end]):
            self.registry.fold(offset, value, signature)

    async def catch_up(self) -> bool:
        self.asked += 1
        if not self.broken:
            self.read(len(self.log.records))
        return not self.broken


async def applier_of(world: ApplierWorld, control: Control) -> Applier:
    applier = Applier(
        world.store, world.log, world.outbox, control.registry,
        topic=TOPIC, monotonic_s=lambda: 0.0, prune_every_s=0.0, catch_up=control.catch_up, limits=LIMITS,
    )  # fmt: skip
    await applier.own({0})
    return applier


async def streams(world: ApplierWorld) -> dict[str, StreamStatus]:
    return {state.key.worker: state.status for _, state in (await world.store.snapshot(TOPIC)).states}


async def test_stream_of_nobody_is_passed_and_buried_once() -> None:
    world = ApplierWorld(MemoryStore())
    control = Control(world.control)
    applier = await applier_of(world, control)
    for number in range(10):
        stranger = StreamBuilder(f"s{number}", epoch_no=PASSED)
        await world.send(applier, [begun(stranger), stranger.seal(events=[]).value])
    assert await streams(world) == {}
    assert applier.positions == {0: 20}
    assert applier.strangers.foreign_records == 20
    assert [letter.reason for letter in world.outbox.buried] == ["foreign_stream"] * LIMITS.max_letters


async def test_registration_that_is_not_read_yet_is_waited_for() -> None:
    log = ControlLog()
    late = log.register()
    world, control = ApplierWorld(MemoryStore(), control=log), Control(log, behind=1)
    applier = await applier_of(world, control)
    mine = StreamBuilder(epoch_no=late)
    records = [begun(mine), mine.seal(events=[stored([block(9)])]).value]
    await world.send(applier, records)
    assert (control.asked, applier.strangers_held) == (1, 0)
    assert await streams(world) == {"w0": StreamStatus.LIVE}
    await world.send(applier, [mine.seal(events=[stored([block(10)])]).value])
    assert control.asked == 1


async def test_control_that_cannot_be_read_holds_nobody_back() -> None:
    log = ControlLog()
    late = log.register()
    world, control = ApplierWorld(MemoryStore(), control=log), Control(log, behind=1, broken=True)
    applier = await applier_of(world, control)
    mine = StreamBuilder(epoch_no=late)
    await world.send(applier, [begun(mine)])
    assert applier.strangers_held == 1
    control.read(len(log.records))
    await world.send(applier, [mine.seal(events=[stored([block(9)])]).value])
    assert applier.strangers_held == 0
    held = comparable(state for _, state in (await world.store.snapshot(TOPIC)).states)
    assert held == comparable(fold(world.log.records).values())


async def test_the_first_of_too_many_that_may_be_registered_is_let_go() -> None:
    world = ApplierWorld(MemoryStore())
    applier = await applier_of(world, Control(world.control))
    for number in range(5):
        await world.send(applier, [begun(StreamBuilder(f"s{number}", epoch_no=TO_COME))])
    assert set(await streams(world)) == {"s2", "s3", "s4"}
    assert applier.strangers.let_go == 2
    await world.send(
        applier, [begun(StreamBuilder("big", epoch_no=TO_COME), *(block(each) for each in range(201)))]
    )
    assert await streams(world) == {}


async def test_what_is_held_goes_once_control_has_passed_it_and_stays_if_registered() -> None:
    log = ControlLog()
    world, control = ApplierWorld(MemoryStore(), control=log), Control(log)
    applier = await applier_of(world, control)
    number = len(log.records)
    await world.send(
        applier, [begun(StreamBuilder("liar", epoch_no=number)), begun(StreamBuilder(epoch_no=number))]
    )
    assert set(await streams(world)) == {"liar", "w0"}
    assert log.register() == number
    control.read(len(log.records))
    await applier.prune()
    assert set(await streams(world)) == {"w0"}
    again = await applier_of(world, control)
    assert (again.strangers_held, again.positions) == (0, {0: 2})


async def test_no_flood_makes_the_digests_of_index_and_log_differ() -> None:
    log = ControlLog()
    mine = StreamBuilder(epoch_no=log.register())
    world, control = ApplierWorld(MemoryStore(), control=log), Control(log)
    applier = await applier_of(world, control)
    await world.send(applier, [begun(mine)])
    for number in range(12):
        stranger = StreamBuilder(f"s{number}", epoch_no=(PASSED, TO_COME)[number % 2])
        await world.send(applier, [begun(stranger), mine.seal(events=[stored([block("m", number)])]).value])
    states = fold(world.log.records)
    assert len(states) == 13
    wanted = index_digest([states[StreamKey("w0", 0, "e1")]], control.registry)
    assert await world.store.digest(control.registry) == wanted
    assert index_digest(states.values(), control.registry) == wanted


@pytest.mark.parametrize("seed", range(12))
async def test_however_far_behind_control_is_read_registered_streams_equal_the_fold(seed: int) -> None:
    rng, log = random.Random(seed), ControlLog()
    mine = [
        StreamBuilder(
            f"w{number % 3}", epoch=f"e{number}", epoch_no=log.register(f"w{number % 3}", 0, f"e{number}")
        )
        for number in range(6)
    ]
    liars = [StreamBuilder(f"liar{number}", epoch_no=rng.choice((PASSED, 7, TO_COME))) for number in range(9)]
    world, control = ApplierWorld(MemoryStore(), control=log), Control(log, behind=6)
    applier = await applier_of(world, control)
    for _ in range(30):
        values = []
        for builder in rng.choices(mine + liars, k=rng.randint(1, 5)):
            fresh = builder.seq == 0
            values.append(
                begun(builder) if fresh else builder.seal(events=[stored([rng.randbytes(16)])]).value
            )
        await world.send(applier, values)
        if rng.random() < 0.2:
            applier = await applier_of(world, control)
        if rng.random() < 0.3:
            await applier.prune()
        assert applier.strangers_held <= LIMITS.max_streams
    control.read(len(log.records))
    states = fold(world.log.records)
    assert await world.store.digest(control.registry) == index_digest(states.values(), control.registry)
    whole = {key: state for key, state in states.items() if key in control.registry.registrations}
    current = {key for key in whole if not control.registry.superseded(key)}
    held = [state for _, state in (await world.store.snapshot(TOPIC)).states]
    assert comparable(state for state in held if state.key in current) == comparable(
        whole[key] for key in current
    )


def test_a_process_that_is_flooded_with_streams_of_nobody_stops_growing() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.stranger_flood", str(FLOOD)],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert (found["held"], found["stored_streams"]) == (256, 257)
    assert found["foreign_records"] == FLOOD / 2
    assert found["let_go"] == FLOOD / 2 - 256
    assert found["dead"] == 256
    assert (found["own_status"], found["own_copies"]) == (["live"], FLOOD / 500)
    assert found["grown"][-1] - found["grown"][0] < 8_000_000
