"""Whether the log still holds what its reader has read.

A log that lost its newest records and was written on since looks whole to who had read them: it goes on at its
offset and never sees what now stands below. So readers remember what they have read (the SHA-256 of each record
since the last look), and compare it when a partition's leadership has changed, which is the only time at which
acknowledged records can go. What a reader has fetched by then and not noted yet may be gone just as well, and no
look can see it: so a change of leadership also tells the reader to drop that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from events.chain import sha256
from events.kafka.connection import LogUnavailableError, RawRecord
from events.kafka.partition_log import PartitionLog

LOOK_EVERY_S = 1.0
BEGIN_WITHIN_S = 10.0
ASK_AGAIN_S = 0.1
MOST_RECORDS = 16_384
MOST_BYTES = 64 << 20
"""Of one partition between two looks, far more than is read in that time. Who read more and then sees the
leadership change can't tell what was lost, and takes everything for lost."""
_UNKNOWN = -1


@dataclass(slots=True)
class _Trail:
    """What was read since the last settled look, and the last record before it: (offset, SHA-256, size)."""

    leader_epoch: int | None
    """None: not asked yet. `_UNKNOWN`: the broker keeps none, so every look compares."""
    read: deque[tuple[int, bytes, int]] = field(default_factory=deque)
    size: int = 0
    overflowed: bool = False
    looked: tuple[int, int] | None = None
    """(epoch, offset of the last record compared) of a look that found the leadership changed and no loss."""

    def last(self) -> int:
        return self.read[-1][0] if self.read else -1

    def add(self, offset: int, record_sha256: bytes, size: int) -> None:
        while self.read and self.read[-1][0] >= offset:
            self.size -= self.read.pop()[2]
        self.read.append((offset, record_sha256, size))
        self.size += size
        while len(self.read) > MOST_RECORDS or (self.size > MOST_BYTES and len(self.read) > 1):
            self.size -= self.read.popleft()[2]
            self.overflowed = True

    def trim(self, mark: int) -> None:
        """The record at `mark` vouches for all before it."""
        while self.read and self.read[0][0] < mark:
            self.size -= self.read.popleft()[2]
        self.overflowed = False


@dataclass(frozen=True, slots=True)
class Look:
    """`lost`: partitions that no longer hold what was read, each with the first offset at which they don't, None
    when that may lie before everything remembered. `moved`: partitions that have another leader and hold what was
    noted. Partitions that can't be asked now are in neither."""

    lost: dict[int, int | None]
    moved: frozenset[int]


class Continuity:
    """What one reader has read of a topic.

    `begin` a partition before reading it, `note` every record, `look` every `LOOK_EVERY_S` and before reading goes
    on after a failure. A partition that is `lost` is read anew (`forget`, `begin`). Of one that `moved` drop what
    was fetched and not noted, then `settle` it; until then every look reports it again.
    """

    def __init__(self, log: PartitionLog, topic: str) -> None:
        self._log, self._topic = log, topic
        self._trails: dict[int, _Trail] = {}

    async def begin(self, partitions: Iterable[int]) -> None:
        """Asks for the leadership of those that haven't begun; a topic that was just made has its leaders a moment
        later. Raises LogUnavailableError when they have none within `BEGIN_WITHIN_S`."""
        fresh = {partition for partition in partitions if partition not in self._trails}
        try:
            async with asyncio.timeout(BEGIN_WITHIN_S):
                while fresh:
                    for partition, epoch in (await self._leaders_of(fresh)).items():
                        self._trails[partition] = _Trail(epoch)
                        fresh.discard(partition)
                    await asyncio.sleep(ASK_AGAIN_S if fresh else 0)
        except TimeoutError as error:
            raise LogUnavailableError(f"{self._topic}{sorted(fresh)} have no leader") from error

    async def _leaders_of(self, partitions: set[int]) -> dict[int, int]:
        try:
            return await self._log.leader_epochs(self._topic, partitions)
        except LogUnavailableError:
            return {}

    def read(self, record: RawRecord) -> None:
        """`note` of a whole record."""
        self.note(record.partition, record.offset, sha256(record.value), len(record.value))

    def note(self, partition: int, offset: int, record_sha256: bytes, size: int = 0) -> None:
        """The next record that was read; one at an offset that was noted takes the place of all from there on.
        `size`: of its value in bytes."""
        trail = self._trails.get(partition)
        if trail is None:
            trail = self._trails[partition] = _Trail(None)
        trail.add(offset, record_sha256, size)

    def forget(self, partition: int) -> None:
        """Reading of the partition begins elsewhere, or ends."""
        self._trails.pop(partition, None)

    def last(self, partition: int) -> tuple[int, bytes] | None:
        """(offset, SHA-256) of the last record read."""
        trail = self._trails.get(partition)
        return trail.read[-1][:2] if trail is not None and trail.read else None

    async def look(self) -> Look:
        """Raises LogUnavailableError when no partition can be asked."""
        marks = {partition: trail.last() for partition, trail in self._trails.items()}
        lost: dict[int, int | None] = {}
        moved: set[int] = set()
        epochs = await self._log.leader_epochs(self._topic, marks) if marks else {}
        for partition, epoch in epochs.items():
            trail = self._trails.get(partition)
            if trail is None:
                continue
            if epoch == trail.leader_epoch != _UNKNOWN:
                trail.trim(marks[partition])
                continue
            compared = trail.last()
            try:
                found = [None] if trail.overflowed else await self._compare(partition, trail)
            except LogUnavailableError:
                continue
            if self._trails.get(partition) is not trail:
                continue
            if found:
                lost[partition] = found[0]
            elif epoch == trail.leader_epoch:
                trail.trim(compared)
            else:
                trail.looked = (epoch, compared)
                moved.add(partition)
        return Look(lost, frozenset(moved))

    def settle(self, partition: int) -> bool:
        """What was fetched and not noted is dropped, or is refused from here on. False if a record was noted that
        the look didn't compare: the next one does. Call it without waiting in between."""
        trail = self._trails.get(partition)
        if trail is None or trail.looked is None or trail.looked[1] != trail.last():
            return False
        trail.leader_epoch, compared = trail.looked
        trail.trim(compared)
        return True

    async def _compare(self, partition: int, trail: _Trail) -> list[int | None]:
        """The first offset at which there is nothing or another record, if there is one."""
        start, _ = await self._log.bounds(self._topic, partition)
        wanted = [(offset, digest) for offset, digest, _ in trail.read if offset >= start]
        if not wanted:
            return []
        first, last = wanted[0][0], wanted[-1][0]
        holds = await self._log.digests(self._topic, partition, first, last)
        gone = next((offset for offset, digest in wanted if holds.get(offset) != digest), None)
        if gone is None:
            return []
        return [None if gone == trail.read[0][0] else gone]
