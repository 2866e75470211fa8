"""Keeping the view up to date: tails of kv.control, kv.events, kv.pulse, kv.signals and kv.quota.

Each tail reconnects by itself; while one is away the answers say how old they are. The event loop is shared
with lookups, so no turn of applying takes longer than `TURN_NS` plus one record.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from events.errors import KvledgerError
from events.fold.registry import Registry
from events.kafka.connection import KafkaConnection, LogTail, LogUnavailableError, RawRecord
from events.kafka.continuity import LOOK_EVERY_S, Continuity
from events.kafka.control import ControlTail
from events.kafka.partition_log import KafkaPartitionLog
from events.model.control import ControlRecord
from events.token import Token
from events.topic import EVENTS, PULSE, QUOTA, SIGNALS
from indexer.service.config import LoadSnapshot
from indexer.service.log_end import LogEnd
from router_client.view import LocalView

LOG = logging.getLogger(__name__)
TURN_NS = 2_000_000
MAX_DEBT_NS = 50 * TURN_NS
INDEX_STEPS = 2_000
FETCH_RECORDS = 500
RETRY_S = 0.5
COMPLAIN_EVERY_NS = 60_000_000_000
CONTROL_POLL_S = 0.02


class EvenTail(Protocol):
    """What `LogTail` is to the feed."""

    async def fetch_evenly(
        self, share: int, *, timeout_ms: int, busy: Collection[int]
    ) -> list[RawRecord]: ...

    async def position(self, topic: str, partition: int) -> int: ...


@dataclass(slots=True)
class FeedState:
    """What the feed knows of the log's end, for readiness and watermarks."""

    control_read: bool = False
    ends: dict[int, int] | None = None
    visible_ms: float | None = None
    """Broker timestamp to visible here of the newest record; two clocks, for information only."""
    reconnects: int = 0
    restored_copies: int | None = None
    """Copies taken from a snapshot at the start; None: the log was read from its start."""


