"""The bridge's code against a fake engine in the same process: history, gaps, restarts, deletions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from events.fold.change import Outcome
from events.hooks.bridge import Bridge
from events.hooks.engine_config import EngineConfig
from events.hooks.engine_http import EngineHttp
from events.hooks.hook import Hook, HookPace
from events.hooks.host import HostPace
from events.hooks.life_file import LifeFile
from events.hooks.zmq_source import ZmqSource
from events.identity import make_salt
from events.ids import Basis, CopyState, Inventory, StreamStatus
from tests.support.fake_engine import FakeEngine
from tests.support.hook_log import HookLog, until
from tests.support.hosted_bridge import confirmed, hosted
from tests.support.log import PROFILE

PACE = HostPace(pulse_s=0.1, hook=HookPace(confirm_timeout_s=0.5))


@pytest.fixture
async def log(kafka: str, topic_prefix: str) -> AsyncIterator[HookLog]:
    async with HookLog(kafka, topic_prefix) as entered:
        yield entered


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine(http_port=0) as entered:
        yield entered


@asynccontextmanager
async def bridged(
    log: HookLog,
    engine: FakeEngine,
    *,
    worker: str = "w0",
    pace: HostPace = PACE,
    life_file: Path | None = None,
    replay: bool = True,
    delete: bool = False,
    connectors: tuple[str, ...] = (),
    attach_s: float = 5.0,
) -> AsyncIterator[Hook]:
    """A bridge without an agent; with `delete` it may reset."""
    http = EngineHttp(engine.http_url) if delete else None
    source = ZmqSource(engine.endpoint, engine.replay_endpoint if replay else None)
    bridge = Bridge(source, http=http, life_file=LifeFile(life_file) if life_file else None)

    def config(bridge: Bridge) -> EngineConfig:
        return EngineConfig(removal=bridge.capability, content=PROFILE, connectors=connectors)

    async with hosted(log, source, bridge, config, worker=worker, pace=pace, attach_s=attach_s) as hook:
        yield hook


def clears(log: HookLog) -> int:
    """Clears of the whole GPU that readers have seen."""
    return sum(b'"type":"cleared"' in record.value for record in log.records)


def held(engine: FakeEngine) -> int:
    """Distinct blocks in the engine's prefix cache."""
    return sum(1 for blocks in engine.pool.blocks_of.values() if blocks)


def tokens(*ids: int) -> list[int]:
    """A block of 16 equal tokens for each id."""
    return [token for one in ids for token in [one] * 16]


async def test_the_fold_is_the_engines_pool(log: HookLog, engine: FakeEngine) -> None:
    async with bridged(log, engine):
        for first in range(40):
            await engine.complete(tokens(*range(first, first + 12)), generate=tokens(first + 500))
        await confirmed(log)
        assert len(log.copies("w0")) == held(engine)
        assert log.pulses["w0", 0].basis is Basis.PUBLISHED
        assert set(log.outcomes) == {Outcome.APPLIED}


async def test_a_bridge_that_starts_late_has_the_whole_history(log: HookLog, engine: FakeEngine) -> None:
    await engine.complete(tokens(1, 2, 3))
    await engine.complete(tokens(4))
    async with bridged(log, engine):
        await confirmed(log)
        assert len(log.copies("w0")) == held(engine) == 4
        state = log.current("w0")
        assert state is not None
        assert state.holders["gpu"].inventory is not Inventory.PARTIAL


async def test_a_message_that_missed_the_subscriber_is_replayed(log: HookLog, engine: FakeEngine) -> None:
    async with bridged(log, engine):
        await engine.complete(tokens(1))
        engine.faults.drop_publications = 2
        await engine.complete(tokens(2))
        await engine.complete(tokens(3))
        await confirmed(log)
        assert len(log.copies("w0")) == 3
        assert set(log.outcomes) == {Outcome.APPLIED}


async def test_a_message_that_is_lost_for_good_makes_the_holder_partial_until_a_clear(
    log: HookLog, engine: FakeEngine
) -> None:
    async with bridged(log, engine):
        await engine.complete(tokens(1))
        engine.faults.lose_publications = 1
        await engine.complete(tokens(2))
        await engine.complete(tokens(3))
        await confirmed(log)
        state = log.current("w0")
        assert state is not None
        assert state.holders["gpu"].inventory is Inventory.PARTIAL
        assert CopyState.UNCERTAIN in {a.state for _, a in state.copies["gpu", 0].values()}
        engine.reset()
        await engine.complete(tokens(5))
        await confirmed(log)
        assert state.holders["gpu"].inventory is Inventory.EMPTY
        assert len(log.copies("w0")) == held(engine) == 1


