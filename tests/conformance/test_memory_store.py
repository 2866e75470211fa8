from __future__ import annotations

import pytest

from indexer.memory_store import MemoryStore
from tests.support.store_contract import StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore()
