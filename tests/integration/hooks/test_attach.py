"""`kvledger attach` beside fake engines that say what vLLM says, into a real log."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from events.ids import Alarm, StreamStatus
from events.model.profile import ContentProfile
from tests.support.attached import attached, make_keys
from tests.support.fake_engine import FakeEngine
from tests.support.hook_log import HookLog, until
from tests.support.model_folder import make, model


@pytest.fixture
async def log(kafka: str, topic_prefix: str) -> AsyncIterator[HookLog]:
    async with HookLog(kafka, topic_prefix) as entered:
        yield entered


@pytest.fixture
def keys(home: Path) -> Path:
    return make_keys(home)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[FakeEngine]:
    async with FakeEngine(http_port=0) as entered:
        entered.facts.root = str(model(tmp_path / "model"))
        entered.facts.started_s += 60
        yield entered


def name_of(engine: FakeEngine) -> str:
    return engine.http_url.removeprefix("http://")


def tokens(*ids: int) -> list[int]:
    return [token for one in ids for token in [one] * 16]


def contents(log: HookLog, worker: str) -> list[tuple[ContentProfile, bool]]:
    """Content profiles of a worker's newest stream, with whether each is retired."""
    state = log.current(worker)
    return [] if state is None else [(one.content, one.retired) for one in state.profiles.values()]


async def test_an_address_is_enough_and_the_identity_is_the_engines_own(
    log: HookLog, keys: Path, engine: FakeEngine
) -> None:
    await engine.complete(tokens(1, 2))
    worker = name_of(engine)
    async with attached(log, keys, engine.http_url) as running:
        learned = await running.until(lambda one: one["state"] == "learned")
        opened = await running.opened()
        assert (opened["worker"], opened["identity"], opened["basis"]) == (worker, "verified", "published")
        assert (opened["history"], opened["deletion"]) == ("whole", "reset")
        await engine.complete(tokens(1, 2, 3))
        await until(lambda: len(log.copies(worker)) == 3)
        ((content, _),) = contents(log, worker)
        assert content.model_dump(exclude_none=True) == learned["content"]
        assert await running.stop() == 0


async def test_an_engine_as_most_people_run_it_is_bridged_without_profile_salt_or_development_mode(
    log: HookLog, keys: Path
) -> None:
    more = ("--worker", "w7", "--domain", "new")
    async with (
        FakeEngine(http_port=0, dev_mode=False) as engine,
        attached(log, keys, engine.http_url, *more) as running,
    ):
        opened = await running.opened()
        assert (opened["worker"], opened["domain"], opened["deletion"]) == ("w7", "new", "none")
        assert opened["identity"] == "unverified"
        assert "attention" in opened["missing"]
        await engine.complete(tokens(1))
        await until(lambda: len(log.copies("w7")) == 1)


async def test_every_rank_gets_a_stream(log: HookLog, keys: Path, engine: FakeEngine) -> None:
    async with FakeEngine(rank=1) as second:
        engine.ranks.append(second)
        worker = name_of(engine)
        async with attached(log, keys, engine.http_url) as running:
            await running.until(lambda one: one["state"] == "open")
            await running.until(lambda one: one["state"] == "open")
            await engine.complete(tokens(1))
            await second.complete(tokens(2, 3))
            await until(lambda: len(log.copies(worker, 0)) == 1 and len(log.copies(worker, 1)) == 2)


async def test_an_engine_that_connects_to_us_is_bound_for(log: HookLog, keys: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with FakeEngine(http_port=0, connect_to=f"tcp://127.0.0.1:{port}") as engine:
        worker = name_of(engine)
        async with attached(log, keys, engine.http_url) as running:
            await running.opened()
            await engine.complete(tokens(1, 2))
            await until(lambda: len(log.copies(worker)) == 2)


async def test_an_engine_that_serves_and_never_publishes_raises_the_alarm_in_its_pulses(
    log: HookLog, keys: Path, engine: FakeEngine
) -> None:
    worker = name_of(engine)
    async with attached(log, keys, engine.http_url) as running:
        await running.opened()
        engine.facts.publishes = False
        await engine.complete(tokens(1, 2, 3))
        told = await running.until(lambda one: one["state"] == "counts" and "alarm" in one["counts"])
        assert told["counts"]["received"] == "nothing"
        await until(lambda: log.pulses[worker, 0].alarm is Alarm.UNPUBLISHED)
        engine.facts.publishes = True
        await engine.complete(tokens(4))
        await until(lambda: log.pulses[worker, 0].alarm is None)


async def test_an_adapter_that_is_loaded_again_is_retired_in_the_log(
    log: HookLog, keys: Path, engine: FakeEngine, tmp_path: Path
) -> None:
    folder = make(tmp_path / "ad", adapter_model__safetensors=b"one", adapter_config__json=b"{}")
    engine.facts.adapters["ad1"] = str(folder)
    worker = name_of(engine)
    async with attached(log, keys, engine.http_url) as running:
        await running.opened()
        await engine.complete(tokens(1), lora="ad1")
        await engine.complete(tokens(1))
        await until(lambda: len(contents(log, worker)) == 2)
        first = next(one for one, _ in contents(log, worker) if one.adapter == "ad1")
        assert first.adapter_revision is not None
        assert first.missing() == ()
        make(folder, adapter_model__safetensors=b"two!")
        await until(lambda: (first, True) in contents(log, worker))
        await engine.complete(tokens(2), lora="ad1")
        await until(lambda: len(contents(log, worker)) == 3)
        standing = {one.adapter: one for one, retired in contents(log, worker) if not retired}
        assert standing["ad1"].adapter_revision not in (None, first.adapter_revision)
        assert None in standing


async def test_weights_that_are_changed_in_place_begin_another_epoch_under_another_profile(
    log: HookLog, keys: Path, engine: FakeEngine
) -> None:
    worker = name_of(engine)
    async with attached(log, keys, engine.http_url) as running:
        await running.opened()
        await engine.complete(tokens(1))
        await until(lambda: len(log.copies(worker)) == 1)
        ((before, _),) = contents(log, worker)
        old = log.registry.current[worker, 0]
        engine.facts.weight_version = "step-2"
        await running.opened()
        await until(lambda: log.registry.current[worker, 0] != old)
        # It falls silent: closed, it would let readers claim that nothing is there.
        assert log.states[old].status is StreamStatus.LIVE
        assert all(one.retired for one in log.states[old].profiles.values())
        await engine.complete(tokens(5))
        await until(lambda: len(log.copies(worker)) == 1)
        ((after, retired),) = contents(log, worker)
        assert (after.revision != before.revision, retired) == (True, False)
        # The block from before is still in the pool, and nobody's.
        state = log.current(worker)
        assert state is not None
        assert state.holders["gpu"].unassigned == 1


async def test_an_engine_that_is_not_there_ends_the_command_with_69(log: HookLog, keys: Path) -> None:
    async with attached(log, keys, "http://127.0.0.1:1") as running, asyncio.timeout(60):
        assert await running.process.wait() == 69
