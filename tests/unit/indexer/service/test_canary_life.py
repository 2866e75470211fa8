"""A canary that breaks: it never ends the service, and leaves few registrations behind."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from aiokafka.errors import KafkaError

from events.hooks.stream import Epoch
from events.ids import CANARY_WORKER, Role
from events.model.control import Registered
from events.signing import Signer
from indexer.service import canary as canary_module
from indexer.service.canary import PACE, RETRY_S, Canary
from router_client.limit import ViewLimits
from tests.support.lookup_http import service
from tests.support.reader_world import World

KEY = Signer.from_seed(bytes(32))


class Broker:
    """What a canary writes to: topics whose writes fail while they are named in `failing`."""

    def __init__(self) -> None:
        self.failing: set[str] = set()
        self.lacking: set[str] = set()
        self.sent: list[tuple[str, bytes]] = []
        self.tried: list[tuple[str, bytes]] = []

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def partitions_for(self, topic: str) -> set[int]:
        return set() if topic.rsplit(".", maxsplit=1)[-1] in self.lacking else set(range(64))

    async def send_and_wait(self, topic: str, value: bytes, **_: Any) -> None:
        self.tried.append((topic.rsplit(".", maxsplit=1)[-1], value))
        if topic.rsplit(".", maxsplit=1)[-1] in self.failing:
            raise KafkaError("no")
        self.sent.append((topic.rsplit(".", maxsplit=1)[-1], value))


class Stage:
    """A canary before a broker, with the pauses that it made after it broke instead of those pauses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = World()
        self.world.round(self.world.join())
        made = service(world=self.world)
        self.view = made.view
        self.view.limits = ViewLimits(silent_after_ns=0)
        self.view.newest_beacon = self.world.view.newest_beacon
        self.broker = Broker()
        self.pauses: list[float] = []
        self.registered = 0
        self.canary = Canary(
            replace(made.config, signers={Role.ENROLMENT: KEY}),
            self.view,
            made.feed,
            monotonic_ns=lambda: self.world.now_ns,
            wall_ms=lambda: 0,
        )
        monkeypatch.setattr(canary_module, "make_producer", lambda *_, **__: self.broker)
        monkeypatch.setattr(self.canary, "_register", self.register)
        monkeypatch.setattr(self.canary, "_pause", self.pause)
        self.most = 4

    async def register(self, slot: int) -> Epoch:
        self.registered += 1
        self.canary._wrote_control = True
        body = Registered(
            worker=CANARY_WORKER,
            rank=slot,
            epoch=f"c{self.registered}",
            engine_life=f"life-{self.registered}",
            public_key=KEY.public_key,
            partition=0,
        )
        number = self.world.order(body, Role.ENROLMENT)
        value, signature = self.world.log.records[-1]
        registry = self.view.registry
        self.view.control_folded(*registry.fold(registry.next_offset, value, signature))
        key = registry.current[CANARY_WORKER, slot]
        sha256 = registry.registrations[key].record_sha256
        return Epoch(key, number, sha256, 0, body.engine_life, KEY)

    async def pause(self, for_s: float) -> bool:
        await asyncio.sleep(0)
        if for_s >= RETRY_S:
            self.pauses.append(for_s)
            if len(self.pauses) >= self.most:
                await self.canary.close()
        return self.canary._ending.is_set()

    async def run(self) -> None:
        async with asyncio.timeout(20):
            await self.canary.run()


async def test_whatever_breaks_the_canary_ends_nothing_but_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)

    async def broken(*_: object, **__: object) -> None:
        assert stage.canary.state in ("starting", "broken")
        raise AssertionError("some secret")

    monkeypatch.setattr(stage.broker, "send_and_wait", broken)
    why: list[str] = []
    paused = stage.pause

    async def pause(for_s: float) -> bool:
        why.append(stage.canary.why)
        return await paused(for_s)

    monkeypatch.setattr(stage.canary, "_pause", pause)
    await stage.run()
    assert set(filter(None, why)) == {"AssertionError"}
    assert stage.canary.report()["why"] == "the service ends"


async def test_an_epoch_whose_first_record_was_not_taken_is_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch)
    stage.broker.failing = {"events"}
    await stage.run()
    assert stage.registered == 1
    assert len({value for topic, value in stage.broker.tried if topic == "events"}) == 1
    assert stage.pauses == [RETRY_S] * stage.most


async def test_nothing_is_registered_while_there_is_nothing_to_write_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch)
    stage.broker.lacking = {"pulse"}
    await stage.run()
    assert (stage.registered, stage.broker.tried) == (0, [])


async def test_attempts_that_write_to_kv_control_grow_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.broker.failing = {"pulse"}
    stage.most = 12
    await stage.run()
    assert stage.registered == 12
    assert stage.pauses[:4] == [5, 10, 20, 40]
    assert stage.pauses[-1] == PACE.longest_pause_s