async def test_a_restarted_engine_is_a_new_epoch_without_its_old_copies(
    log: HookLog, engine: FakeEngine
) -> None:
    async with bridged(log, engine) as hook:
        await engine.complete(tokens(1, 2, 3))
        await confirmed(log)
        first, life = hook.stream, hook.engine_life
        await engine.restart()
        await engine.complete(tokens(1))
        await until(lambda: hook.stream not in (None, first))
        await confirmed(log)
        assert hook.engine_life != life
        assert len(log.copies("w0")) == 1
        assert first is not None
        assert log.registry.superseded(first)
        # Until then it counts, silent: closed, it would let readers claim that nothing is there.
        assert log.states[first].status is StreamStatus.LIVE


async def test_an_engine_of_which_nothing_was_ever_received_is_neither_confirmed_nor_empty_of_orders(
    log: HookLog, engine: FakeEngine
) -> None:
    number = await log.delete("default")
    async with bridged(log, engine) as hook:
        early = await log.beacon()
        asked = len(engine.replay_questions)
        await until(lambda: len(engine.replay_questions) > asked + 3)
        await until(lambda: ("w0", 0) in log.pulses)
        assert not log.echoed("w0", early)
        assert not log.discharged("w0", "default", number)
        stream = hook.stream
        await engine.complete(tokens(1))
        await confirmed(log)
        await until(lambda: log.discharged("w0", "default", number))
        assert hook.stream == stream
        assert len(log.copies("w0")) == 1


async def test_a_replay_socket_that_answers_late_makes_the_history_whole_in_another_epoch(
    log: HookLog, engine: FakeEngine
) -> None:
    await engine.complete(tokens(1, 2))
    engine.faults.silent_replay = True
    async with bridged(log, engine, attach_s=0.2) as hook:
        first, life = hook.stream, hook.engine_life
        state = log.current("w0")
        assert state is None or state.holders["gpu"].inventory is Inventory.PARTIAL
        engine.faults.silent_replay = False
        await until(lambda: hook.stream not in (None, first))
        await confirmed(log)
        assert hook.engine_life == life
        state = log.current("w0")
        assert state is not None
        assert state.holders["gpu"].inventory is not Inventory.PARTIAL
        assert len(log.copies("w0")) == 2


async def test_a_silent_replay_socket_means_no_echo(log: HookLog, engine: FakeEngine) -> None:
    async with bridged(log, engine):
        await engine.complete(tokens(1))
        await confirmed(log)
        engine.faults.silent_replay = True
        asked = len(engine.replay_questions)
        late = await log.beacon()
        await until(lambda: len(engine.replay_questions) > asked)
        await engine.complete(tokens(2))
        await until(lambda: len(log.copies("w0")) == 2)
        assert not log.echoed("w0", late)
        engine.faults.silent_replay = False
        await until(lambda: log.echoed("w0", late))


async def test_without_a_replay_socket_the_echo_is_unconfirmed(log: HookLog, engine: FakeEngine) -> None:
    await engine.complete(tokens(9))
    async with bridged(log, engine, replay=False):
        early = await log.beacon()
        await until(lambda: ("w0", 0) in log.pulses)
        assert not log.echoed("w0", early)
        await engine.complete(tokens(8))
        await confirmed(log)
        assert log.pulses["w0", 0].basis is Basis.UNCONFIRMED
        state = log.current("w0")
        assert state is not None
        assert state.holders["gpu"].inventory is Inventory.PARTIAL


async def test_without_a_reset_route_a_deletion_is_refused_with_its_cure(
    log: HookLog, engine: FakeEngine
) -> None:
    async with bridged(log, engine):
        await engine.complete(tokens(1))
        number = await log.delete("default")
        await until(lambda: log.standing("w0", "default", number) is not None)
        standing = log.standing("w0", "default", number)
        assert standing is not None
        assert standing.refused == "no_delete_path"
        await confirmed(log)
        await engine.restart()
        await engine.complete(tokens(2))
        await until(lambda: log.discharged("w0", "default", number))


