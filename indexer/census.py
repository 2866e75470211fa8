"""What the index holds and how far it is, for people and monitors: counts only, cheap whatever its size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from events.fold.record import FOREIGN
from indexer.copy_sql import HOLD_TABLES
from indexer.database import UNAVAILABLE, connect
from indexer.store import StoreUnavailableError
from indexer.stranger import StrangerLimits

PARTITIONS = """
SELECT partition, next_offset, term, log_id, next_offset < rebuild_until AS rebuilding,
       extract(epoch FROM now() - updated_at)::float8 AS idle_s
FROM partition_progress WHERE topic = $1 ORDER BY partition
"""
STREAMS = """
SELECT CASE WHEN g.epoch_no IS NULL THEN 'unregistered' WHEN g.superseded THEN 'superseded' ELSE 'registered' END
           AS kind,
       count(*) AS streams, coalesce(sum(u.blocks), 0)::int8 AS blocks
FROM stream s
LEFT JOIN registration g ON (g.worker, g.rank, g.epoch) = (s.worker, s.rank, s.epoch)
LEFT JOIN (SELECT stream_id, sum(blocks) AS blocks FROM tenant_usage GROUP BY stream_id) u ON u.stream_id = s.id
GROUP BY 1
"""
DEAD = """
SELECT d.records + coalesce(p.records, 0)::int8 AS records,
       d.foreign_streams + coalesce(p.foreign_streams, 0)::int8 AS foreign_streams
FROM (SELECT count(*) AS records, count(*) FILTER (WHERE reason = $2) AS foreign_streams
      FROM dead_record WHERE topic = $1) d,
     (SELECT sum(records) AS records, sum(foreign_streams) AS foreign_streams
      FROM dead_record_pruned WHERE topic = $1) p
"""


@dataclass(frozen=True, slots=True)
class PartitionCensus:
    """`idle_s`: seconds since the last commit."""

    next_offset: int
    term: int
    log_id: str
    rebuilding: bool
    idle_s: float


@dataclass(frozen=True, slots=True)
class StreamCensus:
    streams: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Census:
    """`dead_records` counts those too whose keys were given up by age or number. `streams` by kind: registered,
    superseded, unregistered. `unregistered_bound`: how many of the last kind
    each partition holds at most. `foreign_streams`: dead records that stand for streams of nobody; beyond a
    bound such streams are passed without one."""

    partitions: dict[int, PartitionCensus]
    streams: dict[str, StreamCensus]
    dead_records: int
    foreign_streams: int
    unregistered_bound: int = StrangerLimits().max_streams


async def take_census(dsn: str, topic: str) -> Census:
    """As of one moment. Raises StoreUnavailableError."""
    connection: Any = None
    try:
        connection = await connect(dsn, name="kvledger index status")
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            await connection.execute(HOLD_TABLES)
            partitions = await connection.fetch(PARTITIONS, topic)
            streams = await connection.fetch(STREAMS)
            dead = await connection.fetchrow(DEAD, topic, FOREIGN)
    except UNAVAILABLE as error:
        raise StoreUnavailableError(f"PostgreSQL: {type(error).__name__}") from error
    finally:
        if connection is not None:
            connection.terminate()
    counted = dict.fromkeys(("registered", "superseded", "unregistered"), StreamCensus(0, 0))
    counted.update({row["kind"]: StreamCensus(row["streams"], row["blocks"]) for row in streams})
    return Census(
        {
            row["partition"]: PartitionCensus(
                row["next_offset"], row["term"], row["log_id"], row["rebuilding"], row["idle_s"]
            )
            for row in partitions
        },
        counted,
        dead["records"],
        dead["foreign_streams"],
    )
