"""Whatever goes wrong in or around the agent, the engine serves on, and the bridge sees that it is absent."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
import sys
import types
from pathlib import Path
from typing import Any

import msgspec
import pytest

from events.hooks import agent as agent_module
from events.hooks import agent_wire as wire
from events.hooks.agent import Agent, attach, register
from events.hooks.agent_client import AgentClient
from events.hooks.agent_socket import SocketError, listen
from events.hooks.zmq_source import ZmqSource
from tests.support.engine_with_agent import WAIT_S, core, modules, names, path, prompt, ran, until
from tests.support.fake_core import BlockPool, FakeCore, Request

__all__ = ["core", "modules", "path"]
pytestmark = pytest.mark.usefixtures("modules")


def attached(core: FakeCore, path: str) -> Agent:
    made = attach(core, path)
    assert made is not None
    return made


async def connected(path: str) -> AgentClient:
    client = AgentClient(path)
    assert await client.connect(WAIT_S)
    return client


def boom(*_: Any) -> Any:
    raise ZeroDivisionError("inside")


@pytest.mark.parametrize("name", ["stand", "contents", "remove"])
async def test_an_error_on_the_engines_thread_ends_the_agent_and_not_the_engine(
    core: FakeCore, path: str, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    agent = attached(core, path)
    client = await connected(path)
    setattr(agent.pool, name, boom)
    match name:
        case "stand":
            assert await client.confirm(0, WAIT_S) is None
        case "contents":
            assert await client.inspect(WAIT_S) is None
        case _:
            assert await client.remove([b"x" * 8], 0, WAIT_S) is None
    await until(lambda: not client.connected)
    await until(lambda: not os.path.exists(path))
    assert (await ran(core, "a", prompt(1))).num_computed_tokens
    assert core.unknown == 0
    (record,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert "Restart the engine to have it again" in record.getMessage()


@pytest.mark.parametrize("name", ["admit", "landed"])
async def test_an_error_inside_a_step_ends_the_agent_and_leaves_the_engine_as_it_was(
    core: FakeCore, path: str, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    agent = attached(core, path)
    client = await connected(path)
    setattr(agent.pool, name, boom)
    await ran(core, "a", prompt(1, 2))
    assert (await ran(core, "b", prompt(1, 2))).hits == 2
    await until(lambda: not client.connected)
    assert "add_request" not in vars(core.scheduler)
    assert "cache_full_blocks" not in vars(core.pool)
    assert sum(one.levelno == logging.ERROR for one in caplog.records) == 1


async def test_an_engine_whose_parts_are_named_otherwise_goes_on_without_an_agent(
    core: FakeCore, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    del core.scheduler.kv_cache_manager.coordinator
    assert attach(core, path) is None
    await until(lambda: not os.path.exists(path))
    assert (await ran(core, "a", prompt(1))).num_computed_tokens
    assert "the bridge alone" in caplog.text


async def test_what_was_wrapped_before_a_name_was_missing_is_unwrapped(
    path: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(BlockPool, "cache_full_blocks")
    with FakeCore() as core:
        assert attach(core, path) is None
        assert "add_request" not in vars(core.scheduler)
        assert "publish" not in vars(core.publisher)
    await until(lambda: not os.path.exists(path))
    assert "the bridge alone" in caplog.text


async def test_an_engine_that_publishes_nothing_has_no_agent(
    core: FakeCore, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    core.pool.enable_kv_cache_events = False
    assert attach(core, path) is None
    assert "--kv-events-config" in caplog.text


@pytest.mark.parametrize("bad", ["relative.sock", "/" + "x" * 120, "/proc/nowhere/agent.sock"])
async def test_a_bad_path_is_an_error_in_the_log_and_the_engine_serves(
    core: FakeCore, bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert attach(core, bad) is None
    assert wire.SOCKET_VARIABLE in caplog.text
    assert (await ran(core, "a", prompt(1))).num_computed_tokens


async def test_a_file_that_is_no_socket_is_left_alone(
    core: FakeCore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "notes"
    file.write_text("mine")
    assert attach(core, str(file)) is None
    assert file.read_text() == "mine"
    assert "no socket" in caplog.text


async def test_a_living_engines_socket_is_not_taken_and_a_dead_ones_is(
    core: FakeCore, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = attached(core, path)
    with FakeCore() as second:
        assert attach(second, path) is None
        assert "its own path" in caplog.text
    client = await connected(path)
    assert client.hello is not None
    assert client.hello.life == first.life
    client.close()
    first.stop()
    await until(lambda: not os.path.exists(path))
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    with FakeCore() as third:
        made = attached(third, path)
        assert os.stat(path).st_mode & 0o077 == 0
        made.stop()


def test_a_socket_has_its_path_only_once_it_listens(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    class Watched(socket.socket):
        def listen(self, backlog: int = 0, /) -> None:
            seen.append(os.path.exists(path))
            super().listen(backlog)

    monkeypatch.setattr("events.hooks.agent_socket.socket.socket", Watched)
    with listen(path):
        assert seen == [False]
        assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]
        with pytest.raises(SocketError, match="its own path"):
            listen(path)


def test_of_two_engines_that_replace_a_dead_ones_socket_at_once_one_has_it(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked = os.link
    with socket.socket(socket.AF_UNIX) as other:

        def late(fresh: str, place: str) -> None:
            other.bind(place)
            other.listen()
            linked(fresh, place)

        monkeypatch.setattr(os, "link", late)
        with pytest.raises(SocketError, match="File exists"):
            listen(path)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
    assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]


@pytest.mark.parametrize("length", [99, 100])
def test_a_path_may_have_99_bytes(path: str, length: int) -> None:
    named = path + "s" * (length - len(path))
    if length == 99:
        listen(named).close()
    else:
        with pytest.raises(SocketError, match="at most 99 bytes"):
            listen(named)


async def test_a_missing_variable_is_said_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module = types.ModuleType("vllm.v1.engine.core")
    module.EngineCoreProc = FakeCore  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, agent_module.CORE_MODULE, module)
    monkeypatch.delenv(wire.SOCKET_VARIABLE, raising=False)
    before = FakeCore._process_input_queue
    register()
    assert FakeCore._process_input_queue is before
    assert wire.SOCKET_VARIABLE in caplog.text


async def test_the_entry_point_attaches_when_the_loop_begins_and_twice_is_once(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    module = types.ModuleType("vllm.v1.engine.core")
    module.EngineCoreProc = FakeCore  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, agent_module.CORE_MODULE, module)
    monkeypatch.setenv(wire.SOCKET_VARIABLE, path)
    before = FakeCore._process_input_queue
    register()
    register()
    try:
        with FakeCore() as core:
            await until(lambda: os.path.exists(path))
            assert FakeCore._process_input_queue is before
            client = await connected(path)
            await ran(core, "a", prompt(1))
            word = await client.confirm(0, WAIT_S)
            assert word is not None
            assert word.seq == 0
            client.close()
    finally:
        FakeCore._process_input_queue = before  # type: ignore[method-assign]


async def test_a_vllm_without_the_known_loop_is_said_and_raises_nothing(
    monkeypatch: pytest.MonkeyPatch, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, agent_module.CORE_MODULE, types.ModuleType("vllm.v1.engine.core"))
    monkeypatch.setenv(wire.SOCKET_VARIABLE, path)
    register()
    assert "can't begin" in caplog.text


async def published(core: FakeCore) -> list[bytes]:
    """The payloads of everything the engine has published, without their time stamps."""
    async with ZmqSource(core.publisher.endpoint, core.publisher.replay_endpoint) as source:
        answer = await source.replay(0, WAIT_S)
    assert answer.complete
    return [msgspec.msgpack.encode(msgspec.msgpack.decode(one.payload)[1:]) for one in answer.records]


async def test_the_engines_own_publisher_stays_and_says_the_same_bytes_at_the_same_addresses(
    core: FakeCore, path: str
) -> None:
    async def served(one: FakeCore) -> list[bytes]:
        await ran(one, "a", prompt(1, 2))
        await ran(one, "b", prompt(1, 3))
        await until(one.publisher._event_queue.empty)
        return await published(one)

    publisher = core.publisher
    before = (type(publisher), publisher.endpoint, publisher.replay_endpoint, publisher._pub)
    agent = attached(core, path)
    with FakeCore() as untouched:
        assert await served(core) == await served(untouched) != []
    assert core.scheduler.kv_event_publisher is publisher
    assert (type(publisher), publisher.endpoint, publisher.replay_endpoint, publisher._pub) == before
    agent.fail("on purpose", ZeroDivisionError())
    assert core.scheduler.kv_event_publisher is publisher
    assert "publish" not in vars(publisher), "its own method is back"


async def test_an_engine_to_which_no_bridge_ever_comes_serves_on_and_keeps_nothing_for_it(
    core: FakeCore, path: str
) -> None:
    agent = attached(core, path)
    for number in range(60):
        await ran(core, f"r{number}", prompt(number + 1, number + 2))
    assert (await ran(core, "again", prompt(60, 61))).hits == 2
    assert not agent._server._clients
    assert not agent._server._done
    assert not agent._server._later
    assert core.input_queue.empty()
    agent.stop()


async def test_a_bridge_that_is_gone_leaves_the_engine_and_the_next_bridge_alone(
    core: FakeCore, path: str
) -> None:
    agent = attached(core, path)
    core.step_s = 0.01
    running = core.add(Request("a", prompt(1), outputs=100_000))
    await until(lambda: running.num_computed_tokens > 0)
    for _ in range(3):
        client = await connected(path)
        asyncio.ensure_future(client.inspect(WAIT_S))  # noqa: RUF006 - nobody waits for it
        await asyncio.sleep(0)
        client.close()
    client = await connected(path)
    assert await client.confirm(0, WAIT_S) is not None
    client.close()
    core.on_thread(lambda: core.scheduler.finish("a"))
    agent.stop()


async def test_who_asks_and_never_reads_is_dropped_and_the_engine_steps_on(
    core: FakeCore, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("events.hooks.agent_server.MAX_UNSENT_BYTES", 100_000)
    agent = attached(core, path)
    await ran(core, "a", [token for one in range(200) for token in [one] * 16])
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        deaf.connect(path)
        deaf.setblocking(False)
        # Each answer is some kilobytes; it is dropped once too much lies unsent.
        for number in range(1, 100_000):
            try:
                deaf.send(wire.frame(wire.Ask(number, "inspect")))
            except BlockingIOError:
                await asyncio.sleep(0.001)
            except (BrokenPipeError, ConnectionResetError):
                break
        else:
            pytest.fail("was never dropped")
    assert (await ran(core, "b", prompt(9_001))).num_computed_tokens
    client = await connected(path)
    assert await client.confirm(0, WAIT_S) is not None
    client.close()
    agent.stop()


@pytest.mark.parametrize(
    "sent", [b"\xff\xff\xff\xff", struct.pack(">I", 3) + b"\xc1\xc1\xc1", struct.pack(">I", 1) + b"\x01"]
)
async def test_a_stranger_who_speaks_otherwise_is_dropped(core: FakeCore, path: str, sent: bytes) -> None:
    agent = attached(core, path)
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(sent)
    assert await reader.read() == b""
    writer.close()
    client = await connected(path)
    assert await client.confirm(0, WAIT_S) is not None
    client.close()
    agent.stop()


async def test_an_agent_of_another_rank_is_left_alone_and_said(
    core: FakeCore, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    core.publisher._dp_rank = 1
    agent = attached(core, path)
    assert agent.path == f"{path}.1"
    client = AgentClient(agent.path, rank=0)
    assert not await client.connect(WAIT_S)
    assert "rank 1's" in caplog.text
    other = AgentClient(path, rank=1)
    assert await other.connect(WAIT_S)
    other.close()
    agent.stop()


async def test_a_removal_of_what_is_not_there_is_done(core: FakeCore, path: str) -> None:
    agent = attached(core, path)
    client = await connected(path)
    request = Request("never", prompt(1))
    word = await client.remove(names(request), 0, WAIT_S)
    assert word is not None
    assert (word.removed, word.told) == (0, True)
    client.close()
    agent.stop()


async def test_what_an_engine_that_stands_still_does_not_read_is_bounded(path: str) -> None:
    still = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (body,) = wire.bodies(bytearray(await reader.read(1 << 16)))
        hello = wire.Hello(wire.read_ask(body).id, wire.PROTOCOL, "life", 1, "", "", "0.32.0", 0, 255, [])
        writer.write(wire.frame(hello))
        await still.wait()
        writer.close()

    async with await asyncio.start_unix_server(serve, path, limit=1 << 12):
        client = await connected(path)
        hashes = [bytes(8)] * wire.HASHES_AT_ONCE
        for _ in range(2_000):
            if not client.connected:
                break
            assert await client.remove(hashes, 0, 0.001) is None
        assert not client.connected
        still.set()
