"""A bridge that is told to end ends, whatever becomes of its engine meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from kvledger import bridging
from kvledger.attachment.watch import IdentityChangedError
from kvledger.bridging import EngineAddress, run_bridges
from kvledger.settings import Settings
from tests.support.bridge_command import bridge_home

ENGINE = EngineAddress(worker="w0", model="tiny", endpoint="tcp://127.0.0.1:1")


@pytest.mark.parametrize("told", [True, False])
async def test_an_engine_that_becomes_another_while_its_bridge_ends_is_not_learned_anew(
    home: Path, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    async def becomes_another(*given: Any) -> None:
        stopping = given[-1]
        assert isinstance(stopping, asyncio.Event)
        if told:
            os.kill(os.getpid(), signal.SIGTERM)
            await stopping.wait()
        raise IdentityChangedError("the weights are others")

    monkeypatch.setattr(bridging, "_run_all", becomes_another)
    settings = Settings(home=bridge_home(home))
    try:
        async with asyncio.timeout(30):
            if told:
                await run_bridges(settings, (ENGINE,), lambda _: None)
            else:
                with pytest.raises(IdentityChangedError):
                    await run_bridges(settings, (ENGINE,), lambda _: None)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)
