"""From records to rows: owns partitions, folds their records and writes each batch once, whatever fails.

Knows no consumer: it says from which offset it wants to read, and tolerates any redelivery.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from events.chain import sha256
from events.errors import KvledgerError
from events.fold.registry import Registry
from events.kafka.connection import LogUnavailableError, RawRecord
from events.kafka.continuity import Continuity
from events.kafka.partition_log import PartitionLog
from indexer.delta import Delta
from indexer.outbox import Outbox
from indexer.projection import OffsetJumpError, PartitionProjection
from indexer.store import Lease, LeaseLostError, Store, StoreRefusedError, StoreUnavailableError
from indexer.stranger import StrangerCounts, StrangerLimits, Strangers, UnreadControlError

log = logging.getLogger(__name__)
BACKOFF_S = (0.05, 0.1, 0.2, 0.5, 1.0)
BATCH_BYTES = 4_000_000
"""Records of one transaction, at most: bounds how long a fold holds the event loop."""
UNSTORABLE = "unstorable"
"""Why a record went to the dead letters whose values the store can't hold."""

_Result = TypeVar("_Result")


class SeekError(KvledgerError):
    """The consumer must read the partition again from `offset`; what it brought is not applied."""

    def __init__(self, partition: int, offset: int) -> None:
        super().__init__(f"partition {partition}: read again from {offset}")
        self.partition, self.offset = partition, offset


@dataclass(slots=True)
class _Owned:
    lease: Lease
    projection: PartitionProjection
    committed: int
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    revoked: bool = False
    buried: set[int] = field(default_factory=set)
    """Offsets of the dead letters that were sent since the last commit."""
    broken: str = ""
    """Why the partition must be emptied and read again; nothing of it is applied any more."""
    refused: int | None = None
    """Newest offset that was refused because it may have been fetched from a former leader. A consumer that was
    told to read again begins at the position, which is not behind it: from there on it has the new one's."""


