"""An engine's end that only its bridge has seen reaches the log, however long that is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from events.fold.registry import Registry
from events.ids import Role
from events.kafka.connection import LogUnavailableError
from events.model.control import ExitAttested
from events.signing import verify
from kvledger import engine_agent
from kvledger.engine_agent import ExitAttester
from kvledger.keyfile import ensure_key
from kvledger.settings import Settings
from tests.support.engine_with_agent import until


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    ensure_key(tmp_path, Role.SUPERVISOR)
    return Settings(home=tmp_path)


class Log:
    """A log that is away for so many tries; every third of them its client gives up by itself."""

    def __init__(self, away: int) -> None:
        self.away = away
        self.tries = 0
        self.taken: list[ExitAttested] = []

    @asynccontextmanager
    async def writer(self, settings: Settings, registry: Registry, *roles: Role) -> AsyncIterator[Log]:
        assert roles == (Role.SUPERVISOR,)
        self.tries += 1
        if self.tries <= self.away:
            if self.tries % 3 == 0:
                raise asyncio.CancelledError
            raise LogUnavailableError("no broker answers")
        yield self

    async def append(self, body: ExitAttested) -> None:
        self.taken.append(body)


async def test_an_end_is_attested_once_the_log_is_back(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(away=100)
    monkeypatch.setattr(engine_agent, "control_writer", log.writer)
    monkeypatch.setattr(engine_agent, "ATTEST_EVERY_S", (0.0, 0.0))
    attester = ExitAttester(settings, Registry(verify))
    attester.of("w0")("life-1", "process 1 ended")
    await until(lambda: bool(log.taken))
    assert [(one.worker, one.engine_life) for one in log.taken] == [("w0", "life-1")]
    await attester.stop()


async def test_one_that_was_not_attested_before_the_bridge_ends_is_named(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log(away=1_000_000)
    monkeypatch.setattr(engine_agent, "control_writer", log.writer)
    attester = ExitAttester(settings, Registry(verify))
    attester.of("w0")("life-1", "process 1 ended")
    await until(lambda: log.tries == 1)
    await attester.stop()
    assert "life-1 is not attested: the bridge was ended first" in caplog.text
