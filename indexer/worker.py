"""The Faust application: consumes `kv.events` in a group, the store's own offsets decide where from."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, cast

import faust
from faust.transport.drivers.aiokafka import Consumer
from faust.types import TP

from events.errors import KvledgerError
from events.kafka.connection import KafkaConnection, LogUnavailableError, RawRecord, raw_record
from events.kafka.continuity import LOOK_EVERY_S
from events.topic import EVENTS
from indexer.applier import Applier, SeekError
from indexer.store import LeaseLostError, StoreUnavailableError

log = logging.getLogger(__name__)
TAKE = 500
TAKE_WITHIN_S = 0.05
CLAIM_WITHIN_S = 60.0
WATCH_EVERY_S = 2.0
PRUNE_EVERY_S = 2.0
CANCEL_TIMEOUT_S, LEAVE_TIMEOUT_S = 5.0, 10.0
UNOWNED_AFTER_S = 2 * CLAIM_WITHIN_S / 3
RECLAIM_AFTER_SESSIONS = 1.2
"""A consumer that has slept knows by then that its group has gone on without it."""
CONTESTED_S = 120.0
"""Who loses a lease again within this time is in somebody's way and ends."""


class WorkerStoppedError(KvledgerError):
    """The worker can't go on; its process ends non-zero and is started again."""


class _LedgerConsumer(Consumer):
    """Kafka's committed offsets are for lag displays: on assignment it seeks to the store's offsets."""

    async def perform_seek(self) -> None:
        app = cast(LedgerApp, self.app)
        partitions = {tp.partition: tp for tp in self.assignment() if tp.topic == app.events_topic}
        offsets = await app.take_over(set(partitions))
        seek_to = {partitions[number]: offset for number, offset in offsets.items()}
        for tp, offset in seek_to.items():
            self._read_offset[tp] = offset or None
            self._committed_offset[tp] = offset or None
        if seek_to:
            await self.seek_wait(seek_to)


class LedgerApp(faust.App):
    """One stateless agent over `kv.events`; no tables, no leader topic, no web server, no data folder."""

    def __init__(
        self,
        connection: KafkaConnection,
        applier: Applier,
        *,
        session_timeout_s: float,
        instance: str | None = None,
    ) -> None:
        self.events_topic = connection.topic(EVENTS)
        self.applier = applier
        super().__init__(
            f"{connection.names.prefix}kvledger-indexer",
            broker=[f"kafka://{server}" for server in connection.bootstrap.split(",")],
            store="memory://",
            topic_disable_leader=True,
            topic_allow_declare=False,
            web_enabled=False,
            broker_session_timeout=session_timeout_s,
            broker_heartbeat_interval=session_timeout_s / 5,
            broker_rebalance_timeout=max(15.0, session_timeout_s),
            broker_commit_interval=1.0,
            stream_buffer_maxsize=2 * TAKE,
            consumer_group_instance_id=instance,
            autodiscover=False,
        )
        topic = self.topic(
            self.events_topic,
            key_type=bytes,
            value_type=bytes,
            key_serializer="raw",
            value_serializer="raw",
            allow_empty=True,
        )
        self.agent(topic, name="project")(self._project)

    def _create_directories(self) -> None:
        """Nothing of this application is kept in files."""

    def _new_consumer(self) -> Any:
        return _LedgerConsumer(
            self.transport,
            callback=self.topics.on_message,
            on_partitions_revoked=self._on_partitions_revoked,
            on_partitions_assigned=self._on_partitions_assigned,
            beacon=self.beacon,
            loop=self.loop,
        )

    async def take_over(self, partitions: set[int]) -> dict[int, int]:
        """Owns the partitions, trying again while store or broker are away; raises the last failure."""
        deadline_s = time.monotonic() + CLAIM_WITHIN_S
        while True:
            try:
                return await self.applier.own(partitions)
            except (StoreUnavailableError, LogUnavailableError, LeaseLostError) as error:
                if time.monotonic() > deadline_s:
                    raise
                log.warning("assignment waits: %s", error)
                await asyncio.sleep(0.5)

    async def _project(self, stream: Any) -> None:
        async for events in stream.take_events(TAKE, within=TAKE_WITHIN_S):
            batches: dict[int, list[RawRecord]] = defaultdict(list)
            for event in events:
                record = _raw(event.message)
                batches[record.partition].append(record)
            for partition, records in batches.items():
                try:
                    await self.applier.apply(partition, records)
                except SeekError as error:
                    await self.consumer.seek(TP(self.events_topic, partition), error.offset)
                except asyncio.CancelledError:
                    raise
                except Exception as error:
                    # An agent that dies is started again behind the record: the whole process must go.
                    await self.crash(error)
                    raise


def _raw(message: Any) -> RawRecord:
    """Faust counts timestamps in seconds."""
    seconds = message.timestamp
    return raw_record(message, timestamp_ms=0 if seconds is None else int(seconds * 1_000))


