"""The fold states of one partition and the batches that change them; no input or output of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from events.chain import sha256
from events.codec import BatchDecodeError, decode_batch
from events.errors import KvledgerError
from events.fold.apply import apply_undecodable, lose_log
from events.fold.change import Changes, Outcome
from events.fold.digest import superseded
from events.fold.record import FOREIGN, fold_record
from events.fold.registry import Registry
from events.fold.residency import drop
from events.fold.state import StreamState
from events.ids import StreamKey
from events.kafka.connection import RawRecord
from indexer.delta import DeadLetter, Delta
from indexer.stranger import Strangers, UnreadControlError


class OffsetJumpError(KvledgerError):
    """The records don't continue the partition: read again from `wanted`, nothing was folded."""

    def __init__(self, partition: int, wanted: int, got: int) -> None:
        super().__init__(f"partition {partition}: wanted offset {wanted}, got {got}")
        self.partition, self.wanted, self.got = partition, wanted, got


@dataclass(slots=True)
class PartitionProjection:
    """States as of `next_offset`. Each `Delta` must be written, or the projection dropped, before the next.

    `strangers` bounds the streams that nobody has registered; None: every stream is folded.
    """

    partition: int
    next_offset: int
    last_record_sha256: bytes = b""
    streams: dict[StreamKey, StreamState] = field(default_factory=dict)
    strangers: Strangers | None = None

    @classmethod
    def of(
        cls,
        partition: int,
        next_offset: int,
        last_record_sha256: bytes,
        states: Iterable[StreamState],
        strangers: Strangers | None = None,
    ) -> PartitionProjection:
        streams = {state.key: state for state in states}
        if strangers is not None:
            strangers.held.clear()
            strangers.adopt(streams.values(), partition)
        return cls(partition, next_offset, last_record_sha256, streams, strangers)

    def fold(self, records: Sequence[RawRecord]) -> Delta | None:
        """Folds records in the order of the log; those before `next_offset` are redeliveries and change
        nothing. None if none is new. Raises OffsetJumpError before anything is folded.

        The delta ends before a record whose stream can't be told without reading kv.control further; if that
        is the first one, UnreadControlError is raised.
        """
        fresh = [record for record in records if record.offset >= self.next_offset]
        if not fresh:
            return None
        for wanted, record in enumerate(fresh, self.next_offset):
            if record.offset != wanted:
                raise OffsetJumpError(self.partition, wanted, record.offset)
        last = fresh[-1]
        delta = Delta(self.next_offset, last.offset + 1, b"", 0)
        for at, record in enumerate(fresh):
            try:
                self._fold_one(delta, record)
            except UnreadControlError:
                if at == 0:
                    raise
                last = fresh[at - 1]
                delta.next_offset = last.offset + 1
                break
        delta.last_record_sha256, delta.appended_ms = sha256(last.value), last.timestamp_ms
        self._let_go(delta)
        self.next_offset, self.last_record_sha256 = delta.next_offset, delta.last_record_sha256
        return delta

    def _fold_one(self, delta: Delta, record: RawRecord) -> None:
        changes, dead = fold_record(self.streams, record.value, self.admit)
        if dead == FOREIGN and self.strangers is not None and not self.strangers.bury:
            return
        if dead is not None:
            delta.dead.append(DeadLetter(record.offset, dead, record.key, record.value, record.signature))
        if changes is None:
            return
        self._add(delta, record.offset, changes)
        self._call(delta, changes)

    def admit(self, stream: StreamKey, epoch_no: int) -> bool:
        """Whether a stream met for the first time here is folded. Raises UnreadControlError."""
        return self.strangers is None or self.strangers.admit(stream, epoch_no, self.partition)

    def let_go(self) -> list[StreamKey]:
        """Ends the streams of nobody that are beyond a bound; whoever stores them must forget them too."""
        gone = [] if self.strangers is None else self.strangers.overdue(self.streams, self.partition)
        for stream in gone:
            del self.streams[stream]
        return gone

    def _let_go(self, delta: Delta) -> None:
        for stream in self.let_go():
            delta.forget(stream)

    def _call(self, delta: Delta, changes: Changes) -> None:
        if changes.resync:
            state = self.streams[changes.stream]
            # A lesser fault that follows must not hide the one that no snapshot heals.
            why = state.fault if state.sticky else changes.detail
            delta.resyncs[changes.stream] = why or changes.outcome.value

    def _add(self, delta: Delta, offset: int, changes: Changes) -> None:
        delta.of(self.streams[changes.stream]).add(offset, changes)
        delta.block_operations += changes.block_operations

    def refuse(self, record: RawRecord, reason: str, *, whole: bool = True) -> Delta:
        """Passes the next record without its content, because the store can't hold it: a dead letter, and its
        stream has lost that content. Not `whole`: no stream changes, the loss shows as a gap."""
        delta = Delta(self.next_offset, record.offset + 1, sha256(record.value), record.timestamp_ms)
        delta.dead.append(DeadLetter(record.offset, reason, record.key, record.value, record.signature))
        try:
            batch = decode_batch(record.value)
        except BatchDecodeError:
            batch = None
        state = self.streams.get(batch.header.stream) if batch is not None and whole else None
        if batch is not None and state is not None:
            changes = apply_undecodable(state, batch.header.seq, reason)
            self._add(delta, record.offset, changes)
            self._call(delta, changes)
        self.next_offset, self.last_record_sha256 = delta.next_offset, delta.last_record_sha256
        return delta

    def skip_to(self, start: int) -> Delta:
        """The log's start has passed this partition: records are gone, every stream of it is in gap."""
        delta = Delta(self.next_offset, start, b"", 0)
        for state in self.streams.values():
            self._add(delta, start, lose_log(state, f"log starts at {start}, {self.next_offset} was next"))
        self.next_offset, self.last_record_sha256 = start, b""
        return delta

    def pass_hole(self, offset: int) -> Delta:
        """There is no record between the position and `offset`: nothing is lost, the position moves on."""
        delta = Delta(self.next_offset, offset, b"", 0)
        self.next_offset, self.last_record_sha256 = offset, b""
        return delta

    def prune(self, registry: Registry, most: int = 16) -> Delta | None:
        """Ends the volatile copies of streams that control has superseded, a few streams at a time, and
        forgets the streams of nobody; None if there are none. The position stays where it is."""
        delta = Delta(self.next_offset, self.next_offset, self.last_record_sha256, 0)
        self._let_go(delta)
        for state in self.streams.values():
            if len(delta.streams) == most:
                break
            if not superseded(registry, state.key, state.epoch_no):
                continue
            changes = Changes(state.key, Outcome.APPLIED)
            for where, table in state.copies.items():
                if table and state.holders[where[0]].durable_id is None:
                    drop(state, changes, where, list(table), "superseded")
            if changes.copies:
                self._add(delta, self.next_offset, changes)
        return delta if delta.streams or delta.forgotten else None
