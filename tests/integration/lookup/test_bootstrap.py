"""Starting from PostgreSQL's snapshot: same answers as from the log, and PostgreSQL not asked again."""

from __future__ import annotations

from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.structs import TopicPartition

from events.kafka.connection import LogTail, RawRecord
from events.topic import EVENTS
from indexer.postgres_store import PostgresStore
from indexer.projection import PartitionProjection
from indexer.service.config import ServiceConfig
from indexer.service.server import start
from indexer.store import Snapshot
from router_client.client import RouterClient
from tests.support.live_log import PARTITIONS, RING, LiveLog, live_log, tiny_hook, until
from tests.support.lookup_service import CHAIN, answered, serving, url
from tests.support.reader_world import lengths, reasons


async def project(log: LiveLog, store: PostgresStore, *, log_id: str | None = None) -> None:
    """Writes what kv.events holds now into the index, as the indexer does."""
    topic = log.connection.topic(EVENTS)
    tail = LogTail(log.connection, {(topic, p): 0 for p in range(PARTITIONS)})
    await tail.start()
    records: list[RawRecord] = []
    try:
        wanted = sum((await tail.end_offsets()).values())
        while len(records) < wanted:
            records += await tail.fetch()
    finally:
        await tail.stop()
    for partition in range(PARTITIONS):
        lease = await store.claim(topic, partition)
        lease = await store.reset(lease, log_id=log_id or log.log, start=0, rebuild_until=0)
        projection = PartitionProjection.of(partition, 0, b"", [])
        delta = projection.fold([record for record in records if record.partition == partition])
        if delta is not None:
            await store.write(lease, delta)


async def test_a_snapshot_and_the_log_behind_it_give_the_answer_of_the_whole_log(
    kafka: str, topic_prefix: str, database: str
) -> None:
    store = PostgresStore(database, keyring=RING)
    async with live_log(kafka, topic_prefix) as log, tiny_hook(log, "w0") as a, tiny_hook(log, "w1") as b:
        await a.store(CHAIN[:20])
        await b.store(CHAIN[:30])
        await b.evict([CHAIN[25]])
        await project(log, store)
        await a.evict([CHAIN[3]])
        await b.store(CHAIN[30:35], parent=CHAIN[29])
        async with (
            serving(kafka, topic_prefix, load_snapshot=store.snapshot) as server,
            RouterClient(url(server), timeout_s=20) as client,
        ):
            found = await answered(client, lambda a: a.complete)
            assert lengths(found) == {"w0": 3, "w1": 25}
            assert server.service.feed.state.restored_copies == 49
            await store.close()
            await b.store(CHAIN[25:26], parent=CHAIN[24])
            await answered(client, lambda a: lengths(a) == {"w0": 3, "w1": 35} and a.complete)
        async with (
            serving(kafka, topic_prefix) as server,
            RouterClient(url(server), timeout_s=20) as client,
        ):
            await answered(client, lambda a: lengths(a) == {"w0": 3, "w1": 35} and a.complete)
    await store.close()


async def test_a_snapshot_of_another_log_is_not_used(kafka: str, topic_prefix: str, database: str) -> None:
    store = PostgresStore(database, keyring=RING)
    async with live_log(kafka, topic_prefix) as log, tiny_hook(log, "w0") as hook:
        await hook.store(CHAIN[:5])
        await project(log, store, log_id="log-other")
        async with (
            serving(kafka, topic_prefix, load_snapshot=store.snapshot) as server,
            RouterClient(url(server), timeout_s=20) as client,
        ):
            await answered(client, lambda a: lengths(a) == {"w0": 5} and a.complete)
            assert server.service.feed.state.restored_copies is None
    await store.close()


async def test_a_log_that_was_cut_behind_the_snapshot_puts_its_streams_in_gap(
    kafka: str, topic_prefix: str
) -> None:
    async with (
        live_log(kafka, topic_prefix) as log,
        tiny_hook(log, "w0") as hook,
        tiny_hook(log, "w1") as other,
    ):
        assert hook.partition != other.partition
        await hook.store(CHAIN[:5])
        await other.store(CHAIN[:2])
        topic = log.connection.topic(EVENTS)

        async def stale(asked: str) -> Snapshot:
            assert asked == topic
            return Snapshot(log.log, {hook.partition: 1, other.partition: 0}, [])

        await hook.store(CHAIN[5:6], parent=CHAIN[4])
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
        await admin.start()
        try:
            await admin.delete_records(
                {TopicPartition(topic, hook.partition): RecordsToDelete(before_offset=2)}
            )
        finally:
            await admin.close()
        config = ServiceConfig(
            connection=log.connection, keyring=RING, reader="r", port=0, load_snapshot=stale
        )
        server = await start(config)
        try:
            async with RouterClient(url(server), timeout_s=20) as client:
                found = await answered(client, lambda a: lengths(a) == {"w1": 2})
                assert reasons(found)["w0"] in ("gap", "quarantined", "unopened")
                assert not found.complete
            await until(lambda: server.service.beacons.resyncs >= 1)
        finally:
            await server.stop()
