"""Whoever reads several tables of the index holds all that a rebuild switches."""

from __future__ import annotations

from indexer.copy_sql import HOLD_TABLES
from indexer.rebuild_schema import TABLES


def test_readers_hold_every_table_that_is_switched_in_the_order_of_the_switch() -> None:
    held = HOLD_TABLES.removeprefix("\nLOCK TABLE ").removesuffix("\nIN ACCESS SHARE MODE\n")
    assert tuple(name.strip() for name in held.split(",")) == TABLES
