"""Whoever may connect to an agent's socket, clumsy or hostile, costs neither the engine nor the bridge anything."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from events.hooks import agent_wire as wire
from events.hooks.agent import JOB, Agent, attach
from events.hooks.agent_client import AgentClient
from events.hooks.agent_link import AgentLink
from events.hooks.agent_socket import MAX_CLIENTS
from events.hooks.engine_process import hold, port_of
from tests.support.engine_with_agent import WAIT_S, agent, core, modules, names, path, prompt, ran, until
from tests.support.fake_core import FakeCore

__all__ = ["agent", "core", "modules", "path"]
pytestmark = pytest.mark.usefixtures("modules")


@contextmanager
def joined(path: str) -> Iterator[socket.socket]:
    """A connection of somebody who isn't a bridge."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
        raw.settimeout(WAIT_S)
        raw.connect(path)
        yield raw


def ended(raw: socket.socket) -> bool:
    """Whether the agent has closed the connection."""
    try:
        return raw.recv(1) == b""
    except ConnectionError:
        return True


async def test_connections_that_say_nothing_keep_no_bridge_out(agent: Agent, core: FakeCore) -> None:
    bridge = AgentClient(agent.path)
    assert await bridge.connect(WAIT_S)
    silent = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(MAX_CLIENTS + 3)]
    for raw in silent:
        raw.settimeout(WAIT_S)
        raw.connect(agent.path)
        # Who has asked last is the last to go.
        assert await bridge.confirm(0, WAIT_S) is not None
    late = AgentClient(agent.path)
    assert await late.connect(WAIT_S)
    assert ended(silent[0])
    assert (await ran(core, "a", prompt(1))).num_computed_tokens
    for raw in silent:
        raw.close()
    for client in (bridge, late):
        client.close()


async def test_a_question_larger_than_any_bridge_asks_ends_its_connection_unread(
    agent: Agent, core: FakeCore
) -> None:
    with joined(agent.path) as raw:
        raw.sendall((wire.MAX_ASK_BYTES + 1).to_bytes(4, "big"))
        assert ended(raw)
    with joined(agent.path) as raw:
        raw.sendall(wire.frame(wire.Ask(1, "remove", hashes=[b"x"] * (wire.HASHES_AT_ONCE + 1), request=5)))
        assert ended(raw)
    whole = wire.frame(wire.Ask(1, "remove", hashes=[b"x" * 64] * wire.HASHES_AT_ONCE, request=5))
    assert len(whole) <= wire.MAX_ASK_BYTES
    assert (await ran(core, "a", prompt(1))).num_computed_tokens


async def test_one_connection_has_the_pool_looked_at_once_at_a_time(agent: Agent, core: FakeCore) -> None:
    request = await ran(core, "a", prompt(1, 2))
    begun: list[bool] = []
    go_on: list[bool] = []

    def hold() -> None:
        begun.append(True)
        while not go_on:
            time.sleep(0.001)

    core.input_queue.put_nowait((JOB, hold))
    await until(lambda: bool(begun))
    received = bytearray()
    answers: list[wire.Answer] = []
    with joined(agent.path) as raw:
        for number in range(1, 6):
            raw.sendall(wire.frame(wire.Ask(number, "inspect")))
        while len(answers) < 4:
            received += raw.recv(1 << 16)
            answers += [wire.read_answer(body) for body in wire.bodies(received)]
        assert all(isinstance(one, wire.Failed) for one in answers)
        go_on.append(True)
        while len(answers) < 5:
            received += raw.recv(1 << 16)
            answers += [wire.read_answer(body) for body in wire.bodies(received)]
        page = answers[-1]
        assert isinstance(page, wire.Page)
        assert {row[1] for row in page.rows} == set(names(request))
        raw.sendall(wire.frame(wire.Ask(9, "inspect")))
        while len(answers) < 6:
            received += raw.recv(1 << 16)
            answers += [wire.read_answer(body) for body in wire.bodies(received)]
        assert isinstance(answers[-1], wire.Page)


