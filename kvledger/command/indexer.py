"""`kvledger indexer`: folds the log into PostgreSQL until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

import typer

from events.kafka.deadline import within
from kvledger.command.migrate import configured_database
from kvledger.failure import CommandError, ExitCode
from kvledger.settings import Settings, load_settings

if TYPE_CHECKING:
    from events.keyring import KeyRing

REGISTRY_INTERVAL_S = 0.2
CONTROL_WITHIN_S = 2.0
"""How long a batch with a stream that isn't registered waits for kv.control to be read to its end."""
BEGIN_RETRY_S = 0.05
STOP_WITHIN_S = 18.0


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("indexer")(indexer)


def indexer() -> None:
    """Fold kv.events, kv.control, kv.audit and kv.quota into PostgreSQL; SIGTERM stops in order.

    Any number may run; partitions are shared between them. Exit 1 when it can't go on: start it again.

    Example: kvledger indexer
    """
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for noisy in ("aiokafka", "faust", "mode"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    asyncio.run(run(load_settings(), configured_database()))


async def run(settings: Settings, dsn: str) -> None:
    """The whole indexer process. Raises KvledgerError when it must be started again."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    work = asyncio.create_task(_work(settings, dsn, stop))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    _end_within(STOP_WITHIN_S)
    try:
        # After a signal the worker leaves its group in order; what waits for a service is cut short.
        await within(work, 15 if stop.is_set() else None)
    except TimeoutError:
        logging.getLogger(__name__).warning("stopped without leaving the group in order")


def _end_within(seconds: float) -> None:
    """The consumer has a thread of its own that may wait for a broker: it must not keep a process that has
    to be started again."""
    timer = threading.Timer(seconds, os._exit, (ExitCode.FAILED,))
    timer.daemon = True
    timer.start()


async def _work(settings: Settings, dsn: str, stop: asyncio.Event) -> None:
    from events.fold.registry import Registry
    from events.kafka.connection import LogUnavailableError
    from events.kafka.continuity import Continuity
    from events.kafka.control import ControlTail
    from events.kafka.partition_log import KafkaPartitionLog
    from events.signing import verify
    from events.topic import CONTROL, EVENTS
    from indexer.access_projection import AccessProjection
    from indexer.applier import Applier
    from indexer.control_projection import ControlProjection
    from indexer.outbox import KafkaOutbox
    from indexer.postgres_store import PostgresStore
    from indexer.worker import run_worker
    from kvledger.control import connection

    at = connection(settings)
    ring = _ring(settings)
    store = PostgresStore(dsn, keyring=ring)
    outbox = KafkaOutbox(at)
    partition_log, looked_back = KafkaPartitionLog(at), KafkaPartitionLog(at)
    tail = ControlTail(at, Registry(verify), monotonic_ns=time.monotonic_ns, interval_s=REGISTRY_INTERVAL_S)
    topic = at.topic(EVENTS)

    control_topic = at.topic(CONTROL)

    async def catch_up() -> bool:
        try:
            async with asyncio.timeout(CONTROL_WITHIN_S):
                end = (await partition_log.bounds(control_topic, 0))[1]
        except (TimeoutError, LogUnavailableError):
            return False
        return end <= tail.registry.next_offset or await tail.wait_for(end - 1, CONTROL_WITHIN_S)

    applier = Applier(
        store,
        partition_log,
        outbox,
        tail.registry,
        topic=topic,
        monotonic_s=time.monotonic,
        catch_up=catch_up,
        continuity=Continuity(looked_back, topic),
    )
    control = ControlProjection(
        dsn, at, keyring=ring, monotonic_s=time.monotonic, monotonic_ns=time.monotonic_ns
    )

    async def unread(partition: int, position: int) -> bool:
        start, end = await partition_log.bounds(topic, partition)
        at = max(start, position)
        return at < end and await partition_log.first_from(topic, partition, at) is not None

    background: list[asyncio.Task[None]] = []
    try:
        access = AccessProjection(dsn, at)
        background += [asyncio.create_task(work()) for work in (tail.run, control.run, access.run)]
        while not (tail.registry.log or stop.is_set() or any(task.done() for task in background)):  # noqa: ASYNC110
            await asyncio.sleep(BEGIN_RETRY_S)
        if not stop.is_set():
            worker = asyncio.create_task(
                run_worker(at, applier, stop, unread=unread, instance=settings.indexer_instance)
            )
            await asyncio.wait({worker, *background}, return_when=asyncio.FIRST_COMPLETED)
            for task in background:
                if task.done():
                    stop.set()
            await worker
            for task in background:
                if task.cancelled():
                    raise CommandError("a task of the indexer was cancelled", advice="start it again")
                if task.done():
                    task.result()
    finally:
        _end_within(STOP_WITHIN_S)
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await tail.stop()
        await outbox.close()
        await looked_back.close()
        await partition_log.close()
        await store.close()


def _ring(settings: Settings) -> KeyRing:
    """The ring follows its file. Without one at the start nothing is named."""
    from events.keyring import KeyRing
    from kvledger.keyfile import load_ring, ring_path

    path = ring_path(settings.home)
    if path.exists():
        return load_ring(settings.home)
    logging.getLogger(__name__).warning("no key ring at %s: domains stay unnamed", path)
    return KeyRing({})
