"""Which durable stores the hooks have declared in `kv.events`: for people who name one, and may have mistyped it."""

from __future__ import annotations

import json
from typing import Any

from auditor.log import PartitionReader
from events.kafka.connection import KafkaConnection, RawRecord
from events.topic import EVENTS

READ_TIMEOUT_S = 20.0
MARK = b'"durable_id":"'


async def declared_stores(connection: KafkaConnection, partitions: int) -> set[str]:
    """Every store that a record in the log's own part names. Reads all that the log holds; nobody's signature is looked
    at, as nothing is decided by it. Raises LogUnavailableError."""
    found: set[str] = set()

    def take(record: RawRecord) -> None:
        if MARK in record.value:
            found.update(_named(record.value))

    reader = PartitionReader(connection, connection.topic(EVENTS), READ_TIMEOUT_S)
    await reader.start(partitions)
    try:
        await reader.read_to(await reader.ends(), take)
    finally:
        await reader.stop()
    return found


def _named(value: bytes) -> set[str]:
    try:
        part = json.loads(value.split(b"\n", 2)[1])
        events = part["events"]
        opened = [event.get("opened", event) for event in events]
        return {
            str(one["durable_id"]) for event in opened for one in _holders(event) if one.get("durable_id")
        }
    except (ValueError, LookupError, TypeError, AttributeError):
        return set()


def _holders(event: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in event.get("holders", []) if isinstance(one, dict)]
