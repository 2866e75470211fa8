"""`/v1/watch`: the whole state first, then changes; nobody's slowness or number costs anybody else."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import httpx
import pytest

from events.ids import Role
from events.model.control import Fenced
from indexer.service import watch
from indexer.service.app import LookupService
from router_client.client import RouterClient
from router_client.failure import DeniedError, UnavailableError
from router_client.watch import WatchEvent, events_of
from tests.support.live_log import until
from tests.support.lookup_http import CREDENTIALS, service
from tests.support.reader_world import World
from tests.support.served import served


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "EVERY_S", 0.02)


def fleet() -> tuple[World, LookupService]:
    world = World(domains=[("acme", "acme")])
    hooks = [world.join("w0"), world.join("w1")]
    world.round(*hooks)
    return world, service(world=world, credentials=CREDENTIALS)


def fence(world: World, made: LookupService, worker: str) -> None:
    """In the service's own registry, as its tail of kv.control would."""
    world.order(Fenced(worker=worker, rank=0, epoch="e1", evidence="operator"), Role.CONTROL)
    value, signature = world.log.records[-1]
    registry = made.view.registry
    made.view.control_folded(*registry.fold(registry.next_offset, value, signature))


async def up_to(events: AsyncIterator[WatchEvent], name: str) -> list[WatchEvent]:
    found: list[WatchEvent] = []
    async with asyncio.timeout(10):
        async for event in events:
            found.append(event)
            if event.name == name:
                return found
    raise AssertionError(f"no {name}")


def states(events: list[WatchEvent]) -> dict[str, str]:
    return {e.data["worker"]: e.data["state"] for e in events if e.name == "stream"}


async def test_a_watcher_is_told_the_present_state_and_then_each_change() -> None:
    world, made = fleet()
    async with served(made) as port, RouterClient(f"http://127.0.0.1:{port}", token="operator") as client:
        async with aclosing(client.watch()) as events:
            first = await up_to(events, "current")
            assert states(first) == {"w0": "live", "w1": "live"}
            by_name = {event.name: event.data for event in first}
            assert by_name["hello"]["missed"] is None
            assert by_name["hello"]["log"] == "log-test"
            assert (by_name["coverage"]["included"], by_name["coverage"]["eligible"]) == (2, 2)
            assert by_name["coverage"]["worst_staleness_ms"] == 0
            assert by_name["position"]["token"] == made.view.token()
            fence(world, made, "w1")
            changed = await up_to(events, "coverage")
            assert states(changed) == {"w1": "fenced"}
            last = changed[-1].id
        async with aclosing(client.watch(last_event_id=first[-1].id)) as events:
            again = await up_to(events, "current")
            assert states(again) == {"w0": "live", "w1": "fenced"}
            assert again[0].data["missed"] >= 2
        async with aclosing(client.watch(last_event_id="of-another-life:7")) as events:
            assert (await up_to(events, "current"))[0].data["missed"] is None
        assert last is not None


async def test_tenants_see_no_faults_epochs_or_positions_and_strangers_nothing() -> None:
    _, made = fleet()
    made.view.streams[made.view.registry.current["w0", 0]].state.fault = "seq 3 to 4 missing"
    async with served(made) as port:
        url = f"http://127.0.0.1:{port}"
        async with RouterClient(url, token="acme") as tenant, aclosing(tenant.watch()) as events:
            shown = await up_to(events, "current")
        assert {e.name for e in shown} == {"hello", "stream", "coverage", "current"}
        told = {"worker", "dp_rank", "state", "staleness_ms"}
        assert all(set(e.data) == told for e in shown if e.name == "stream")
        async with RouterClient(url, token="router") as router, aclosing(router.watch()) as events:
            shown = await up_to(events, "current")
        assert {e.data["fault"] for e in shown if e.name == "stream"} == {None, "seq 3 to 4 missing"}
        async with RouterClient(url, token="guess") as nobody, aclosing(nobody.watch()) as events:
            with pytest.raises(DeniedError):
                await anext(events)