class Applier:
    """Owns what it was told to `own`; `apply` of anything else is ignored.

    `registry` is kept current by the caller; `catch_up` reads it up to the end that kv.control has when it is
    called, False if that can't be had soon: it is asked when a stream is met that isn't registered, at most
    once for a batch. Without it the registry counts as current. `block_operations` and `batches` count what
    was committed, `strangers` what was met of streams that nobody registered.
    """

    def __init__(
        self,
        store: Store,
        partition_log: PartitionLog,
        outbox: Outbox,
        registry: Registry,
        *,
        topic: str,
        monotonic_s: Callable[[], float],
        prune_every_s: float = 5.0,
        catch_up: Callable[[], Awaitable[bool]] | None = None,
        continuity: Continuity | None = None,
        limits: StrangerLimits | None = None,
    ) -> None:
        self._store, self._log, self._outbox, self._registry = store, partition_log, outbox, registry
        self._topic = topic
        self._continuity = Continuity(partition_log, topic) if continuity is None else continuity
        self._monotonic_s = monotonic_s
        self._prune_every_s = prune_every_s
        self._owned: dict[int, _Owned] = {}
        self._pruned_at_s: dict[int, float] = {}
        self._owning = asyncio.Lock()
        self._catch_up = catch_up
        self._limits = StrangerLimits() if limits is None else limits
        self._reported = StrangerCounts()
        self.strangers = StrangerCounts()
        self.block_operations = 0
        self.batches = 0

    @property
    def positions(self) -> dict[int, int]:
        """Up to where each owned partition is committed: a record that is folded and can't be written counts
        as one that waits."""
        return {number: owned.committed for number, owned in self._owned.items()}

    @property
    def strangers_held(self) -> int:
        """Streams that are folded and not registered, of all owned partitions."""
        bounds = (owned.projection.strangers for owned in self._owned.values())
        return sum(len(bound.held) for bound in bounds if bound is not None)

    async def own(self, partitions: Iterable[int]) -> dict[int, int]:
        """Makes these the partitions owned, and no others: those new, or claimed by somebody else while we
        were not looking, are claimed and loaded. Returns the offset to read each from.

        Raises StoreUnavailableError, LogUnavailableError or LeaseLostError: repeat the call.
        """
        # Rebalances overlap: two takings of one partition would end each other's lease.
        async with self._owning:
            wanted = set(partitions)
            for number in set(self._owned) - wanted:
                self.disown(number)
            for number, owned in list(self._owned.items()):
                if not await self._store.holds(owned.lease):
                    self.disown(number)
            for number in sorted(wanted - set(self._owned)):
                self._owned[number] = await self._take_over(number)
            return {number: self._owned[number].projection.next_offset for number in wanted}

    async def reclaim(self, partition: int) -> int:
        """Owns one partition that somebody else claimed, beside the others; returns the offset to read from.

        For a partition that the consumer still holds well after its lease was lost: a rebuild has switched
        the index, or the claim was of one who is gone. Raises as `own` does.
        """
        async with self._owning:
            if partition not in self._owned:
                self._owned[partition] = await self._take_over(partition)
            return self._owned[partition].projection.next_offset

    async def look_back(self) -> dict[int, int]:
        """Whether the log still holds what was applied. Partitions of which it doesn't are emptied, to be read
        again: the offset to read each from. Raises as `own` does; call it every `continuity.LOOK_EVERY_S`."""
        # Not under the lock: a broker that doesn't answer must not hold up a rebalance.
        found = await self._continuity.look()
        for partition, offset in found.lost.items():
            if partition in self._owned:
                where = "further back than is remembered" if offset is None else f"from {offset} on"
                self._owned[partition].broken = f"the log holds other records than were read, {where}"
                self._owned[partition].revoked = True
        for partition in found.moved & self._owned.keys():
            if self._continuity.settle(partition):
                self._owned[partition].refused = -1
        seek_to: dict[int, int] = {}
        async with self._owning:
            for partition, owned in list(self._owned.items()):
                if owned.broken:
                    self._owned[partition] = await self._take_over(partition, owned.broken)
                    seek_to[partition] = self._owned[partition].projection.next_offset
        return seek_to

    def disown(self, partition: int) -> None:
        """Forgets a partition's state; a write that is being retried is abandoned."""
        self._continuity.forget(partition)
        owned = self._owned.pop(partition, None)
        if owned is not None:
            owned.revoked = True

    async def _take_over(self, partition: int, why: str | None = None) -> _Owned:
        """`why`: the log isn't what was stored of it, whatever its last record says."""
        lease = await self._store.claim(self._topic, partition)
        self._continuity.forget(partition)
        await self._continuity.begin([partition])
        start, end = await self._log.bounds(self._topic, partition)
        why = why or await self._mismatch(lease, start, end)
        if why is not None:
            if lease.log_id:
                log.error(
                    "partition %d is rebuilt from offset %d: %s",
                    partition,
                    start,
                    why,
                    extra={"action": "partition_rebuilt"},
                )
            # Without rows nobody can tell an old log from one that nobody has indexed yet: whatever is in it
            # now counts as a rebuild, which writes nothing to Kafka.
            lease = await self._store.reset(lease, log_id=self._registry.log, start=start, rebuild_until=end)
        states = await self._store.load(lease)
        owned = _Owned(
            lease,
            PartitionProjection.of(
                partition,
                lease.next_offset,
                lease.last_record_sha256,
                states,
                Strangers(self._registry, self._limits, self.strangers, sure=self._catch_up is None),
            ),
            lease.next_offset,
        )
        log.info(
            "partition %d: term %d, offset %d, %d streams",
            partition,
            lease.term,
            lease.next_offset,
            len(states),
        )
        if start > lease.next_offset:
            await self._store.write(lease, owned.projection.skip_to(start))
            owned.committed = start
        elif lease.last_record_sha256:
            self._continuity.note(partition, lease.next_offset - 1, lease.last_record_sha256)
        return owned

    async def _mismatch(self, lease: Lease, start: int, end: int) -> str | None:
        """Why the stored position isn't one of this log, or None: then the partition goes on from there."""
        if lease.log_id != self._registry.log:
            return f"it was of log {lease.log_id or 'none'}, this is {self._registry.log}"
        if lease.next_offset > end:
            return f"stored up to {lease.next_offset}, the log ends at {end}"
        last = lease.next_offset - 1
        if lease.last_record_sha256 and last >= start:
            record = await self._log.first_from(lease.topic, lease.partition, last)
            if record is None or record.offset != last:
                return f"there is no record at {last}"
            if sha256(record.value) != lease.last_record_sha256:
                return f"the record at {last} is another one"
        return None

    async def apply(self, partition: int, records: Sequence[RawRecord]) -> None:
        """Folds and commits the records, in their order. Returns once they are in the store, or at once when
        the partition isn't owned (any more). Raises SeekError if they don't continue it."""
        owned = self._owned.get(partition)
        for chunk in _chunks(records, owned.lease.rebuild_until) if owned is not None else ():
            owned = self._owned.get(partition)
            if owned is None:
                return
            async with owned.lock:
                self._unsure(owned)
                trusted = self._trusted(owned, chunk)
                self._note(owned, trusted)
                while not owned.revoked and await self._apply(owned, trusted):
                    pass

    def _trusted(self, owned: _Owned, chunk: Sequence[RawRecord]) -> Sequence[RawRecord]:
        """Those of the chunk that were fetched from the leader that was looked at. Raises SeekError."""
        if owned.refused is None:
            return chunk
        for at, record in enumerate(chunk):
            if record.offset <= owned.refused:
                owned.refused = None
                return chunk[at:]
            owned.refused = record.offset
        raise SeekError(owned.lease.partition, owned.projection.next_offset)

    def _note(self, owned: _Owned, chunk: Sequence[RawRecord]) -> None:
        """Before anything of it is written: what is lost while a write waits must not be written any more."""
        for record in chunk if not owned.revoked else ():
            if record.offset >= owned.projection.next_offset:
                self._continuity.read(record)

    async def _apply(self, owned: _Owned, chunk: Sequence[RawRecord]) -> bool:
        """Folds and commits what it can of the chunk; whether to go on with the rest of it."""
        partition = owned.lease.partition
        stood_at, last_sha256 = owned.projection.next_offset, owned.projection.last_record_sha256
        try:
            delta = owned.projection.fold(chunk)
        except UnreadControlError:
            await self._make_sure(owned)
            return True
        except OffsetJumpError as error:
            delta = await self._after_jump(owned, error)
            if delta is not None:
                await self._commit(owned, delta)
            raise SeekError(partition, owned.projection.next_offset) from error
        if delta is None:
            return False
        try:
            await self._commit(owned, delta)
        except StoreRefusedError as error:
            log.warning("partition %d goes on record by record: %s", partition, error)
            await self._restore(owned, stood_at, last_sha256)
            await self._make_sure(owned)
            await self._one_by_one(owned, [record for record in chunk if record.offset >= stood_at])
            return False
        return delta.next_offset <= chunk[-1].offset

    def _unsure(self, owned: _Owned) -> None:
        if owned.projection.strangers is not None:
            owned.projection.strangers.sure = self._catch_up is None

    async def _make_sure(self, owned: _Owned) -> None:
        """Reads kv.control up to its end. If that can't be had, what is known decides: a record is never held
        back for another topic's sake."""
        if self._catch_up is not None and not await self._catch_up():
            log.warning("kv.control can't be read to its end: strangers are judged by what is known of it")
        if owned.projection.strangers is not None:
            owned.projection.strangers.sure = True

    async def _one_by_one(self, owned: _Owned, records: Sequence[RawRecord]) -> None:
        """Commits each record alone, and buries those that the store can't hold. Halving would find one of
        them with fewer transactions, but restoring the states, once a refusal, is what costs."""
        for record in records:
            stood_at, last_sha256 = owned.projection.next_offset, owned.projection.last_record_sha256
            for attempt in range(3):
                if owned.revoked:
                    return
                delta = (
                    owned.projection.refuse(record, UNSTORABLE, whole=attempt == 1)
                    if attempt
                    else owned.projection.fold([record])
                )
                assert delta is not None
                try:
                    await self._commit(owned, delta)
                    break
                except StoreRefusedError as error:
                    log.error(
                        "the record at %d of partition %d can't be stored: %s",
                        record.offset,
                        owned.lease.partition,
                        error,
                        extra={"action": "record_unstorable"},
                    )
                    await self._restore(owned, stood_at, last_sha256)
            else:
                raise StoreRefusedError(f"partition {owned.lease.partition} can't pass {record.offset}")

    async def _restore(self, owned: _Owned, next_offset: int, last_sha256: bytes) -> None:
        """The fold is ahead of what the store took: its states are read back."""
        states = await self._insist(owned, lambda: self._store.load(owned.lease))
        if states is not None:
            owned.projection = PartitionProjection.of(
                owned.lease.partition, next_offset, last_sha256, states, owned.projection.strangers
            )

    async def _after_jump(self, owned: _Owned, error: OffsetJumpError) -> Delta | None:
        """Records between were not delivered (None: read again), are gone from the log's head, or never
        were: aborted transactions leave offsets without a record."""
        projection = owned.projection
        try:
            start, _ = await self._log.bounds(self._topic, error.partition)
            if start > error.wanted:
                return projection.skip_to(start)
            record = await self._log.first_from(self._topic, error.partition, error.wanted)
        except LogUnavailableError as away:
            log.warning("partition %d is read again: %s", error.partition, away)
            return None
        if record is not None and record.offset > error.wanted:
            return projection.pass_hole(record.offset)
        return None

    async def _commit(self, owned: _Owned, delta: Delta) -> None:
        """Raises StoreRefusedError: nothing was written, and the fold's states must be restored."""
        lease = owned.lease
        is_rebuild = delta.next_offset <= lease.rebuild_until
        letters = [letter for letter in delta.dead if letter.offset not in owned.buried]
        if letters and not is_rebuild:
            await self._outbox.bury(lease.topic, lease.partition, letters)
            owned.buried.update(letter.offset for letter in letters)
        if not await self._insist(owned, lambda: self._write(lease, delta)):
            return
        owned.committed = delta.next_offset
        owned.buried = {offset for offset in owned.buried if offset >= delta.next_offset}
        self.batches += 1
        self.block_operations += delta.block_operations
        if delta.resyncs and not is_rebuild:
            await self._outbox.ask_resync(delta.resyncs)

    async def _write(self, lease: Lease, delta: Delta) -> bool:
        await self._store.write(lease, delta)
        return True

    async def _insist(self, owned: _Owned, call: Callable[[], Awaitable[_Result]]) -> _Result | None:
        """Repeats the call while the store is away; None once the partition isn't ours any more."""
        attempt = 0
        while not owned.revoked:
            try:
                return await call()
            except StoreUnavailableError as error:
                pause_s = BACKOFF_S[min(attempt, len(BACKOFF_S) - 1)]
                attempt += 1
                log.warning("partition %d waits for the store: %s", owned.lease.partition, error)
                await asyncio.sleep(pause_s)
            except LeaseLostError as error:
                log.warning("%s", error, extra={"action": "lease_lost"})
                owned.revoked = True
                if self._owned.get(owned.lease.partition) is owned:
                    self.disown(owned.lease.partition)
        return None

    async def prune(self) -> None:
        """Ends copies of superseded streams, a few streams of each owned partition at a time. Leaves out
        partitions that are being written: they have their turn another time."""
        self._report_strangers()
        for partition, owned in list(self._owned.items()):
            now_s = self._monotonic_s()
            if now_s - self._pruned_at_s.get(partition, -1e9) < self._prune_every_s or owned.lock.locked():
                continue
            async with owned.lock:
                if owned.revoked:
                    continue
                delta = owned.projection.prune(self._registry)
                if delta is None:
                    self._pruned_at_s[partition] = now_s
                    continue
                try:
                    await self._commit(owned, delta)
                except StoreRefusedError as error:
                    log.error("partition %d can't be pruned: %s", partition, error)
                    self._pruned_at_s[partition] = now_s
                    await self._restore(owned, delta.first_offset, delta.last_record_sha256)

    def _report_strangers(self) -> None:
        counts = self.strangers
        if counts == self._reported:
            return
        self._reported = replace(counts)
        log.warning(
            "streams of nobody: %d held (at most %d a partition), %d records passed, %d streams let go, %d forgotten",
            self.strangers_held,
            self._limits.max_streams,
            counts.foreign_records,
            counts.let_go,
            counts.forgotten,
            extra={"action": "strangers"},
        )


def _chunks(records: Sequence[RawRecord], rebuild_until: int) -> Iterable[Sequence[RawRecord]]:
    """No chunk is partly of a rebuild and partly not."""
    first, size = 0, 0
    for at, record in enumerate(records):
        size += len(record.value)
        if at > first and (size > BATCH_BYTES or record.offset == rebuild_until):
            yield records[first:at]
            first, size = at, len(record.value)
    yield records[first:]