async def test_an_agent_that_ends_leaves_the_socket_of_the_engine_that_has_its_place(
    core: FakeCore, path: str
) -> None:
    first = attach(core, path)
    assert first is not None
    # Somebody clears what he takes for a dead engine's, and the next engine binds there.
    os.unlink(path)
    with FakeCore() as second:
        other = attach(second, path)
        assert other is not None
        inode = os.stat(path).st_ino
        first.stop()
        await until(lambda: first.ended)
        assert os.stat(path).st_ino == inode
        client = AgentClient(path)
        assert await client.connect(WAIT_S)
        assert client.hello is not None
        assert client.hello.life == other.life
        client.close()
        other.stop()


async def test_a_process_that_has_no_descriptor_left_is_not_kept_busy(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[float] = []
    accept = socket.socket.accept

    def none_left(listening: socket.socket) -> tuple[socket.socket, object]:
        if len(tries) < 4:
            tries.append(time.monotonic())
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", none_left)
    client = AgentClient(agent.path)
    assert await client.connect(WAIT_S)
    assert tries[-1] - tries[0] > 0.1
    client.close()


def test_a_process_number_that_none_can_have_is_nobodys_process() -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for pid in (2**63 - 1, -1, 0):
        assert hold(wire.Hello(1, wire.PROTOCOL, "life", pid, "1", boot, "0.32.0", 0, 1, [])) is None
    assert [port_of(f"tcp://*:{port}") for port in ("²", "9" * 5_000, "", "5557")] == [None, None, None, 5557]


@pytest.mark.parametrize(
    "changed",
    [{"running": -5}, {"waiting": -1}, {"oldest": -2}, {"seq": 1 << 62}, {"seq": -2}, {"removed": -1}],
    ids=str,
)
def test_a_word_that_no_engine_can_mean_is_not_understood(changed: dict[str, int]) -> None:
    said = {"seq": 1, "oldest": -1, "running": 0, "waiting": 0} | changed
    word = wire.Word(1, told=True, used=0.5, **said)
    (body,) = wire.bodies(bytearray(wire.frame(word)))
    with pytest.raises(wire.FrameError):
        wire.read_answer(body)


async def test_an_agent_that_no_longer_reads_costs_its_bridge_no_memory(path: str) -> None:
    stopped = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received = bytearray(await reader.read(1 << 16))
        (body,) = wire.bodies(received)
        hello = wire.Hello(
            wire.read_ask(body).id, wire.PROTOCOL, "life", os.getpid(), "", "", "0.32.0", 0, 9, []
        )
        writer.write(wire.frame(hello))
        await writer.drain()
        await stopped.wait()
        writer.close()

    server = await asyncio.start_unix_server(answer, path)
    client = AgentClient(path)
    assert await client.connect(WAIT_S)
    for _ in range(100):
        assert await client.remove([b"x" * 64] * wire.HASHES_AT_ONCE, 1, 0.01) is None
        if not client.connected:
            break
    assert not client.connected
    client.close()
    stopped.set()
    server.close()


async def test_a_living_process_is_never_told_to_have_ended_because_its_connection_did(
    agent: Agent, core: FakeCore
) -> None:
    client = AgentClient(agent.path)
    link = AgentLink(client)
    hello = await link.present()
    assert hello is not None
    link.trust(hello, "life-1")
    assert link.ended() is None
    silent = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(MAX_CLIENTS)]
    for raw in silent:
        raw.connect(agent.path)
    await until(lambda: not client.connected)
    # Between the new connection and the confirmation that makes it trusted again.
    deadline_s = time.monotonic() + WAIT_S
    while (again := await link.present()) is None:
        assert time.monotonic() < deadline_s
        assert link.ended() is None
        await asyncio.sleep(0.01)
    assert again is not hello
    assert link.ended() is None
    link.trust(again, "life-1")
    assert link.ended() is None
    link.close()
    assert link.ended() is None
    for raw in silent:
        raw.close()
