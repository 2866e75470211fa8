"""One audit of a running log: read, judge, ask with a nonce, read on, until the verdict stands or time is up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial

from auditor.evidence import Evidence
from auditor.finding import Verdict
from auditor.fold_state import Resumed
from auditor.log import AuditReader, frontier
from auditor.record import StreamRecord, UnreadableRecord, Views
from auditor.registry import ControlFold, RequestRead
from auditor.seen import SeenHashes
from auditor.segment import LogWatch, Partition, Settled, raw_leaf
from auditor.subject import bind
from auditor.verdict import judge, wants_nonce
from events.chain import sha256, split_lines
from events.errors import KvledgerError
from events.ids import VerdictKind
from events.kafka.connection import LogUnavailableError, RawRecord
from events.model.audit import PartitionPosition, Segment
from events.signing import Verify
from events.topic import CONTROL, DEFAULT_PARTITIONS, EVENTS

AppendNonces = Callable[[Sequence[int]], Awaitable[object]]
"""Writes a signed audit nonce for each of these requests."""


ANEW_S = 60.0
"""How long past the time to wait an audit is begun anew because the log changes under it."""
RECORDS_AT_ONCE, BYTES_AT_ONCE = 64, 32_768
"""Records that are hashed, then read, then folded, each step for all of them: a processor does the same thing again
and again at about three quarters of what doing everything in turn costs, as long as its caches hold them all."""
NAMED_REQUESTS = 10
"""Known requests that the answer to an unknown one names."""


def _reaches(starts: Mapping[int, int], resumed: Resumed) -> bool:
    """Whether the log still holds everything from the state's position on."""
    ends = resumed.head.ends
    return all(start <= ends.get(partition, 0) for partition, start in starts.items())


class UnknownRequestError(KvledgerError):
    """No obeyed deletion request has this number; the caller looks at `kvledger delete`'s answer."""

    def __init__(self, number: int, known: Iterable[int]) -> None:
        self.number = number
        self.known = tuple(sorted(known, reverse=True))
        newest = ", ".join(str(one) for one in self.known[:NAMED_REQUESTS])
        there_is = f"the newest are {newest}" if newest else "it has none"
        super().__init__(f"there is no deletion request {number} in this log; {there_is}")


