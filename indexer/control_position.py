"""Whether a topic still holds what the control projection has written from it."""

from __future__ import annotations

from typing import Any

from events.kafka.partition_log import PartitionLog
from indexer import control_sql


async def still_there(connection: Any, log: PartitionLog, topic: str) -> bool:
    """Whether it holds the last record that rows were written from, as far as can be known: kv.quota is
    compacted, and a record may have gone for that. Raises LogUnavailableError."""
    row = await connection.fetchrow(control_sql.STORED, topic)
    offset, digest = row["next_offset"], bytes(row["last_record_sha256"])
    start, end = await log.bounds(topic, 0)
    if end < offset:
        return False
    if not offset or not digest or offset <= start:
        return True
    there = await log.digests(topic, 0, offset - 1, offset - 1)
    return there.get(offset - 1, digest) == digest
