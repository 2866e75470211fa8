"""Writes the main log: seals segments into `kv.audit`, signs its head, adds what witnesses say about it."""

from __future__ import annotations

from collections.abc import Sequence

from auditor.checkpoint import Note
from auditor.log import PartitionReader, append_audit
from auditor.main_log import MainLog, split
from auditor.registry import ControlFold
from events.codec import dump
from events.kafka.connection import KafkaConnection, RawRecord
from events.model.audit import (
    MAX_SEGMENTS,
    AuditRecord,
    AuditStatement,
    CheckpointSigned,
    Segment,
    SubjectsSealed,
)
from events.signing import Signer
from events.topic import AUDIT


class Sealer:
    """`main` is the fold of `kv.audit` as far as it was read; `registry` must have read `kv.control` before.

    What it writes counts once it was read back, so a process that dies in between has written nothing or all,
    and the next one goes on from what the log says.
    """

    def __init__(
        self, connection: KafkaConnection, registry: ControlFold, signer: Signer, *, timeout_s: float = 20.0
    ) -> None:
        self.main = MainLog(registry)
        self._connection = connection
        self._signer = signer
        self._timeout_s = timeout_s
        self._reader = PartitionReader(connection, connection.topic(AUDIT), timeout_s)

    @property
    def public_key(self) -> bytes:
        """The auditor's own, under which it signs heads."""
        return self._signer.public_key

    async def start(self) -> None:
        """Reads `kv.audit` whole. Raises LogUnavailableError."""
        await self._reader.start(1)
        await self.read()

    async def read(self) -> None:
        """Reads on to the topic's end. Raises LogUnavailableError."""
        await self._reader.read_to(await self._reader.ends(), self._take)

    async def seal(self, segments: Sequence[Segment]) -> bool:
        """Makes the segments the next leaves; False if another auditor was quicker: then nothing of the rest was
        written, and the caller reads the log again. Raises LogUnavailableError."""
        log = self.main.registry.log
        for statement in split(segments, self.main.size, log, MAX_SEGMENTS):
            if statement.first_leaf != self.main.size:
                return False
            await self._say(statement)
            mine = self.main.segments[statement.first_leaf :][: len(statement.segments)]
            if tuple(mine) != statement.segments:
                return False
        return True

    async def head(self) -> Note | None:
        """The checkpoint over all leaves, signed and written now if nobody has; None while there are no leaves.
        Raises LogUnavailableError."""
        if self.main.size and self.main.head() is None:
            await self.publish(self.main.sign_head(self._signer))
        return self.main.head()

    async def publish(self, note: Note) -> None:
        """Writes a checkpoint with all its signatures. Raises LogUnavailableError."""
        log = self.main.registry.log
        await self._say(CheckpointSigned(log=log, note=note.to_bytes().decode()))

    async def seal_subjects(self, segment: Segment) -> None:
        """Says that this is all of kv.subjects, for the main log's size as it is. Raises LogUnavailableError."""
        log = self.main.registry.log
        await self._say(SubjectsSealed(log=log, main_size=self.main.size, segment=segment))

    async def stop(self) -> None:
        """Idempotent."""
        await self._reader.stop()

    async def _say(self, statement: AuditStatement) -> None:
        raw = dump(statement)
        record = AuditRecord(signer=self._signer.id, signature=self._signer.sign(raw), statement=raw)
        log = self.main.registry.log
        await append_audit(self._connection, log, [dump(record)], self._timeout_s)
        await self.read()

    def _take(self, record: RawRecord) -> None:
        self.main.take(record.value)