class LiveAudit:
    """`monotonic_s` only bounds the waiting; no verdict rests on it. `keys`: domain -> alias key. `new_seen` makes,
    for a request's evidence, what a stream's header hashes are kept in."""

    def __init__(
        self,
        log: AuditReader,
        keys: Mapping[str, bytes],
        verify: Verify,
        *,
        monotonic_s: Callable[[], float],
        poll_s: float = 0.2,
        new_seen: Callable[[int], SeenHashes] = lambda _: SeenHashes(),
    ) -> None:
        self.log = log
        self.registry = ControlFold(verify)
        self.control: list[RawRecord] = []
        self.frontier: tuple[PartitionPosition, ...] = ()
        self.evidence: dict[int, Evidence] = {}
        self.ends: dict[int, int] = {}
        self.starts: dict[Partition, int] = {}
        self.watch: LogWatch | None = None
        self.subjects_sealed: Sequence[Segment] = ()
        """Runs of kv.subjects to compare with what is read of it; `subject_problems` says where that contradicts."""
        self.subject_problems: list[str] = []
        self.last: dict[int, tuple[int, bytes]] = {}
        self.resumed: Mapping[int, Resumed] = {}
        self._sealed: Sequence[Segment] | None = None
        self._waiting: list[RawRecord] = []
        self._waiting_bytes = 0
        self._from: dict[int, dict[int, int]] = {}
        self._begin: dict[int, int] = {}
        self._expected: dict[int, tuple[int, bytes]] = {}
        self._new_seen = new_seen
        self.keys = dict(keys)
        self._verify = verify
        self._monotonic_s = monotonic_s
        self._poll_s = poll_s

    async def open(self) -> Mapping[int, RequestRead]:
        """Connects and reads kv.control; every request by number. Raises LogUnavailableError."""
        await self.log.start()
        await self.log.read_control(self._take_control)
        return self.registry.requests

    async def run(self, numbers: Sequence[int], wait_s: float, ask: AppendNonces | None) -> list[Verdict]:
        """Verdicts on the given requests as of one frontier. Writes at most one nonce for each; without `ask` none,
        and waits for nothing. Raises
        UnknownRequestError, LogUnavailableError. A log that no longer holds what was read, because its newest
        records were cut off and others written, is read again from its start."""
        self._must_know(numbers)
        deadline_s = self._monotonic_s() + wait_s
        asked: set[int] = set()
        while True:
            await self._round(numbers)
            if not await self.log.stands():
                # Nothing that was read counts, not even that a nonce was written.
                if self._monotonic_s() >= deadline_s + ANEW_S:
                    raise LogUnavailableError("the log was cut again and again while it was read")
                asked.clear()
                await self._anew(numbers)
                continue
            verdicts = [judge(self.evidence[number], self.frontier) for number in numbers]
            if ask is None:
                return verdicts
            due = [n for n in numbers if n not in asked and wants_nonce(self.evidence[n])]
            if due:
                asked.update(due)
                await ask(due)
            waiting = any(verdict.kind is VerdictKind.PENDING for verdict in verdicts)
            if not due and (not waiting or self._monotonic_s() >= deadline_s):
                return verdicts
            await asyncio.sleep(self._poll_s)

    def _must_know(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            if number not in self.registry.requests:
                raise UnknownRequestError(number, self.registry.requests)

    async def _anew(self, numbers: Sequence[int]) -> None:
        await self.log.stop()
        sealed, self.watch = self._sealed, None
        self.registry = ControlFold(self._verify)
        self.control, self.frontier, self.evidence, self.ends = [], (), {}, {}
        self.resumed, self.last = {}, {}
        self._from, self._begin, self._expected = {}, {}, {}
        await self.open()
        self._must_know(numbers)
        if sealed is not None:
            await self.attach(sealed)

    async def attach(self, sealed: Sequence[Segment], resumed: Mapping[int, Resumed] | None = None) -> None:
        """Compares everything that is read from now on with these segments. It is read from the log's start, or
        where all requests that `run` will be asked for have been `resumed`, from there on: what lies before was
        compared when that state was made. Raises LogUnavailableError."""
        partitions = self.registry.partitions or DEFAULT_PARTITIONS
        starts = await self.log.open_events(partitions)
        reaches = bool(resumed) and all(_reaches(starts, one) for one in (resumed or {}).values())
        if not reaches:
            await self.log.events.whole()
            starts = await self.log.open_events(partitions)
        self.starts = {(EVENTS.name, partition): start for partition, start in starts.items()}
        self.starts[CONTROL.name, 0] = self.registry.start or 0
        self._sealed, self.evidence, self.resumed = sealed, {}, {}
        self.last, self._from, self._begin, self._expected = {}, {}, {}, {}
        if reaches and resumed is not None:
            self._resume(starts, resumed)
        self.watch = LogWatch(sealed, self.starts | {(EVENTS.name, p): at for p, at in self._begin.items()})
        for record in self.control:
            self._watch(CONTROL.name, record)

    def _resume(self, starts: Mapping[int, int], resumed: Mapping[int, Resumed]) -> None:
        self.resumed = resumed
        self.evidence = {number: one.evidence for number, one in resumed.items()}
        self._from = {n: {p: one.head.ends.get(p, 0) for p in starts} for n, one in resumed.items()}
        self._begin = {p: min(one[p] for one in self._from.values()) for p in starts}
        for one in resumed.values():
            for told in one.head.partitions:
                if (
                    told.end == self._begin[told.partition]
                    and told.offset is not None
                    and told.leaf is not None
                ):
                    self._expected[told.partition] = told.offset, told.leaf
        self.last = dict(self._expected)
        # The last record that was folded is read again, to see that it is still there.
        skip = {p: self._expected[p][0] if p in self._expected else at for p, at in self._begin.items()}
        self.log.events.skip_to(skip)

    async def _from_the_start(self) -> None:
        """What was resumed doesn't fit the log: nothing of it counts."""
        assert self._sealed is not None, "only an attached audit resumes"
        await self.attach(self._sealed)

    def settle(self) -> Settled:
        """How the log fits the segments, as of the last round's frontier."""
        assert self.watch is not None, "attach first"
        return self.watch.settle({(one.topic, one.partition): one.offset for one in self.frontier})

    def _watch(self, topic: str, record: RawRecord, header_sha256: bytes | None = None) -> bytes:
        """The record's leaf hash; where segments are attached it is compared with theirs."""
        leaf = raw_leaf(record.offset, record.value, record.signature, header_sha256)
        if self.watch is not None:
            self.watch.take((topic, record.partition), record.offset, leaf)
        return leaf

    async def _round(self, numbers: Sequence[int]) -> None:
        """Moves the frontier to the log's end. Domains that appeared in a scope make it start over."""
        partitions = self.registry.partitions or DEFAULT_PARTITIONS
        starts = await self.log.open_events(partitions)
        ends = await self.log.events.ends()
        control_end = await self.log.read_control(self._take_control)
        self.registry.reach(control_end)
        stale = any(one.scope.stale() for one in self.evidence.values())
        if stale and self.resumed:
            await self._from_the_start()
            starts = await self.log.open_events(partitions)
        if stale or not self.evidence:
            self.log.events.rewind()
            if self.watch is not None:
                self.watch.forget(EVENTS.name)
            self.evidence = {n: self._fresh(n, starts) for n in numbers}
        try:
            await self.log.events.read_to(ends, self._take_event)
        finally:
            self._fold()
        if self._expected:
            await self._from_the_start()
            await self._round(numbers)
            return
        # Behind the events of this round.
        self.subject_problems = await bind(self.log, self.evidence.values(), self.subjects_sealed)
        self.ends, self.frontier = ends, frontier(control_end, ends)

    def _fresh(self, number: int, starts: dict[int, int]) -> Evidence:
        evidence = Evidence(
            self.registry.requests[number],
            self.registry,
            self.keys,
            self._verify,
            new_seen=partial(self._new_seen, number),
        )
        evidence.partition_starts = starts
        return evidence

    def _take_control(self, record: RawRecord) -> None:
        if self.registry.feed(record.offset, record.value, record.signature) != "redelivered":
            self.control.append(record)
            self._watch(CONTROL.name, record)

    def _take_event(self, record: RawRecord) -> None:
        partition, offset = record.partition, record.offset
        if offset < self._begin.get(partition, 0):
            leaf = raw_leaf(offset, record.value, record.signature)
            if self._expected.get(partition) == (offset, leaf):
                del self._expected[partition]
            return
        self._waiting.append(record)
        self._waiting_bytes += len(record.value)
        if len(self._waiting) >= RECORDS_AT_ONCE or self._waiting_bytes >= BYTES_AT_ONCE:
            self._fold()

    def _fold(self) -> None:
        """Takes in what waits, in the order in which it came. What a request wants to see of a record depends on
        kv.control alone, so that it can be said before the records ahead are folded."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        hashes = [sha256(split_lines(record.value)[0]) for record in waiting]
        for record, header_sha256 in zip(waiting, hashes, strict=True):
            self.last[record.partition] = record.offset, self._watch(EVENTS.name, record, header_sha256)
        seen: list[tuple[Evidence, StreamRecord | UnreadableRecord]] = []
        for record, header_sha256 in zip(waiting, hashes, strict=True):
            partition, offset = record.partition, record.offset
            views = Views(partition, offset, record.value, record.signature, header_sha256)
            for number, evidence in self.evidence.items():
                if not self._from or offset >= self._from[number][partition]:
                    seen.append((evidence, views.of(evidence.wanted)))
        for evidence, view in seen:
            evidence.feed(view)

    async def reread(self, number: int, take: Callable[[RawRecord, Evidence], None]) -> None:
        """Reads kv.events once more up to the frontier of the last round, for a bundle. Raises
        LogUnavailableError, also if the log has lost anything since: audit again."""
        self.log.events.rewind()
        evidence = self.evidence[number]
        await self.log.events.read_to(self.ends, lambda record: take(record, evidence))
        if not await self.log.stands():
            raise LogUnavailableError("the log was cut while it was read; audit again")
