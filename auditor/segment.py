"""Segments: closed runs of a partition's records, each with its RFC 6962 root. Pure.

A record's leaf holds its offset and the SHA-256 of its header line, of the rest of its value and of its
signature, the same three that kv.control's running hash takes in. So whoever is shown a header and the digest
of a withheld body can still rebuild the leaf, and no byte of the record is outside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from auditor.tree import Tree, leaf_hash
from events.chain import sha256, split_lines
from events.model.audit import Segment
from events.topic import SUBJECTS

if TYPE_CHECKING:
    from events.kafka.connection import RawRecord

SEGMENT_RECORDS = 16_384
"""A segment is closed at this many records, or where the reader stops."""

_UNSIGNED = sha256(b"")

Partition = tuple[str, int]
"""Plain topic name and partition."""


def record_leaf(offset: int, head_sha256: bytes, rest_sha256: bytes, signature_sha256: bytes) -> bytes:
    """Leaf hash of one record from its digests; a record without a signature has that of no bytes."""
    return leaf_hash(offset.to_bytes(8, "big") + head_sha256 + rest_sha256 + signature_sha256)


def raw_leaf(offset: int, value: bytes, signature: bytes | None, header_sha256: bytes | None = None) -> bytes:
    """Leaf hash of one record from its bytes; `header_sha256` if its header line's digest is known already."""
    head, rest = split_lines(value)
    signed = sha256(signature) if signature else _UNSIGNED
    return record_leaf(offset, header_sha256 or sha256(head), sha256(rest), signed)


def segment_leaf(segment: Segment) -> bytes:
    """The segment's leaf hash in the main log."""
    text = (
        f"kvledger segment v1\n{segment.topic}\n{segment.partition}\n"
        f"{segment.first}\n{segment.next}\n{segment.records}\n{segment.root.hex()}\n"
    )
    return leaf_hash(text.encode())


@dataclass(slots=True)
class _Open:
    """A segment that is being read: sealed earlier, to be compared, or a new one."""

    first: int
    tree: Tree = field(default_factory=Tree)


class PartitionWatch:
    """Follows one partition whose oldest record has offset `start`: compares every segment that was sealed, and
    seals what lies behind them.

    `take` its records in offset order, then `settle` once. Memory is log2 of one segment, and a number for each.
    """

    def __init__(self, where: Partition, sealed: Sequence[Segment], start: int) -> None:
        self._where = where
        self._sealed = sealed
        self._start = start
        self._next = 0
        self._tree = Tree()
        self._held: set[int] = set()
        self._covered = sealed[-1].next if sealed else start
        self._new: list[Segment] = []
        self._open = _Open(max(self._covered, start))

    def take(self, offset: int, leaf: bytes) -> None:
        """One record by its leaf hash."""
        if offset >= self._covered:
            self._open.tree.append(leaf)
            if self._open.tree.size >= SEGMENT_RECORDS:
                self._close(offset + 1)
            return
        while self._sealed[self._next].next <= offset:
            self._compare()
        if offset >= self._sealed[self._next].first:
            self._tree.append(leaf)

    def settle(self, end: int, *, start: int | None = None) -> Settled:
        """What came of it, for a partition that was read up to `end`; from `start` on, if that wasn't known before."""
        found, start = Settled(), self._start if start is None else start
        while self._next < len(self._sealed):
            self._compare()
        topic, partition = self._where
        name = f"{topic}/{partition}"
        reached = start
        for index, segment in enumerate(self._sealed):
            if segment.first > reached:
                found.uncovered.append(f"{name} from {reached} to {segment.first}: in no segment")
            reached = max(reached, segment.next)
            if segment.next > end:
                found.problems.append(f"{name} ends at {end}, records up to {segment.next} were sealed")
                break
            if segment.first < start:
                if segment.next > start:
                    found.uncovered.append(
                        f"{name} from {start} to {segment.next}: its segment's start is gone"
                    )
                continue
            if index not in self._held:
                found.problems.append(f"{name} from {segment.first} to {segment.next} is not what was sealed")
        if end > self._open.first:
            self._close(end)
        found.new = self._new
        return found

    def _compare(self) -> None:
        """The next sealed segment was read: notes whether it is the one."""
        segment, tree = self._sealed[self._next], self._tree
        if (tree.size, tree.root()) == (segment.records, segment.root):
            self._held.add(self._next)
        self._next, self._tree = self._next + 1, Tree()

    def _close(self, end: int) -> None:
        topic, partition = self._where
        tree = self._open.tree
        self._new.append(
            Segment(
                topic=topic,
                partition=partition,
                first=self._open.first,
                next=end,
                records=tree.size,
                root=tree.root(),
            )
        )
        self._open = _Open(end)


@dataclass(slots=True)
class Settled:
    """`problems` say where the records contradict what was sealed, `uncovered` what no seal speaks of, and `new`
    holds the segments behind the sealed ones."""

    problems: list[str] = field(default_factory=list)
    uncovered: list[str] = field(default_factory=list)
    new: list[Segment] = field(default_factory=list)


@dataclass(slots=True)
class SubjectsWatch:
    """Takes a run of kv.subjects in, in offset order; `segment` is all of it."""

    _tree: Tree = field(default_factory=Tree)

    def take(self, record: RawRecord) -> None:
        self._tree.append(raw_leaf(record.offset, record.value, record.signature))

    def segment(self, read: range) -> Segment:
        """`read`: from which offset on records were given, and up to where."""
        return Segment(
            topic=SUBJECTS.name,
            partition=0,
            first=read.start,
            next=read.stop,
            records=self._tree.size,
            root=self._tree.root(),
        )


class LogWatch:
    """A `PartitionWatch` for each partition; `starts` are the oldest offsets that the log still holds."""

    def __init__(self, sealed: Iterable[Segment], starts: Mapping[Partition, int]) -> None:
        self._starts = dict(starts)
        self._sealed: dict[Partition, list[Segment]] = {}
        for segment in sealed:
            self._sealed.setdefault((segment.topic, segment.partition), []).append(segment)
        self._watches: dict[Partition, PartitionWatch] = {}

    def take(self, where: Partition, offset: int, leaf: bytes) -> None:
        """One record by its leaf hash, in offset order within its partition."""
        self._of(where).take(offset, leaf)

    def forget(self, topic: str) -> None:
        """The topic will be read from its start again."""
        for where in [one for one in self._watches if one[0] == topic]:
            del self._watches[where]

    def settle(self, ends: Mapping[Partition, int]) -> Settled:
        """All partitions together, in the order of their names; `ends` names every one that was read."""
        found = Settled()
        for where in sorted(set(ends) | set(self._sealed)):
            one = self._of(where).settle(ends.get(where, 0))
            found.problems += one.problems
            found.uncovered += one.uncovered
            found.new += one.new
        return found

    def _of(self, where: Partition) -> PartitionWatch:
        watch = self._watches.get(where)
        if watch is None:
            sealed = self._sealed.get(where, [])
            watch = self._watches[where] = PartitionWatch(where, sealed, self._starts.get(where, 0))
        return watch
