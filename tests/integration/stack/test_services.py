"""The session's Kafka and PostgreSQL are real and hold what they are given."""

from __future__ import annotations

import asyncpg
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic


async def test_a_record_written_to_kafka_is_read_back(kafka: str, topic_prefix: str) -> None:
    topic = f"{topic_prefix}echo"
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    await admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
    await admin.close()
    producer = AIOKafkaProducer(bootstrap_servers=kafka, enable_idempotence=True, acks="all")
    await producer.start()
    await producer.send_and_wait(topic, b"hello")
    await producer.stop()
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=kafka, auto_offset_reset="earliest")
    await consumer.start()
    record = await consumer.getone()
    await consumer.stop()
    assert record.value == b"hello"


async def test_each_test_has_a_database_of_its_own(database: str) -> None:
    connection = await asyncpg.connect(database)
    await connection.execute("CREATE TABLE mine (n int)")
    assert await connection.fetchval("SELECT count(*) FROM mine") == 0
    await connection.close()


async def test_sorting_does_not_depend_on_the_machines_locale(database: str) -> None:
    connection = await asyncpg.connect(database)
    rows = await connection.fetch("SELECT w FROM (VALUES ('b'), ('B'), ('a')) t(w) ORDER BY w")
    await connection.close()
    assert [row["w"] for row in rows] == ["B", "a", "b"]
