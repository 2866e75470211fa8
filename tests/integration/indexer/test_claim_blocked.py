"""A claim ends a hung owner that blocks it, and never a rebuild that is switching."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from indexer import postgres_store
from indexer.database import connect
from indexer.postgres_store import REBUILD_NAME, PostgresStore
from tests.support.store_contract import TOPIC, start


@pytest.mark.parametrize("name", [REBUILD_NAME, "kvledger indexer"])
async def test_a_claim_waits_for_a_rebuild_and_ends_anybody_else(
    database: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []

    async def looked(dsn: str, **more: Any) -> Any:
        looks.append(more["name"])
        return await connect(dsn, **more)

    store = PostgresStore(database)
    await start(store)
    blocker = await connect(database, name=name)
    try:
        transaction = blocker.transaction()
        await transaction.start()
        await blocker.execute("SELECT FROM partition_progress FOR UPDATE")
        monkeypatch.setattr(postgres_store, "BLOCKED_AFTER_S", 0.05)
        monkeypatch.setattr(postgres_store, "connect", looked)
        claiming = asyncio.create_task(store.claim(TOPIC, 0))
        async with asyncio.timeout(20):
            while len(looks) < 3 and not claiming.done():
                await asyncio.sleep(0.02)
        if name == REBUILD_NAME:
            assert not claiming.done()
            await transaction.commit()
            await claiming
        else:
            await claiming
            with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
                await transaction.commit()
    finally:
        blocker.terminate()
        await store.close()
