"""The census counts what is whose; what nothing refers to any more goes after the audit window."""

from __future__ import annotations

import asyncpg

from events.kafka.connection import RawRecord
from events.model.part import DomainEvent
from indexer import control_sql
from indexer.census import StreamCensus, take_census
from indexer.postgres_store import PostgresStore
from tests.support.log import StreamBuilder, block, declared, opened, stored
from tests.support.store_contract import TOPIC, start


async def test_superseded_streams_go_after_the_window_unless_something_of_theirs_counts(
    database: str,
) -> None:
    store, connection = PostgresStore(database), await asyncpg.connect(database)
    lease, projection = await start(store)
    values = []
    for worker in ("gone", "held", "acked", "stranger"):
        builder = StreamBuilder(worker)
        events: list[DomainEvent] = [declared()]
        if worker in ("held", "stranger"):
            events.append(stored([block(worker)]))
        values.append(builder.seal(opened(), events=events).value)
    delta = projection.fold(
        [RawRecord(TOPIC, 0, offset, None, value, None, 0) for offset, value in enumerate(values)]
    )
    assert delta is not None
    await store.write(lease, delta)
    for number, worker in enumerate(("gone", "held", "acked")):
        await connection.execute(
            """INSERT INTO registration (epoch_no, worker, rank, epoch, engine_life, partition, superseded,
                                         registered_at)
               VALUES ($1, $2, 0, 'e1', 'life', 0, true, now())""",
            number,
            worker,
        )
    await connection.execute(
        """INSERT INTO deletion_ack (stream_id, alias, request, removed, old_left, orphans, unassigned, seq)
           SELECT id, '', 1, 0, 0, 0, 0, 0 FROM stream WHERE worker = 'acked'"""
    )
    census = await take_census(database, TOPIC)
    assert census.streams == {
        "registered": StreamCensus(0, 0),
        "superseded": StreamCensus(3, 1),
        "unregistered": StreamCensus(1, 1),
    }
    assert {number: one.next_offset for number, one in census.partitions.items()} == {0: 4}

    async def kept() -> set[str]:
        for sql in control_sql.FORGET:
            await connection.execute(sql, 90)
        return {row["worker"] for row in await connection.fetch("SELECT worker FROM stream")}

    assert await kept() == {"gone", "held", "acked", "stranger"}
    await connection.execute("UPDATE stream SET updated_at = now() - interval '91 days'")
    assert await kept() == {"held", "acked", "stranger"}
    parts = await connection.fetch("SELECT inhrelid FROM pg_inherits WHERE inhparent = 'copy_span'::regclass")
    assert len(parts) == 4
    await connection.close()
    await store.close()


async def test_keys_of_dead_records_are_bounded_and_their_count_stays(
    database: str,
) -> None:
    connection = await asyncpg.connect(database)
    await connection.execute(
        """INSERT INTO dead_record SELECT $1, 0, n, CASE WHEN n < 5 THEN 'unstorable' WHEN n < 8 THEN 'foreign_stream'
           ELSE 'not_json' END, now() - make_interval(days => CASE WHEN n < 12 THEN 91 ELSE 1 END)
           FROM generate_series(0, 39) n""",
        TOPIC,
    )
    for times in (1, 2):
        await connection.execute(control_sql.PRUNE_DEAD, 90, 10)
        left = await connection.fetch('SELECT "offset" FROM dead_record ORDER BY "offset"')
        assert [row[0] for row in left] == [*range(5), *range(30, 40)], times
        census = await take_census(database, TOPIC)
        assert (census.dead_records, census.foreign_streams) == (40, 3)
    await connection.close()
