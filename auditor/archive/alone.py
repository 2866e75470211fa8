"""A log as an archive alone holds it, for an audit that no broker serves: up to its newest kept segments, under its
signed checkpoint. Nothing is given that wasn't verified."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from auditor.anchoring import Anchor, WitnessPolicy, appraise, make_anchor
from auditor.archive.check import seals_listed, why_untrusted
from auditor.archive.failure import ArchiveError
from auditor.archive.log_archive import LogArchive
from auditor.archive.manifest import Manifest, kept_segments, name_of
from auditor.archive.reader import ArchivedReader, damage
from auditor.checkpoint import Note
from auditor.finding import Verdict
from auditor.live import LiveAudit
from auditor.log import Take
from auditor.main_log import MainLog
from auditor.registry import ControlFold
from auditor.verdict import judge
from events.kafka.connection import RawRecord
from events.model.audit import Segment
from events.signing import Verify
from events.topic import CONTROL, EVENTS


@dataclass(frozen=True, slots=True)
class ArchivedControl:
    """What an archive says before any record of kv.events is looked at. `end`: behind the newest kept segment of
    kv.control, `ends`: of each partition of kv.events. `subjects`: the runs of kv.subjects, in order, if what it held
    at the checkpoint is known; else `subjects_fault` says why it isn't."""

    archive: LogArchive
    note: Note
    main: MainLog
    records: tuple[RawRecord, ...]
    end: int
    ends: Mapping[int, int]
    subjects: tuple[Segment, ...]
    subjects_fault: str


def read_control(archive: LogArchive, trusted_key: bytes, verify: Verify) -> ArchivedControl:
    """Reads kv.control from its genesis on, each segment verified, and the checkpoint under a key that the trusted one
    vouches for. Blocks. Raises ArchiveError if the archive isn't whole there or not of a log of that key's: then
    nothing can be judged from it."""
    manifest, note = archive.manifest()
    registry = ControlFold(verify)
    records: list[RawRecord] = []
    reached = 0
    for segment in kept_segments(manifest).values():
        if segment.topic != CONTROL.name:
            continue
        if segment.first != reached:
            break
        archive.verify(segment)
        reached = segment.next
        with archive.records(segment) as told:
            for record in told:
                registry.feed(record.offset, record.value, record.signature)
                records.append(record)
    _whole(manifest, reached)
    why = why_untrusted(manifest, note, registry, trusted_key)
    if why:
        raise why
    ends = dict.fromkeys(range(registry.partitions), 0)
    for segment in kept_segments(manifest).values():
        if segment.topic == EVENTS.name:
            ends[segment.partition] = segment.next
    main = MainLog(registry)
    main.restore(manifest.segments, note)
    subjects, fault = _subjects(archive, manifest, registry)
    return ArchivedControl(archive, note, main, tuple(records), reached, ends, subjects, fault)


def _subjects(
    archive: LogArchive, manifest: Manifest, registry: ControlFold
) -> tuple[tuple[Segment, ...], str]:
    seals = seals_listed(manifest, registry)
    if not seals.main_size or seals.main_size != len(manifest.segments):
        fault = "archive: kv.subjects was not sealed at its checkpoint: `audit checkpoint`, `audit archive`"
        return (), fault
    for segment in seals.segments():
        why = damage(archive, segment)
        if why:
            return (), f"archive: {why}"
    return seals.segments(), ""


def _records(archive: LogArchive, segment: Segment) -> list[RawRecord]:
    with archive.records(segment) as told:
        return list(told)


def _whole(manifest: Manifest, reached: int) -> None:
    """Raises ArchiveError if kv.control isn't all there that was sealed."""
    sealed = [one for one in manifest.segments if one.topic == CONTROL.name]
    for segment in sealed:
        if segment.next > reached:
            raise ArchiveError(
                "archive_unverified",
                f"{name_of(segment)} is not in it, and without all of kv.control nothing can be judged",
            )
    if not sealed:
        raise ArchiveError("archive_unverified", "it holds no kv.control: `audit archive` takes it in")


class _Nothing:
    """Kafka's part of kv.events where there is no Kafka: it begins where the archive ends."""

    def __init__(self, ends: Mapping[int, int]) -> None:
        self.starts = dict(ends)

    async def start(self, partitions: int) -> None:
        """All partitions are known."""

    async def whole(self) -> None:
        """Nothing was left out."""

    def skip_to(self, offsets: dict[int, int]) -> None:
        """There is nothing to read."""

    def rewind(self) -> None:
        """There is nothing to read."""

    async def ends(self) -> dict[int, int]:
        return dict(self.starts)

    async def read_to(self, ends: dict[int, int], take: Take) -> None:
        """There is nothing to read."""

    async def stands(self) -> bool:
        return True

    async def stop(self) -> None:
        """There is nothing to stop."""


class ArchivedLog:
    """An `AuditReader` of an archive alone. It never changes under its reader: what was verified is compared once more
    as it is read."""

    def __init__(self, found: ArchivedControl) -> None:
        self._found = found
        self._told = 0
        self.problems: list[str] = []
        """Why a verdict that rests on kv.subjects can't be had from this archive."""
        self.events = ArchivedReader(_Nothing(found.ends))
        self.events.prepend(found.archive, found.main, {})

    async def start(self) -> None:
        """Everything is open."""

    async def read_control(self, take: Take) -> int:
        """Gives every record once; the offset behind them."""
        for record in self._found.records[self._told :]:
            take(record)
        self._told = len(self._found.records)
        return self._found.end

    async def open_events(self, partitions: int) -> dict[int, int]:
        """Verifies what there is; where it begins. Raises ArchiveError."""
        await self.events.start(partitions)
        return dict(self.events.starts)

    async def read_subjects(self, take: Take) -> range | None:
        """All that was sealed; nothing where that isn't known, and then `problems` say so."""
        runs = self._found.subjects
        if not runs:
            self.problems = [self._found.subjects_fault]
            return None
        for run in runs:
            for record in await asyncio.to_thread(_records, self._found.archive, run):
                take(record)
        return range(runs[0].first, runs[-1].next)

    async def stands(self) -> bool:
        return True

    async def stop(self) -> None:
        """There is nothing to stop."""


@dataclass(frozen=True, slots=True)
class JudgedAlone:
    """Verdicts as of the archive's end, and what a bundle takes. `begins`: where a partition is archived from some
    later record on only."""

    verdicts: list[Verdict]
    audit: LiveAudit
    anchor: Anchor
    begins: list[str]


async def judge_alone(
    found: ArchivedControl,
    numbers: Sequence[int],
    keys: Mapping[str, bytes],
    policy: WitnessPolicy,
    verify: Verify,
) -> JudgedAlone:
    """Nothing is asked and nothing waited for. `keys`: domain -> alias key. Raises UnknownRequestError,
    ArchiveError."""
    log = ArchivedLog(found)
    audit = LiveAudit(log, keys, verify, monotonic_s=lambda: 0.0)
    await audit.open()
    await audit.attach(found.main.segments)
    await audit.run(numbers, 0.0, None)
    anchor = make_anchor(found.main, found.note, policy, audit.starts)
    anchor = replace(anchor, said=(*anchor.said, *log.problems, *log.events.problems))
    anchoring = appraise(anchor, audit.settle())
    verdicts = [judge(audit.evidence[number], audit.frontier, anchoring=anchoring) for number in numbers]
    return JudgedAlone(verdicts, audit, anchor, log.events.begins)
