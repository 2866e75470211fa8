"""Reading fold states back from their rows."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from events.fold.state import StreamState
from events.ids import StreamKey
from indexer import copy_sql
from indexer.postgres_write import Names
from indexer.row import CopyRow, add_copies, attributes_of, build_state

_OF_PARTITION = {
    name: f"SELECT t.* FROM {name} t JOIN stream s ON s.id = t.stream_id WHERE s.partition = $1"  # noqa: S608
    for name in ("holder", "profile", "deletion_ack", "tenant_usage", "copy_attribute", "stream_alias")
}


async def load_states(connection: Any, partition: int) -> tuple[list[StreamState], dict[StreamKey, Names]]:
    """All states of a partition, and the row ids that writing them again needs. Run it in a transaction
    that sees one moment."""
    grouped: dict[str, dict[int, list[Any]]] = {}
    for name, sql in _OF_PARTITION.items():
        rows: dict[int, list[Any]] = defaultdict(list)
        for row in await connection.fetch(sql, partition):
            rows[row["stream_id"]].append(row)
        grouped[name] = rows
    attributes = {
        row["id"]: attributes_of(row) for rows in grouped["copy_attribute"].values() for row in rows
    }
    copies: dict[int, list[CopyRow]] = defaultdict(list)
    async for stream_id, holder, group, block, parent, attribute_id in connection.cursor(
        copy_sql.LOAD_COPIES, partition, prefetch=5_000
    ):
        copies[stream_id].append((holder, group, block, parent, attributes[attribute_id]))
    states: list[StreamState] = []
    names: dict[StreamKey, Names] = {}
    for row in await connection.fetch("SELECT * FROM stream WHERE partition = $1 ORDER BY id", partition):
        stream_id = row["id"]
        state = build_state(
            row,
            holders=sorted(grouped["holder"].get(stream_id, ()), key=lambda holder: holder["id"]),
            profiles=grouped["profile"].get(stream_id, ()),
            standings=grouped["deletion_ack"].get(stream_id, ()),
            usage=grouped["tenant_usage"].get(stream_id, ()),
        )
        add_copies(state, copies.get(stream_id, ()))
        states.append(state)
        names[state.key] = Names(
            stream_id,
            {holder["name"]: holder["id"] for holder in grouped["holder"].get(stream_id, ())},
            {attributes[entry["id"]]: entry["id"] for entry in grouped["copy_attribute"].get(stream_id, ())},
            {bytes(entry["alias"]) for entry in grouped["stream_alias"].get(stream_id, ())},
        )
    return states, names
