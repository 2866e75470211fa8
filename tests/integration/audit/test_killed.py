"""One deletion in which everybody who acts is killed at a step that lasts. All steps, each in a deletion of its own:
`python -m tests.acceptance.deletion_killed`."""

from __future__ import annotations

from pathlib import Path

import pytest

from events.ids import VerdictKind
from kvledger.settings import Settings
from tests.support.killed_deletion import killed_deletion
from tests.support.simulation import prepared_log


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch, home: Path, kafka: str, topic_prefix: str) -> Settings:
    return prepared_log(monkeypatch, home, kafka, topic_prefix)


async def test_whoever_is_killed_in_a_deletion_doubles_and_drops_nothing_and_the_end_is_proven(
    settings: Settings,
) -> None:
    async with killed_deletion(settings) as world:
        emptied = await world.bridge('before kv.events "type":"cleared"')
        await world.fill(1, 2)
        number = await world.order("before kv.control deletion_requested")
        await emptied.dead()
        assert world.old() == 0
        assert await world.audit(number) is VerdictKind.PENDING, "the engine is empty, and nobody has said so"

        acked = await world.bridge('after kv.events "old_left":0')
        await acked.dead()
        assert await world.audit(number) is VerdictKind.PENDING, "the nonce isn't answered"

        await world.bridge()
        await world.auditor(number, 'after kv.audit "type":"verdict"')
        assert await world.audit(number, wait_s=60) is VerdictKind.PROVEN
        assert list(await world.requests()) == [number]
