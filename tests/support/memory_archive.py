"""A hand-made log sealed and archived without a Kafka: the source, the main log, and stores that die on request."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from auditor.archive.store import FsspecStore
from auditor.main_log import MainLog, split
from auditor.registry import ControlFold
from auditor.segment import LogWatch, Partition, SubjectsWatch, raw_leaf
from events.codec import dump
from events.kafka.connection import RawRecord
from events.model.audit import AuditRecord, AuditStatement, CheckpointSigned, Segment, SubjectsSealed
from events.signing import verify
from tests.support.audit_log import AuditLog
from tests.support.bundle import AUDITOR, raw


@dataclass
class SealedLog:
    """`log` with a main log beside it; `seal` does what `audit checkpoint` does."""

    log: AuditLog
    audit: list[bytes] = field(default_factory=list)
    asked: list[Segment] = field(default_factory=list)
    subjects: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    subjects_from: int = 0
    """Where kv.subjects begins by now."""

    def records(self) -> list[RawRecord]:
        control = [raw("kv.control", 0, o, v, s) for o, (v, s) in enumerate(self.log.control.records)]
        return control + [
            raw("kv.events", p, o, e.value, e.signature)
            for p, told in sorted(self.log.events.items())
            for o, e in enumerate(told)
            if o >= self.log.starts.get(p, 0)
        ]

    def main(self) -> MainLog:
        registry = ControlFold(verify)
        for offset, (value, signature) in enumerate(self.log.control.records):
            registry.feed(offset, value, signature)
        main = MainLog(registry)
        for value in self.audit:
            main.take(value)
        return main

    def seal(self) -> None:
        main = self.main()
        watch = LogWatch(main.segments, {})
        for one in self.records():
            watch.take((one.topic, one.partition), one.offset, raw_leaf(one.offset, one.value, one.signature))
        new = watch.settle({(at.topic, at.partition): at.offset for at in self.log.frontier()}).new
        for statement in split(new, main.size, self.log.control.log, 99):
            self.say(statement)
        main = self.main()
        note = main.sign_head(AUDITOR).to_bytes().decode()
        self.say(CheckpointSigned(log=self.log.control.log, note=note))
        if self.subjects:
            watch_subjects = SubjectsWatch()
            read = range(max(self.subjects_from, main.subjects.reach), len(self.subjects))
            for record in self.bindings()[read.start :]:
                watch_subjects.take(record)
            segment = watch_subjects.segment(read)
            self.say(SubjectsSealed(log=self.log.control.log, main_size=main.size, segment=segment))

    def bindings(self) -> list[RawRecord]:
        return [raw("kv.subjects", 0, offset, *one) for offset, one in enumerate(self.subjects)]

    def say(self, statement: AuditStatement) -> None:
        line = dump(statement)
        self.audit.append(dump(AuditRecord(signer=AUDITOR.id, signature=AUDITOR.sign(line), statement=line)))

    async def starts(self) -> Mapping[Partition, int]:
        return {("kv.events", p): self.log.starts.get(p, 0) for p in range(4)} | {("kv.control", 0): 0}

    async def subjects_held(self) -> range:
        return range(self.subjects_from, len(self.subjects))

    async def read(self, segment: Segment, take: Callable[[RawRecord], None]) -> None:
        self.asked.append(segment)
        for one in (*self.records(), *self.bindings()):
            here = (one.topic, one.partition) == (segment.topic, segment.partition)
            if here and segment.first <= one.offset < segment.next:
                take(one)


class DyingStore(FsspecStore):
    """Kills its process before, in the middle of, or after its n-th write."""

    def __init__(self, url: str, at: int, when: str) -> None:
        super().__init__(url)
        self._left, self._when = at, when

    def put(self, name: str, content: BinaryIO) -> None:
        self._left -= 1
        if self._left:
            super().put(name, content)
            return
        if self._when == "after":
            super().put(name, content)
        elif self._when == "torn":  # as a disk that keeps no promise would
            path = Path(f"{self._root}/{name}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.read()[:-7])
        os.kill(os.getpid(), signal.SIGKILL)
