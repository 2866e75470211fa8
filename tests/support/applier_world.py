"""What an `Applier` has around it, in memory: a log that keeps what was sent, an outbox that can be read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from events.chain import sha256
from events.fold.registry import Registry
from events.ids import StreamKey
from events.kafka.connection import RawRecord
from events.signing import verify
from indexer.applier import Applier
from indexer.delta import DeadLetter
from indexer.store import Store
from tests.support.log import ControlLog
from tests.support.store_contract import TOPIC


@dataclass
class MemoryPartitionLog:
    """`PartitionLog` of one partition."""

    records: list[RawRecord] = field(default_factory=list)
    epoch: int = 0
    """Of its leader."""

    def send(self, values: Sequence[bytes]) -> list[RawRecord]:
        """Appends the values; returns them as records."""
        begin = self.records[-1].offset + 1 if self.records else 0
        sent = [
            RawRecord(TOPIC, 0, offset, b"k", value, None, 1_700_000_000_000)
            for offset, value in enumerate(values, begin)
        ]
        self.records += sent
        return sent

    def cut(self, count: int) -> None:
        """An unclean election: the newest records are gone."""
        del self.records[len(self.records) - count :]
        self.epoch += 1

    async def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        await asyncio.sleep(0)
        if not self.records:
            return 0, 0
        return self.records[0].offset, self.records[-1].offset + 1

    async def first_from(self, topic: str, partition: int, offset: int) -> RawRecord | None:
        await asyncio.sleep(0)
        return next((record for record in self.records if record.offset >= offset), None)

    async def leader_epochs(self, topic: str, partitions: Collection[int]) -> dict[int, int]:
        await asyncio.sleep(0)
        return dict.fromkeys(partitions, self.epoch)

    async def digests(self, topic: str, partition: int, first: int, last: int) -> dict[int, bytes]:
        await asyncio.sleep(0)
        return {r.offset: sha256(r.value) for r in self.records if first <= r.offset <= last}


@dataclass
class MemoryOutbox:
    buried: list[DeadLetter] = field(default_factory=list)
    asked: dict[StreamKey, str] = field(default_factory=dict)

    async def bury(self, topic: str, partition: int, letters: list[DeadLetter]) -> None:
        await asyncio.sleep(0)
        self.buried += letters

    async def ask_resync(self, streams: dict[StreamKey, str]) -> None:
        await asyncio.sleep(0)
        self.asked.update(streams)


@dataclass
class ApplierWorld:
    """One partition, its log and outbox; `start` is a process that begins."""

    store: Store
    log: MemoryPartitionLog = field(default_factory=MemoryPartitionLog)
    outbox: MemoryOutbox = field(default_factory=MemoryOutbox)
    control: ControlLog = field(default_factory=ControlLog)

    def registry(self) -> Registry:
        registry = Registry(verify)
        for offset, (value, signature) in enumerate(self.control.records):
            registry.fold(offset, value, signature)
        return registry

    async def start(self) -> tuple[Applier, int]:
        """An applier that owns the partition, and the offset from which it wants to read."""
        applier = Applier(
            self.store, self.log, self.outbox, self.registry(), topic=TOPIC, monotonic_s=time.monotonic
        )
        return applier, (await applier.own({0}))[0]

    async def send(self, applier: Applier, values: Sequence[bytes]) -> None:
        """Appends the values and has them applied."""
        await applier.apply(0, self.log.send(values))
