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
from events.fold.record import fold_record
from events.fold.registry import Registry
from events.fold.residency import drop
from events.fold.state import StreamState
from events.ids import StreamKey
from events.kafka.connection import RawRecord
from indexer.delta import DeadLetter, Delta


class OffsetJumpError(KvledgerError):
    """The records don't continue the partition: read again from `wanted`, nothing was folded."""

    def __init__(self, partition: int, wanted: int, got: int) -> None:
        super().__init__(f"partition {partition}: wanted offset {wanted}, got {got}")
        self.partition, self.wanted, self.got = partition, wanted, got


@dataclass(slots=True)
class PartitionProjection:
    """States as of `next_offset`. Each `Delta` must be written, or the projection dropped, before the next."""

    partition: int
    next_offset: int
    last_record_sha256: bytes = b""
    streams: dict[StreamKey, StreamState] = field(default_factory=dict)

    @classmethod
    def of(
        cls, partition: int, next_offset: int, last_record_sha256: bytes, states: Iterable[StreamState]
    ) -> PartitionProjection:
        return cls(partition, next_offset, last_record_sha256, {state.key: state for state in states})

    def fold(self, records: Sequence[RawRecord]) -> Delta | None:
        """Folds records in the order of the log; those before `next_offset` are redeliveries and change
        nothing. None if none is new. Raises OffsetJumpError before anything is folded."""
        fresh = [record for record in records if record.offset >= self.next_offset]
        if not fresh:
            return None
        for wanted, record in enumerate(fresh, self.next_offset):
            if record.offset != wanted:
                raise OffsetJumpError(self.partition, wanted, record.offset)
        last = fresh[-1]
        delta = Delta(self.next_offset, last.offset + 1, sha256(last.value), last.timestamp_ms)
        for record in fresh:
            self._fold_one(delta, record)
        self.next_offset, self.last_record_sha256 = delta.next_offset, delta.last_record_sha256
        return delta

    def _fold_one(self, delta: Delta, record: RawRecord) -> None:
        changes, dead = fold_record(self.streams, record.value)
        if dead is not None:
            delta.dead.append(DeadLetter(record.offset, dead, record.key, record.value, record.signature))
        if changes is None:
            return
        self._add(delta, record.offset, changes)
        self._call(delta, changes)

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
        """Ends the volatile copies of streams that control has superseded, a few streams at a time; None if
        there are none. The position stays where it is."""
        delta = Delta(self.next_offset, self.next_offset, self.last_record_sha256, 0)
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
        return delta if delta.streams else None
