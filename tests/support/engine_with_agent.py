"""Fixtures and steps for tests of an engine core with an agent in it. Import the fixtures where they are asked for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from events.hooks.agent import Agent, attach
from tests.support.fake_core import SIZE, FakeCore, Request, engine_modules, external

WAIT_S = 30.0


@pytest.fixture
def modules() -> Iterator[None]:
    """What an agent looks for by vLLM's names."""
    with engine_modules():
        yield


@pytest.fixture
def core(modules: None) -> Iterator[FakeCore]:
    """A running engine core."""
    with FakeCore() as made:
        yield made


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where the agent's socket is to be."""
    return str(tmp_path / "agent.sock")


@pytest.fixture
def agent(core: FakeCore, path: str) -> Iterator[Agent]:
    made = attach(core, path)
    assert made is not None
    yield made
    made.stop()


def prompt(*ids: int) -> list[int]:
    """A block for each id, and one token more, so that all of them can be hits."""
    return [token for one in ids for token in [one] * SIZE] + [1]


def names(request: Request, count: int | None = None) -> list[bytes]:
    """The request's hashes as they stand on the event socket."""
    return [external(one).to_bytes(8, "big") for one in request.block_hashes[:count]]


async def until(true: Callable[[], bool]) -> None:
    """Waits for what the engine's thread does."""
    deadline_s = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.002)


async def ran(core: FakeCore, name: str, tokens: list[int], **fields: object) -> Request:
    """A request that has come to its end."""
    request = core.add(Request(name, tokens, **fields))  # type: ignore[arg-type]
    await until(lambda: request.num_computed_tokens > 0 and name not in core.scheduler.requests)
    return request