async def test_there_is_room_for_so_many_watchers_and_each_is_told_of_the_end() -> None:
    world = World()
    world.round(world.join())
    made = service(world=world, max_watchers=1)
    async with served(made) as port, RouterClient(f"http://127.0.0.1:{port}") as client:
        async with aclosing(client.watch()) as events:
            await up_to(events, "current")
            async with aclosing(client.watch()) as more:
                with pytest.raises(UnavailableError):
                    await anext(more)
            made.close()
            assert (await up_to(events, "end"))[-1].data == {"reason": "shutdown"}
        await until(lambda: len(made.watch) == 0)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            late = await http.get("/v1/watch")
        assert (late.status_code, late.json()["type"]) == (503, "/problems/too-busy")


async def test_a_service_stops_while_it_is_watched() -> None:
    world = World()
    world.round(world.join())
    async with served(service(world=world)) as port:
        client = RouterClient(f"http://127.0.0.1:{port}")
        events = client.watch()
        await up_to(events, "current")
    async with asyncio.timeout(5):
        assert (await up_to(events, "end"))[-1].data == {"reason": "shutdown"}
    await events.aclose()
    await client.close()


async def test_a_watcher_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "SEND_TIMEOUT_S", 0.3)
    monkeypatch.setattr(watch, "MAX_BUFFERED_BYTES", 20_000)
    world = World()
    world.round(world.join())
    made = service(world=world)
    state = made.view.streams[made.view.registry.current["w0", 0]].state
    async with served(made) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            deaf.sendall(b"GET /v1/watch HTTP/1.1\r\nHost: x\r\n\r\n")
            await until(lambda: len(made.watch) == 1)
            turns = 0

            def dropped() -> bool:
                nonlocal turns
                turns += 1
                for at in range(50):
                    state.fault = f"{turns}.{at} " + "x" * 1_500
                    for change in made.watch._survey():
                        made.watch._tell(change)
                return len(made.watch) == 0

            await until(dropped)
        assert made.watch.dropped >= 1


async def test_a_reader_that_reads_keeps_up_with_a_change_of_a_whole_large_fleet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "MAX_BUFFERED", 40)
    monkeypatch.setattr(watch, "CHUNK", 10)
    world = World()
    hooks = [world.join(f"w{n}") for n in range(150)]
    world.round(*hooks)
    made = service(world=world)
    async with (
        served(made) as port,
        RouterClient(f"http://127.0.0.1:{port}") as client,
        aclosing(client.watch()) as events,
    ):
        await up_to(events, "current")
        for stream in made.view.streams.values():
            stream.state.fault = "all at once"
        faults: set[str] = set()
        async with asyncio.timeout(10):
            async for event in events:
                assert event.name != "end"
                if event.name == "stream" and event.data["fault"]:
                    faults.add(event.data["worker"])
                if len(faults) == len(hooks):
                    break
    assert made.watch.dropped == 0


async def test_watchers_are_told_when_the_survey_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    _, made = fleet()
    async with served(made) as port, RouterClient(f"http://127.0.0.1:{port}", token="operator") as client:
        async with aclosing(client.watch()) as events:
            await up_to(events, "current")

            def fails(*_: object) -> None:
                raise KeyError("some fault")

            monkeypatch.setattr(watch, "survey", fails)
            assert (await up_to(events, "end"))[-1].data == {"reason": "failed"}
            monkeypatch.undo()
        async with aclosing(client.watch()) as events:
            await up_to(events, "current")


def test_a_slow_watcher_is_told_so_and_its_buffer_is_bounded() -> None:
    watcher = watch.Watcher(fleet=True)
    frame = b"x" * 100_000
    taken = 0
    while watcher.offer(frame):
        taken += 1
        assert taken < 10
    assert (watcher.over, len(watcher.frames), watcher.size) == ("slow", 0, 0)
    watcher.end("shutdown")
    assert watcher.over == "slow"


async def test_events_are_read_whatever_comes_between() -> None:
    async def lines() -> AsyncIterator[str]:
        text: Any = [
            ": keep-alive", "", "id: a:1", "event: stream", 'data: {"x":', "data: 1}", "", "data: {}", "",
            "event: bad", "data: nonsense", "", "event: cut", 'data: {"y": 1}',
        ]  # fmt: skip
        for line in text:
            yield line

    found = [event async for event in events_of(lines())]
    assert found == [WatchEvent("stream", {"x": 1}, "a:1"), WatchEvent("message", {}, "a:1")]
