from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from indexer.postgres_store import PostgresStore
from tests.support.store_contract import StoreContract


class TestPostgresStore(StoreContract):
    @pytest.fixture
    async def store(self, database: str) -> AsyncIterator[PostgresStore]:
        store = PostgresStore(database)
        yield store
        await store.close()