async def test_a_deletion_is_a_reset_seen_on_the_wire_and_then_acked(
    log: HookLog, engine: FakeEngine
) -> None:
    salt = make_salt(log.keyring["acme"].salt_key, "acme")
    async with bridged(log, engine, delete=True):
        await engine.complete(tokens(1, 2), salt=salt)
        await engine.complete(tokens(3))
        number = await log.delete("acme")
        await until(lambda: log.discharged("w0", "acme", number))
        standing = log.standing("w0", "acme", number)
        assert standing is not None
        assert standing.removed == 2
        assert log.copies("w0") == set()
        await engine.complete(tokens(1, 2), salt=salt)
        await confirmed(log)
        assert len(log.copies("w0")) == 2
        assert log.discharged("w0", "acme", number)


async def test_a_reset_discharges_nothing_while_another_tier_holds_copies(
    log: HookLog, engine: FakeEngine
) -> None:
    async with bridged(log, engine, delete=True):
        await engine.complete(tokens(1, 2))
        await confirmed(log)
        await engine.store(tokens(1), medium="CPU")
        await confirmed(log)
        assert len(log.copies("w0", holder="cpu")) == 1
        number = await log.delete("default")
        await until(lambda: (one := log.standing("w0", "default", number)) is not None and bool(one.refused))
        standing = log.standing("w0", "default", number)
        assert standing is not None
        assert standing.refused == "no_delete_path"
        assert log.told("w0", "default", number) == [1]
        assert (len(log.copies("w0")), len(log.copies("w0", holder="cpu"))) == (0, 1)
        before = clears(log)
        await log.delete("default")
        await until(lambda: clears(log) > before)
        await engine.restart()
        await engine.complete(tokens(2))
        await until(lambda: log.discharged("w0", "default", number))


async def test_a_copy_that_a_connector_brings_back_ends_the_discharge_until_it_is_gone(
    log: HookLog, engine: FakeEngine
) -> None:
    async with bridged(log, engine, delete=True, connectors=("store",)):
        await engine.complete(tokens(1))
        number = await log.delete("default")
        await until(lambda: log.discharged("w0", "default", number))
        before = clears(log)
        back = await engine.store(tokens(7))
        await until(lambda: not log.discharged("w0", "default", number))
        await engine.remove(back)
        await until(lambda: log.discharged("w0", "default", number))
        assert log.told("w0", "default", number) == [0, 1, 0]
        assert clears(log) == before


async def test_a_reset_waits_for_running_requests_and_says_so(log: HookLog, engine: FakeEngine) -> None:
    async with bridged(log, engine, delete=True):
        request = await engine.begin(tokens(1, 2, 3))
        number = await log.delete("default")
        await until(lambda: log.standing("w0", "default", number) is not None)
        standing = log.standing("w0", "default", number)
        assert standing is not None
        assert standing.refused == "blocks_in_use"
        engine.finish(request)
        await until(lambda: log.discharged("w0", "default", number))


async def test_a_restarted_bridge_knows_the_engine_life_and_resets_nothing_twice(
    log: HookLog, engine: FakeEngine, tmp_path: Path
) -> None:
    life_file = tmp_path / "life.json"
    async with bridged(log, engine, life_file=life_file, delete=True) as hook:
        await engine.complete(tokens(1))
        number = await log.delete("default")
        await until(lambda: log.discharged("w0", "default", number))
        await engine.complete(tokens(2))
        await until(lambda: life_file.exists() and f'"discharged": [{number}]' in life_file.read_text())
        life = hook.engine_life
    async with bridged(log, engine, life_file=life_file, delete=True) as hook:
        assert hook.engine_life == life
        await until(lambda: log.discharged("w0", "default", number))
        await confirmed(log)
        assert len(log.copies("w0")) == held(engine) == 1
    await engine.restart()
    await engine.complete(tokens(3))
    async with bridged(log, engine, life_file=life_file) as hook:
        assert hook.engine_life != life
        await until(lambda: log.discharged("w0", "default", number))


async def test_garbage_on_the_engines_socket_flags_the_stream_and_stops_nothing(
    log: HookLog, engine: FakeEngine
) -> None:
    async with bridged(log, engine):
        await engine.complete(tokens(1))
        await engine.publish_raw(b"\xc1 not msgpack")
        await engine.publish([{"type": "SomethingNew", "field": 1}])
        await engine.complete(tokens(2))
        await confirmed(log)
        state = log.current("w0")
        assert state is not None
        assert state.unknown_events == 2
        assert state.holders["gpu"].inventory is Inventory.PARTIAL
        assert len(log.copies("w0")) == 2