class ViewFeed:
    """Runs until cancelled. `moved` wakes whoever waits for the view to get further."""

    def __init__(
        self,
        connection: KafkaConnection,
        registry: Registry,
        *,
        monotonic_ns: Callable[[], int],
        wall_ms: Callable[[], int],
        load_snapshot: LoadSnapshot | None = None,
        load_from_peers: LoadSnapshot | None = None,
        snapshot_timeout_s: float = 60.0,
    ) -> None:
        self.state = FeedState()
        self._loaders = [load for load in (load_snapshot, load_from_peers) if load is not None]
        self._snapshot_timeout_s = snapshot_timeout_s
        self.control = ControlTail(connection, registry, monotonic_ns=monotonic_ns)
        self._connection = connection
        self._monotonic_ns = monotonic_ns
        self._wall_ms = wall_ms
        self._waiters: list[asyncio.Future[None]] = []
        self._view: LocalView | None = None
        self._queues: dict[int, deque[RawRecord]] = {}
        self._given: dict[int, int] = {}
        self._credits_ns: dict[int, int] = {}
        self._complained_ns: dict[str, int] = {}
        self._log_end = LogEnd(connection.topic(EVENTS), monotonic_ns=monotonic_ns)
        self._log = KafkaPartitionLog(connection)
        self._continuity = Continuity(self._log, connection.topic(EVENTS))

    def attach(self, view: LocalView) -> None:
        """The view to feed; before `run`."""
        self._view = view
        self.control.listen(self._control_folded)

    async def run(self) -> None:
        """Reads kv.control to its end first: without it nobody knows which streams exist.

        Raises LogTruncatedError (alone or in a group) when kv.control ends before what was read: the service
        must end, since what it knows may rest on records that never were.
        """
        await self._until_genesis()
        self.state.control_read = True
        await self._bootstrap()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.control.run())
            group.create_task(self._forever("events", self._events))
            group.create_task(self._forever("signals", self._signals))

    async def stop(self) -> None:
        """After `run` was cancelled; idempotent."""
        await self.control.stop()
        await self._log.close()

    async def wait_moved(self, timeout_s: float) -> None:
        """Returns after the view got further, or after the time-out."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    async def beyond_log(self, token: Token, asked_ns: int, timeout_s: float) -> bool:
        """Whether a token that was shown at `asked_ns` lies beyond the log's end. No broker is asked more
        often than `indexer.service.log_end.EVERY_S` allows, however many tokens are shown; what can't be known
        within `timeout_s` isn't beyond."""
        try:
            async with asyncio.timeout(timeout_s):
                if token.control > self.control.registry.next_offset:
                    while (self.control.current_ns or 0) < asked_ns:  # noqa: ASYNC110 - nobody tells
                        await asyncio.sleep(CONTROL_POLL_S)
                    if token.control > self.control.registry.next_offset:
                        return True
                return await self._log_end.beyond(token.events, asked_ns)
        except TimeoutError:
            return False

    def last_sha256(self) -> dict[int, bytes]:
        """SHA-256 of the record before the view's position, by partition where there was one."""
        view = self._fed()
        lasts = {partition: self._continuity.last(partition) for partition in view.positions}
        return {
            p: last[1] for p, last in lasts.items() if last is not None and last[0] == view.position(p) - 1
        }

    def now_ns(self) -> int:
        """The reader's clock."""
        return self._monotonic_ns()

    async def _bootstrap(self) -> None:
        """Takes a snapshot of the index if there is one of this log. Whatever goes wrong costs time alone:
        the log has everything."""
        view, topic = self._fed(), self._connection.topic(EVENTS)
        for load in self._loaders:
            try:
                async with asyncio.timeout(self._snapshot_timeout_s):
                    snapshot = await load(topic)
            except (KvledgerError, TimeoutError) as error:
                LOG.warning("no snapshot: %s", type(error).__name__, extra={"action": "snapshot_unavailable"})
                continue
            if snapshot.log_id == view.registry.log and snapshot.positions:
                view.restore(snapshot.states, snapshot.positions, self.now_ns())
                for partition, last in snapshot.last_sha256.items():
                    self._continuity.note(partition, view.position(partition) - 1, last)
                self.state.restored_copies = view.copies
                return

    async def _until_genesis(self) -> None:
        while True:
            try:
                await self.control.catch_up()
            except LogUnavailableError as error:
                self._complain("control", error)
                await self.control.stop()
            if self.control.registry.log:
                return
            await asyncio.sleep(RETRY_S)

    async def _forever(self, name: str, read: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await read()
            except LogUnavailableError as error:
                self.state.reconnects += 1
                self._complain(name, error)
            await asyncio.sleep(RETRY_S)

    async def _events(self) -> None:
        view, topic = self._fed(), self._connection.topic(EVENTS)
        partitions = range(view.registry.partitions)
        await self._continuity.begin(partitions)
        found = await self._continuity.look()
        lost = found.lost
        begins, ends = await self._bounds([(topic, p) for p in partitions])
        for p in partitions:
            first, end = begins[topic, p], ends[topic, p]
            if p in lost or not first <= view.position(p) <= end:
                if view.position(p) > 0:
                    LOG.warning("partition %d lost records", p, extra={"action": "partition_lost"})
                view.partition_lost(p, min(max(first, lost.get(p) or first), end))
                self._continuity.forget(p)
        await self._continuity.begin(partitions)
        for p in found.moved:
            self._continuity.settle(p)
        self.state.ends = {p: ends[topic, p] for p in partitions}
        self._check_caught_up()
        tail = LogTail(self._connection, {(topic, p): view.position(p) for p in partitions})
        try:
            await tail.start()
            self._log_end.follow(tail)
            await self._follow_while_whole(view, tail)
        finally:
            await self._log_end.stop()
            await tail.stop()

    async def _follow_while_whole(self, view: LocalView, tail: EvenTail) -> None:
        """Raises LogUnavailableError once a partition has another leader: begin again, without what was fetched."""
        following = asyncio.create_task(self._follow(view, tail))
        looking = asyncio.create_task(self._look_back())
        try:
            await asyncio.wait({following, looking}, return_when=asyncio.FIRST_COMPLETED)
            for task in (following, looking):
                if task.done():
                    task.result()
        finally:
            for task in (following, looking):
                task.cancel()
            await asyncio.wait({following, looking})

    async def _look_back(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                found = await self._continuity.look()
            except LogUnavailableError as error:
                self._complain("events", error)
                continue
            if found.lost:
                raise LogUnavailableError(
                    f"partitions {sorted(found.lost)} hold other records than were read"
                )
            if found.moved:
                raise LogUnavailableError(f"partitions {sorted(found.moved)} have another leader")

    async def _follow(self, view: LocalView, tail: EvenTail) -> None:
        """Partitions take turns by time, so that one that has much to read, or large records, delays the others
        by about a turn and a record. What the index puts off is worked in between."""
        self._queues.clear()
        self._given.clear()
        while True:
            idle = not self._queues and view.work(0)
            records = await tail.fetch_evenly(
                FETCH_RECORDS, timeout_ms=100 if idle else 0, busy=self._queues.keys()
            )
            await self._apply(view, records)
            if not (records or self._queues or view.caught_up or self.state.ends is None):
                await self._pass_marks(view, tail)

    async def _pass_marks(self, view: LocalView, tail: EvenTail) -> None:
        """Behind the last record of a partition there may be a transaction's mark, which nobody is given: where the
        view has taken all that was given, it is as far as the reader."""
        topic = self._connection.topic(EVENTS)
        taken = [p for p in range(view.registry.partitions) if view.position(p) >= self._given.get(p, 0)]
        self._check_caught_up({p: await tail.position(topic, p) for p in taken})
        self._wake()

    async def _apply(self, view: LocalView, records: list[RawRecord]) -> None:
        """Queues the records and gives each partition, and the index, one turn. Who took longer than a turn, as
        one record can, waits until the others have had as much."""
        for record in records:
            self._queues.setdefault(record.partition, deque()).append(record)
            self._given[record.partition] = record.offset + 1
        newest: int | None = None
        for partition, queue in list(self._queues.items()):
            credit_ns = min(TURN_NS, self._credits_ns.get(partition, 0) + TURN_NS)
            if credit_ns <= 0 and len(self._queues) > 1:
                self._credits_ns[partition] = credit_ns
                continue
            begun_ns = self._monotonic_ns()
            newest = self._turn(view, queue)
            taken_ns = self._monotonic_ns() - begun_ns
            self._credits_ns[partition] = max(credit_ns - taken_ns, -MAX_DEBT_NS)
            if not queue:
                del self._queues[partition]
            self._wake()
            await asyncio.sleep(0)
        if not view.work(INDEX_STEPS) or newest is None:
            await asyncio.sleep(0)
        if newest is not None:
            self.state.visible_ms = max(0.0, float(self._wall_ms() - newest))
            self._check_caught_up()
            self._wake()

    def _turn(self, view: LocalView, queue: deque[RawRecord]) -> int:
        """Applies records for `TURN_NS` and returns the broker's time of the last one."""
        begun_ns = now_ns = self._monotonic_ns()
        newest = 0
        while queue and now_ns - begun_ns <= TURN_NS:
            record = queue.popleft()
            if record.offset >= view.position(record.partition):
                self._continuity.read(record)
            view.apply_record(record.partition, record.offset, record.value, now_ns)
            newest = record.timestamp_ms
            now_ns = self._monotonic_ns()
        return newest

    async def _signals(self) -> None:
        view, names = self._fed(), self._connection
        signals, pulses, quotas = names.topic(SIGNALS), names.topic(PULSE), names.topic(QUOTA)
        each = [(pulses, p) for p in range(view.registry.partitions)]
        begins, ends = await self._bounds([*each, (signals, 0), (quotas, 0)])
        resume = view.newest_signal + 1
        if resume > 0 and not begins[signals, 0] <= resume <= ends[signals, 0]:
            view.signals_truncated()
            resume = 0
        start = {where: ends[where] for where in each}
        start[quotas, 0] = begins[quotas, 0]
        start[signals, 0] = resume if resume > 0 else ends[signals, 0]
        tail = LogTail(names, start)
        try:
            await tail.start()
            while True:
                for record in await tail.fetch(timeout_ms=100, max_records=FETCH_RECORDS):
                    now_ns = self._monotonic_ns()
                    if record.topic == signals:
                        view.apply_signal(record.offset, record.value, now_ns)
                    elif record.topic == pulses:
                        view.apply_pulse(record.value, now_ns)
                    else:
                        view.apply_quota(record.value)
        finally:
            await tail.stop()

    async def _bounds(
        self, partitions: list[tuple[str, int]]
    ) -> tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]]:
        """(oldest offset, next offset to be written) by partition, as of now."""
        probe = LogTail(self._connection, dict.fromkeys(partitions, 0))
        try:
            await probe.start()
            return await probe.beginning_offsets(), await probe.end_offsets()
        finally:
            await probe.stop()

    def _control_folded(self, raw: RawRecord, record: ControlRecord | None, why: str) -> None:
        del raw
        self._fed().control_folded(record, why)
        self._wake()

    def _check_caught_up(self, read_to: Mapping[int, int] = MappingProxyType({})) -> None:
        """`read_to`: where a partition was read to of which nothing waits to be applied."""
        view, ends = self._fed(), self.state.ends
        if not view.caught_up and ends is not None:
            view.caught_up = all(max(view.position(p), read_to.get(p, 0)) >= end for p, end in ends.items())

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _complain(self, name: str, error: LogUnavailableError) -> None:
        """Says it once a minute, however often it is tried."""
        now_ns = self._monotonic_ns()
        if now_ns - self._complained_ns.get(name, -COMPLAIN_EVERY_NS) >= COMPLAIN_EVERY_NS:
            self._complained_ns[name] = now_ns
            LOG.warning("kv.%s: %s; trying again", name, error, extra={"action": f"{name}_unavailable"})

    def _fed(self) -> LocalView:
        if self._view is None:
            raise RuntimeError("attach a view before running its feed")
        return self._view