async def run_worker(
    connection: KafkaConnection,
    applier: Applier,
    stop: asyncio.Event,
    *,
    unread: Callable[[int, int], Awaitable[bool]],
    session_timeout_s: float = 6.0,
    stuck_after_s: float = 60.0,
    instance: str | None = None,
) -> None:
    """Consumes until `stop` is set, then leaves the group in order. `instance` names this member for good: a
    process that starts under the name of one that has ended has its partitions at once, without waiting for
    the session to time out. For that such a member doesn't leave the group: stopped for good, its partitions
    stay unread until `session_timeout_s` has passed. Two that run at once must not share a name.

    Raises WorkerStoppedError when the application crashed, or when a partition with records to read has not
    advanced for `stuck_after_s`.
    """
    app = LedgerApp(connection, applier, session_timeout_s=session_timeout_s, instance=instance)
    app.finalize()
    starting = asyncio.create_task(app.start())
    stopping = asyncio.create_task(stop.wait())
    crashed = asyncio.create_task(_until_crashed(app))
    watching = asyncio.create_task(
        _watch(app, unread, stuck_after_s, RECLAIM_AFTER_SESSIONS * session_timeout_s)
    )
    pruning = asyncio.create_task(_prune(applier))
    looking = asyncio.create_task(_look_back(app))
    try:
        waiting: set[asyncio.Task[Any]] = {stopping, crashed, watching, pruning, looking}
        if not starting.done():
            await asyncio.wait({*waiting, starting}, return_when=asyncio.FIRST_COMPLETED)
        while not any(task.done() for task in waiting):
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if starting.done() and not stopping.done():
            starting.result()
        for failed in (crashed, watching, pruning, looking):
            if failed.done():
                failed.result()
    finally:
        # Bounded, whatever of another library doesn't end when it is cancelled.
        tasks = {starting, stopping, crashed, watching, pruning, looking}
        for task in tasks:
            task.cancel()
        done, _ = await asyncio.wait(tasks, timeout=CANCEL_TIMEOUT_S)
        for task in done:
            if not task.cancelled():
                task.exception()
        leaving = asyncio.create_task(app.stop())
        await asyncio.wait({leaving}, timeout=LEAVE_TIMEOUT_S)
        if not leaving.done():
            leaving.cancel()
            log.warning("the group was not left in order")
        elif not leaving.cancelled() and leaving.exception() is not None:
            log.warning("the group was not left in order: %r", leaving.exception())


async def _until_crashed(app: Any) -> None:
    while not app.crashed:  # noqa: ASYNC110 - the flag is another library's
        await asyncio.sleep(0.2)
    raise WorkerStoppedError(f"the consumer ended: {app.crash_reason!r}")


async def _prune(applier: Applier) -> None:
    """Apart from the watch, which must not wait for what a write holds."""
    while True:
        await asyncio.sleep(PRUNE_EVERY_S)
        await applier.prune()


async def _look_back(app: LedgerApp) -> None:
    """A log that was cut and written on since looks whole from where this process stands in it."""
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        try:
            offsets = await app.applier.look_back()
        except (StoreUnavailableError, LogUnavailableError, LeaseLostError) as error:
            log.debug("what was read can't be compared: %s", error)
            continue
        for partition, offset in offsets.items():
            await _read_from(app, partition, offset)


async def _read_from(app: LedgerApp, partition: int, offset: int) -> None:
    tp = TP(app.events_topic, partition)
    if tp in app.consumer.assignment():
        await app.consumer.seek(tp, offset)
    else:
        app.applier.disown(partition)


async def _reclaim(app: LedgerApp, partition: int) -> None:
    """A lease can be lost to one who doesn't consume: a rebuild that has switched the index."""
    try:
        offset = await app.applier.reclaim(partition)
    except (StoreUnavailableError, LogUnavailableError, LeaseLostError) as error:
        log.warning("partition %d can't be claimed again: %s", partition, error)
        return
    log.info("partition %d is claimed again", partition, extra={"action": "partition_reclaimed"})
    await _read_from(app, partition, offset)


async def _watch(
    app: LedgerApp,
    unread: Callable[[int, int], Awaitable[bool]],
    stuck_after_s: float,
    reclaim_after_s: float,
) -> None:
    """Liveness is that the committed offset advances while there is something to read."""
    moved: dict[int, tuple[int, float]] = {}
    reclaimed_s: dict[int, float] = {}
    while True:
        await asyncio.sleep(min(WATCH_EVERY_S, stuck_after_s / 2))
        now_s = time.monotonic()
        assigned = {tp.partition for tp in app.consumer.assignment() if tp.topic == app.events_topic}
        positions = app.applier.positions
        for partition in assigned:
            position = positions.get(partition, -1)
            at, since_s = moved.get(partition, (-2, now_s))
            if position != at:
                moved[partition] = (position, now_s)
            elif (
                position == -1
                and now_s - since_s > reclaim_after_s
                and now_s - reclaimed_s.get(partition, -CONTESTED_S) >= CONTESTED_S
            ):
                reclaimed_s[partition] = now_s
                await _reclaim(app, partition)
            elif position == -1 and now_s - since_s > min(UNOWNED_AFTER_S, stuck_after_s):
                raise WorkerStoppedError(f"partition {partition} is assigned here and owned elsewhere")
            elif now_s - since_s > stuck_after_s:
                try:
                    waits = await unread(partition, position)
                except LogUnavailableError:
                    continue
                if waits:
                    raise WorkerStoppedError(
                        f"partition {partition} stands at {position} for {stuck_after_s:g} s with records to read"
                    )
                moved[partition] = (position, now_s)
