"""What people may type by mistake, or a broken file may hold, and no command may take for something else."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from events.ids import Role
from events.model.control import ControllerStarted
from events.signing import Signer
from kvledger.cluster import ClusterAddress, ClusterError, connected
from kvledger.command.attest import read_inventory
from kvledger.command.key import is_secret
from kvledger.control import write_once
from kvledger.duration import seconds_of
from kvledger.failure import CommandError, ExitCode
from kvledger.settings import Settings


@pytest.mark.parametrize("hours", [math.nan, math.inf, -math.inf, -1.0, 1e300])
def test_no_time_that_anybody_means(hours: float) -> None:
    with pytest.raises(CommandError, match="--deadline-hours takes 0 to 1000000 hours") as refused:
        seconds_of("--deadline-hours", hours, "delete")
    assert refused.value.exit_code == ExitCode.USAGE


def test_hours_are_whole_seconds() -> None:
    given = (None, 0.5, 24)
    assert [seconds_of("--x", hours, "delete") for hours in given] == [None, 1_800, 86_400]


def test_the_secret_half_of_a_key_is_never_granted(tmp_path: Path) -> None:
    seed = bytes(range(32))
    public = Signer.from_seed(seed).public_key
    assert is_secret(seed.hex(), seed, [public])
    assert is_secret(str(tmp_path / "auditor.key"), seed, [])
    assert not is_secret(str(tmp_path / "auditor.pub"), public, [public])


def test_an_empty_file_is_no_inventory(tmp_path: Path) -> None:
    path = tmp_path / "fleet"
    path.write_text("\n \n")
    with pytest.raises(CommandError, match="names nobody"):
        read_inventory(path)
    path.write_text('{"source": "rack", "members": []}')
    assert (read_inventory(path).source, read_inventory(path).members) == ("rack", ())


@pytest.mark.parametrize("key", ["", "a b", "x" * 201, "ключ"])
def test_an_idempotency_key_that_no_record_can_hold(key: str) -> None:
    body = ControllerStarted(controller="c")
    with pytest.raises(CommandError, match="idempotency key") as refused:
        asyncio.run(write_once(Settings(), Role.CONTROL, body, principal="cli", key=key))
    assert refused.value.exit_code == ExitCode.USAGE


@pytest.mark.parametrize("content", [b"\xff\xfe", b"", b"a\nb", "ключ".encode()])
def test_a_token_file_that_holds_no_token(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)

    async def ask() -> None:
        async with connected(ClusterAddress("http://127.0.0.1:9", path)) as cluster:
            await cluster.list()

    with pytest.raises(ClusterError, match="token"):
        asyncio.run(ask())
