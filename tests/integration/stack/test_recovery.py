"""Killing parts of a running stack loses nothing and leaves nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from kvledger.stack.failure import AlreadyRunningError, DataVersionError, StackError
from kvledger.stack.plan import Extent
from kvledger.stack.session import read_running, running_stack, wipe
from kvledger.stack.state import Endpoints, Home, ServiceRecord, ServiceState
from tests.support.process import processes_of, wait_until
from tests.support.stack import stack_settings


@pytest.fixture(scope="module")
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("own") / "home"


@pytest.fixture
def own(own_home: Path) -> Iterator[Endpoints]:
    with running_stack(stack_settings(own_home), extent=Extent.SERVICES) as endpoints:
        yield endpoints
    assert processes_of(own_home) == {}


def record_of(home: Path, name: str) -> ServiceRecord:
    return next(record for record in read_running(Home(home)).services if record.name == name)


def kill_and_await_restart(home: Path, name: str) -> None:
    before = record_of(home, name)
    assert before.process is not None
    os.kill(before.process.pid, signal.SIGKILL)
    wait_until(
        lambda: (
            record_of(home, name).restarts > before.restarts
            and record_of(home, name).state is ServiceState.READY
        )
    )
    after = record_of(home, name)
    assert after.last_exit == "signal 9"
    assert after.process != before.process


async def write_both(at: Endpoints) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=at.kafka)
    await admin.start()
    await admin.create_topics([NewTopic("kept", num_partitions=1, replication_factor=1)])
    await admin.close()
    producer = AIOKafkaProducer(bootstrap_servers=at.kafka, enable_idempotence=True, acks="all")
    await producer.start()
    for number in range(100):
        await producer.send_and_wait("kept", b"%d" % number)
    await producer.stop()
    connection = await asyncpg.connect(at.database_url)
    await connection.execute("CREATE TABLE kept AS SELECT generate_series(1, 100) AS n")
    await connection.close()


async def read_kafka(at: Endpoints) -> list[bytes]:
    consumer = AIOKafkaConsumer("kept", bootstrap_servers=at.kafka, auto_offset_reset="earliest")
    await consumer.start()
    async with asyncio.timeout(30):
        records = [(await consumer.getone()).value for _ in range(100)]
    await consumer.stop()
    return records


async def tables(at: Endpoints) -> list[str]:
    connection = await asyncpg.connect(at.database_url)
    rows = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    await connection.close()
    return [row["tablename"] for row in rows]


async def read_both(at: Endpoints) -> tuple[list[bytes], int]:
    records = await read_kafka(at)
    connection = await asyncpg.connect(at.database_url)
    count = await connection.fetchval("SELECT count(*) FROM kept")
    await connection.close()
    return records, count


EVERYTHING = ([b"%d" % number for number in range(100)], 100)


def test_data_survives_the_kill_of_each_service(own: Endpoints, own_home: Path) -> None:
    asyncio.run(write_both(own))
    kill_and_await_restart(own_home, "kafka")
    kill_and_await_restart(own_home, "postgres")
    assert asyncio.run(read_both(own)) == EVERYTHING


def test_a_second_start_is_quick_and_finds_the_data(own_home: Path) -> None:
    begun_s = time.monotonic()
    with running_stack(stack_settings(own_home), extent=Extent.SERVICES) as endpoints:
        took_s = time.monotonic() - begun_s
        assert asyncio.run(read_both(endpoints)) == EVERYTHING
        with (
            pytest.raises(StackError, match="already runs"),
            running_stack(stack_settings(own_home), extent=Extent.SERVICES),
        ):
            pass
        with pytest.raises(AlreadyRunningError):
            wipe(Home(own_home))
    assert took_s < 30


@pytest.mark.parametrize("lost", ["postgres", "postgres/data"])
def test_lost_database_folder_is_made_again_and_the_log_is_kept(own_home: Path, lost: str) -> None:
    shutil.rmtree(own_home / lost)
    with running_stack(stack_settings(own_home), extent=Extent.SERVICES) as endpoints:
        assert asyncio.run(read_kafka(endpoints)) == EVERYTHING[0]
        assert asyncio.run(tables(endpoints)) == []


def test_nothing_outlives_a_killed_supervisor(own_home: Path) -> None:
    with running_stack(stack_settings(own_home), extent=Extent.SERVICES):
        os.kill(read_running(Home(own_home)).supervisor.pid, signal.SIGKILL)
        wait_until(lambda: not processes_of(own_home))


def test_data_of_another_version_is_refused_and_left_alone(own_home: Path) -> None:
    stamp = own_home / "kafka" / "version"
    stamp.write_text("3.9.1\n")
    with (
        pytest.raises(StackError, match=r"holds data of Kafka 3\.9\.1") as caught,
        running_stack(stack_settings(own_home), extent=Extent.SERVICES),
    ):
        pass
    assert "kvledger down --wipe" in caught.value.advice
    assert caught.value.exit_code == DataVersionError(own_home, found="", wanted="").exit_code
    assert (own_home / "kafka" / "data" / "meta.properties").is_file()
    assert processes_of(own_home) == {}


def test_wipe_removes_everything(own_home: Path) -> None:
    assert wipe(Home(own_home))
    assert not own_home.exists()
    assert not wipe(Home(own_home))
