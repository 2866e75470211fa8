"""One Idempotency-Key makes one request, whichever replica dies between write and answer, and whoever repeats it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from events.ids import Role
from events.receipt import Receipt
from kvledger.control import connection, read_registry
from kvledger.keyfile import load_signer
from kvledger.settings import Settings
from tests.support.command import environment, failure, kvledger
from tests.support.replica import ready, replica
from tests.support.simulation import prepared_log

ORDER = {"scope": {"type": "domain", "domain": "default"}, "reason": "contract ended"}


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch, home: Path, kafka: str, topic_prefix: str) -> Settings:
    return prepared_log(monkeypatch, home, kafka, topic_prefix)


class Stalled:
    """A replica that never answers an order, in a process that can be killed."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.process, self.url = process, url

    @classmethod
    async def begin(cls, settings: Settings) -> Stalled:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.support.stalled_replica",
            env=environment(settings.home, **named(settings)),
            stdout=asyncio.subprocess.PIPE,
        )
        made = cls(process, "")
        made.url = f"http://127.0.0.1:{await made.said('port')}"
        await ready(made.url)
        return made

    async def said(self, word: str) -> int:
        assert self.process.stdout is not None
        async with asyncio.timeout(120):
            line = (await self.process.stdout.readline()).decode().split()
        assert line[0] == word, line
        return int(line[1])

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


def named(settings: Settings) -> dict[str, str]:
    return {"KVLEDGER_KAFKA": settings.kafka or "", "KVLEDGER_TOPIC_PREFIX": settings.topic_prefix}


async def order(url: str, key: str, body: dict[str, Any] | None = None) -> httpx.Response:
    async with httpx.AsyncClient(timeout=60) as http:
        return await http.post(f"{url}/v1/deletions", json=body or ORDER, headers={"Idempotency-Key": key})


async def test_two_replicas_are_killed_between_write_and_answer_and_one_request_stands(
    settings: Settings, tmp_path: Path
) -> None:
    stalled = [await Stalled.begin(settings) for _ in range(2)]
    try:
        asked = [asyncio.create_task(order(one.url, "key-1")) for one in stalled]
        written = [await one.said("written") for one in stalled]
        for one in stalled:
            await one.kill()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(answer, httpx.TransportError) for answer in answers)
    finally:
        for one in stalled:
            await one.kill()
    first = min(written)
    assert len(set(written)) == 2, "both had written their record"
    async with replica(settings) as url, replica(settings) as other:
        repeated = [await order(each, "key-1") for each in (url, other, url)]
        assert [answer.status_code for answer in repeated] == [200, 200, 200]
        assert {answer.json()["request"] for answer in repeated} == {first}
        assert (
            await order(other, "key-1", {**ORDER, "scope": {"type": "tenant", "tenant": "default"}})
        ).status_code == 409
        together = await asyncio.gather(*(order(each, "key-2") for each in (url, other, url, other)))
        assert len({answer.json()["request"] for answer in together}) == 1
        assert sorted(answer.status_code for answer in together)[0] == 200
    registry = await read_registry(connection(settings))
    assert sorted(registry.deletions) == [first, together[0].json()["request"]]
    assert registry.ignored["repeated_idempotency_key"] >= 1

    # The receipt verifies offline, under the public key alone.
    receipt = Receipt.model_validate_json(repeated[0].content)
    control = load_signer(settings.home, Role.CONTROL)
    assert receipt.holds(control.public_key)
    assert receipt.record_sha256 == registry.deletions[first].record_sha256.hex()
    file = tmp_path / "receipt.json"
    file.write_bytes(repeated[0].content)
    verify = ("receipt", "verify", str(file), "--key")
    done = await asyncio.to_thread(kvledger, *verify, control.public_key.hex(), home=tmp_path)
    assert (done.returncode, f"order {first} " in done.stdout) == (0, True)
    done = await asyncio.to_thread(kvledger, *verify, "00" * 32, home=tmp_path)
    assert (done.returncode, "not signed by this key" in failure(done)) == (4, True)
    file.write_bytes(repeated[0].content.replace(b'"request":', b'"request":1'))
    done = await asyncio.to_thread(kvledger, *verify, control.public_key.hex(), home=tmp_path)
    assert done.returncode == 4
