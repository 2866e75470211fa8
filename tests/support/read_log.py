"""A log in memory under the calls of `AuditedLog`."""

from __future__ import annotations

from auditor.log import Take
from events.kafka.connection import RawRecord
from tests.support.audit_log import RING, AuditLog

KEYS = {domain: RING[domain].alias_key for domain in ("acme", "acme/eu", "umbrella")}
PARTITIONS = 4


class Reader:
    """One topic of an `AuditLog`, read on like `PartitionReader`; `taken` is what was read, by partition."""

    def __init__(self, log: AuditLog, topic: str) -> None:
        self._log, self._topic = log, topic
        self.taken: dict[int, list[RawRecord]] = {}
        self._next: dict[int, int] = {}
        self.read = 0

    def records(self, partition: int) -> list[RawRecord]:
        if self._topic == "kv.control":
            pairs = self._log.control.records
        else:
            pairs = [(raw.value, raw.signature) for raw in self._log.events.get(partition, [])]
        return [
            RawRecord(self._topic, partition, offset, None, value, signature, 0)
            for offset, (value, signature) in enumerate(pairs)
        ]

    async def ends(self) -> dict[int, int]:
        return {partition: len(self.records(partition)) for partition in range(PARTITIONS)}

    async def whole(self) -> None:
        """It never leaves anything out."""

    def rewind(self) -> None:
        self.skip_to({})

    def skip_to(self, offsets: dict[int, int]) -> None:
        self.taken, self._next = {}, dict(offsets)

    async def read_to(self, ends: dict[int, int], take: Take) -> None:
        for partition, end in ends.items():
            for record in self.records(partition)[self._next.get(partition, 0) : end]:
                self.taken.setdefault(partition, []).append(record)
                self._next[partition] = record.offset + 1
                self.read += 1
                take(record)

    def stands(self) -> bool:
        """Whether everything that was taken is still there."""
        return all(self.records(p)[o.offset : o.offset + 1] == [o] for p, t in self.taken.items() for o in t)


class Log:
    """`AuditedLog` over a log in memory."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log
        self.rounds = 0

    async def start(self) -> None:
        self.control, self.events = Reader(self._log, "kv.control"), Reader(self._log, "kv.events")

    async def read_control(self, take: Take) -> int:
        ends = {0: (await self.control.ends())[0]}
        await self.control.read_to(ends, take)
        return ends[0]

    async def open_events(self, partitions: int) -> dict[int, int]:
        self.rounds += 1
        return dict.fromkeys(range(partitions), 0)

    async def stands(self) -> bool:
        return self.control.stands() and self.events.stands()

    async def stop(self) -> None:
        del self.control, self.events
