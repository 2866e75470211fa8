"""The log in Kafka, segment by segment, for the archive."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from auditor.log import PartitionReader
from auditor.segment import Partition
from events.kafka.connection import KafkaConnection, RawRecord
from events.model.audit import Segment
from events.topic import CONTROL, EVENTS, SUBJECTS


class KafkaSource:
    """`start` it, `stop` it. Every call raises LogUnavailableError."""

    def __init__(self, connection: KafkaConnection, partitions: int, *, timeout_s: float = 20.0) -> None:
        self._readers = {
            topic.name: (PartitionReader(connection, connection.topic(topic), timeout_s), count)
            for topic, count in ((CONTROL, 1), (EVENTS, partitions))
        }
        self._subjects = PartitionReader(connection, connection.topic(SUBJECTS), timeout_s)
        self._reached: dict[str, tuple[int, int]] = {}

    async def start(self) -> None:
        for reader, count in self._readers.values():
            await reader.start(count)

    async def stop(self) -> None:
        """Idempotent."""
        for reader, _ in self._readers.values():
            await reader.stop()

    async def starts(self) -> Mapping[Partition, int]:
        """As of `start`."""
        return {
            (topic, partition): start
            for topic, (reader, _) in self._readers.items()
            for partition, start in reader.starts.items()
        }

    async def ends(self) -> Mapping[Partition, int]:
        """Offsets behind the newest records now."""
        return {
            (topic, partition): end
            for topic, (reader, _) in self._readers.items()
            for partition, end in (await reader.ends()).items()
        }

    async def read(self, segment: Segment, take: Callable[[RawRecord], None]) -> None:
        if segment.topic == SUBJECTS.name:
            await self._read_subjects(segment, take)
            return
        reader, count = self._readers[segment.topic]
        if self._reached.get(segment.topic) != (segment.partition, segment.first):
            reader.skip_to({segment.partition: segment.first})
        self._reached.pop(segment.topic, None)
        ends = dict.fromkeys(range(count), 0) | {segment.partition: segment.next}
        await reader.read_to(ends, lambda record: take(record._replace(topic=segment.topic)))
        self._reached[segment.topic] = segment.partition, segment.next

    async def subjects_held(self) -> range:
        """Offsets that kv.subjects holds now."""
        await self._subjects.start(1)
        try:
            return range(self._subjects.starts[0], (await self._subjects.ends())[0])
        finally:
            await self._subjects.stop()

    async def _read_subjects(self, segment: Segment, take: Callable[[RawRecord], None]) -> None:
        """The topic has grown by no more than what came since it was sealed, so it is opened for this alone."""
        await self._subjects.start(1)
        try:
            ends = await self._subjects.ends()
            self._subjects.skip_to({0: segment.first})
            await self._subjects.read_to(
                {0: min(segment.next, ends[0])}, lambda record: take(record._replace(topic=segment.topic))
            )
        finally:
            await self._subjects.stop()
