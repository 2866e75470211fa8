"""Whether the log still holds what its reader has read.

A log that lost its newest records and was written on since looks whole to who had read them: it goes on at its
offset and never sees what now stands below. So readers remember what they have read (the SHA-256 of each record
since the last look), and compare it when a partition's leadership has changed, which is the only time at which
acknowledged records can go. What is lost is always the log's end, so one record that stood at the last look and
stands there still vouches for all before it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from events.chain import sha256
from events.kafka.partition_log import PartitionLog

LOOK_EVERY_S = 1.0
MOST_RECORDS = 16_384
"""Of one partition between two looks, far more than is read in that time: the oldest are forgotten first."""
_UNKNOWN = -1


@dataclass(slots=True)
class _Trail:
    """(offset, SHA-256) of what was read since the last look, and of the last record before it."""

    read: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=MOST_RECORDS))
    leader_epoch: int = _UNKNOWN


class Continuity:
    """What one reader has read of a topic. `note` every record, `lost` every `LOOK_EVERY_S` and before reading
    goes on after a failure."""

    def __init__(self, log: PartitionLog, topic: str) -> None:
        self._log, self._topic = log, topic
        self._trails: dict[int, _Trail] = {}

    def note(self, partition: int, offset: int, record_sha256: bytes) -> None:
        """The next record that was read, in the order of the log."""
        trail = self._trails.get(partition)
        if trail is None:
            trail = self._trails[partition] = _Trail()
        trail.read.append((offset, record_sha256))

    def forget(self, partition: int) -> None:
        """Reading of the partition begins elsewhere, or ends."""
        self._trails.pop(partition, None)

    def last(self, partition: int) -> tuple[int, bytes] | None:
        """(offset, SHA-256) of the last record read."""
        trail = self._trails.get(partition)
        return trail.read[-1] if trail is not None and trail.read else None

    async def lost(self) -> dict[int, int | None]:
        """By partition that no longer holds all that was read: the first offset at which it doesn't, None when
        that may lie before everything remembered. It stays so until it is forgotten.

        Raises LogUnavailableError: nothing is known, look again.
        """
        marks = {partition: trail.read[-1][0] for partition, trail in self._trails.items() if trail.read}
        if not marks:
            return {}
        epochs = await self._log.leader_epochs(self._topic, marks)
        found: dict[int, int | None] = {}
        for partition, mark in marks.items():
            trail = self._trails.get(partition)
            if trail is None:
                continue
            epoch = epochs[partition]
            if epoch == _UNKNOWN or epoch != trail.leader_epoch:
                first, lost_at = await self._compare(partition, trail)
                if self._trails.get(partition) is not trail:
                    continue
                if lost_at is not None:
                    found[partition] = None if lost_at == first else lost_at
                    continue
            trail.leader_epoch = epoch
            while trail.read and trail.read[0][0] < mark:
                trail.read.popleft()
        return found

    async def _compare(self, partition: int, trail: _Trail) -> tuple[int, int | None]:
        """(offset of the oldest record remembered, that of the first which is gone or another one)."""
        start, _ = await self._log.bounds(self._topic, partition)
        first = trail.read[0][0]
        there = [(offset, digest) for offset, digest in trail.read if offset >= start]
        if not there:
            return first, None
        records = await self._log.between(self._topic, partition, there[0][0], there[-1][0])
        holds = {record.offset: sha256(record.value) for record in records}
        return first, next((offset for offset, digest in there if holds.get(offset) != digest), None)
