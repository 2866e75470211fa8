"""Two controllers on a real log: a policy makes one request, over restarts and hand-overs."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from events.model.control import PolicySet
from tests.support.indexer_log import IndexerLog, indexer_log


@pytest.fixture
async def log(kafka: str, topic_prefix: str, tmp_path: Path) -> AsyncIterator[IndexerLog]:
    async with indexer_log(kafka, topic_prefix, tmp_path / "home") as log:
        yield log


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(120):
        while not await holds():
            await asyncio.sleep(0.3)


async def test_a_policy_makes_one_request_a_period_whichever_controller_is_active(
    log: IndexerLog, database: str, tmp_path: Path
) -> None:
    async def requested(count: int) -> bool:
        return len((await log.registry()).deletions) >= count

    async def term_behind(term: int) -> bool:
        return (await log.registry()).controller_term > term

    await log.control(PolicySet(tenant="default", retain_s=86_400))
    first, second = (
        log.start("controller", database, tmp_path / f"controller-{number}.log") for number in range(2)
    )
    try:
        await _until(lambda: requested(1))
        term = (await log.registry()).controller_term
        # Whichever of them is active, both are killed, one after the other, and each time another takes over.
        first.send_signal(signal.SIGKILL)
        await asyncio.to_thread(first.wait, 10)
        third = log.start("controller", database, tmp_path / "controller-2.log")
        second.send_signal(signal.SIGKILL)
        await asyncio.to_thread(second.wait, 10)
        try:
            await _until(lambda: term_behind(term))
            await log.control(PolicySet(tenant="default", retain_s=43_200))
            await _until(lambda: requested(2))
        finally:
            third.kill()
            await asyncio.to_thread(third.wait, 10)
    finally:
        for process in (first, second):
            process.kill()
            await asyncio.to_thread(process.wait, 10)
    registry = await log.registry()
    reasons = [order.body.reason for order in registry.deletions.values()]
    assert [reason.rpartition(" ")[0].rpartition(" ")[2] for reason in reasons] == ["86400", "43200"]
    assert {order.body.requester for order in registry.deletions.values()} == {"retention"}
