"""How a command anchors a log: seals what was read, signs the head, asks the configured witnesses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from auditor.anchoring import Anchor, Anchoring, appraise, make_anchor
from auditor.archive.log_archive import LogArchive
from auditor.archive.reader import ArchivedReader
from auditor.archive.store import FsspecStore
from auditor.archive.subject import ArchivedSubjects
from auditor.checkpoint import NoteKey
from auditor.finding import Verdict
from auditor.fold_state import LastRecord, Resumed
from auditor.live import AppendNonces, LiveAudit
from auditor.log import AuditedLog
from auditor.main_log import origin
from auditor.registry import ControlFold
from auditor.sealer import Sealer
from auditor.seen import SpillError
from auditor.segment import LogWatch, Partition, Settled, SubjectsWatch, raw_leaf
from auditor.verdict import judge
from events.ids import Role
from events.kafka.connection import RawRecord
from events.model.control import SubjectScope
from events.signing import verify
from events.topic import CONTROL, EVENTS, SUBJECTS
from kvledger.audit_state import AuditStates
from kvledger.control import connection
from kvledger.failure import CommandError, ExitCode
from kvledger.keyfile import load_signer
from kvledger.settings import Settings
from kvledger.witnessing import Witnesses, load_witnesses

ATTEMPTS = 3
"""How often an audit begins again because another auditor sealed the same records meanwhile."""


@dataclass(slots=True)
class CheckpointMade:
    """What `kvledger audit checkpoint` did. `problems` say where the log contradicts what was sealed."""

    origin: str
    key: str
    note: str
    size: int
    added: int
    problems: list[str]
    witnessed: int
    witnesses: int
    quorum: int
    complaints: list[str] = field(default_factory=list)


@asynccontextmanager
async def sealing(settings: Settings, registry: ControlFold) -> AsyncIterator[Sealer]:
    """A sealer that has read `kv.audit`. Raises LogUnavailableError, KeyFileError."""
    sealer = Sealer(connection(settings), registry, load_signer(settings.home, Role.AUDITOR))
    try:
        await sealer.start()
        yield sealer
    finally:
        await sealer.stop()


async def judge_anchored(
    settings: Settings,
    audit: LiveAudit,
    numbers: Sequence[int],
    wait_s: float,
    ask: AppendNonces,
    archive: str | None = None,
    states: AuditStates | None = None,
) -> tuple[list[Verdict], Anchor | None, list[str]]:
    """Verdicts on requests as of one frontier, with the log sealed up to it; what a bundle shows of the main log;
    and what witnesses complained of, or where the archive ends. `archive` is the URL of one to read what the log has
    dropped from; with `states` an audit goes on where an earlier one of the same requests stood. Raises what
    `LiveAudit.run` raises, LogUnavailableError and ArchiveError."""
    witnesses = load_witnesses(settings.home)
    async with sealing(settings, audit.registry) as sealer:
        past, store, bound = audit.log.events, None, None
        if archive is not None:
            store = await asyncio.to_thread(FsspecStore, archive)
        audit.subjects_sealed = sealer.main.subjects.segments()
        if store is not None and isinstance(audit.log, AuditedLog):
            bound = ArchivedSubjects(LogArchive(store, audit.registry.log), audit.subjects_sealed)
            audit.log.subjects_past = bound
        settled = Settled()
        for attempt in range(ATTEMPTS):
            try:
                resumed = _resumed(states, numbers, sealer, audit)
                if store is not None and isinstance(past, ArchivedReader):
                    since = {
                        p: min(one.needs(p) for one in resumed.values())
                        for p in range(audit.registry.partitions if resumed else 0)
                    }
                    past.prepend(LogArchive(store, audit.registry.log), sealer.main, since)
                await audit.attach(sealer.main.segments, resumed)
                await audit.run(numbers, 0.0 if attempt else wait_s, ask)
            except SpillError:
                if states is None:
                    raise
                states.discard(audit.registry.log)
                await past.whole()
                await audit.attach(sealer.main.segments)
                await audit.run(numbers, 0.0, ask)
            settled = audit.settle()
            if await sealer.seal(settled.new):
                settled.new = []
                break
        damage = [*past.problems] if isinstance(past, ArchivedReader) else []
        damage += [*(bound.problems if bound is not None else ()), *audit.subject_problems]
        anchor, anchoring, complaints = await _anchor(sealer, audit, settled, witnesses, damage)
        complaints += past.begins if isinstance(past, ArchivedReader) else []
        complaints += bound.begins if bound is not None else []
        if states is not None and not settled.new and not anchoring.problems:
            complaints += _keep(states, numbers, sealer, audit)
    verdicts = [judge(audit.evidence[number], audit.frontier, anchoring=anchoring) for number in numbers]
    return verdicts, anchor, complaints


def _resumed(
    states: AuditStates | None, numbers: Sequence[int], sealer: Sealer, audit: LiveAudit
) -> dict[int, Resumed]:
    """The states of all requests; nothing if one has none that fits, for then the log is read whole anyway."""
    found: dict[int, Resumed] = {}
    for number in numbers if states is not None else ():
        assert states is not None
        one, _ = states.load(number, sealer.main, audit.keys)
        if one is not None:
            found[number] = one
    return found if len(found) == len(set(numbers)) else {}


def _keep(states: AuditStates, numbers: Sequence[int], sealer: Sealer, audit: LiveAudit) -> list[str]:
    """Keeps the evidence if the main log ends where it does: another auditor may have sealed more since. Says what
    couldn't be kept."""
    ends = {p: sealer.main.ends.get((EVENTS.name, p), 0) for p in audit.ends}
    if ends != audit.ends:
        return []
    partitions = []
    for p, end in sorted(audit.ends.items()):
        offset, leaf = audit.last.get(p, (None, None))
        partitions.append(LastRecord(partition=p, end=end, offset=offset, leaf=leaf))
    told = [states.save(number, audit.evidence[number], partitions, sealer.main) for number in numbers]
    return [why for why in told if why]


async def _anchor(
    sealer: Sealer, audit: LiveAudit, settled: Settled, witnesses: Witnesses, damage: Sequence[str]
) -> tuple[Anchor | None, Anchoring, list[str]]:
    complaints = await _witnessed(sealer, witnesses)
    head = sealer.main.head()
    if head is None:
        policy = witnesses.policy
        none = Anchoring(
            witnesses=len(policy.keys),
            quorum=policy.quorum,
            problems=tuple(damage),
            gap="kv.audit takes no checkpoint",
        )
        return None, none, complaints
    anchor = make_anchor(sealer.main, head, witnesses.policy, audit.starts)
    anchor = replace(anchor, said=(*anchor.said, *damage))
    return anchor, appraise(anchor, settled), complaints


async def _witnessed(sealer: Sealer, witnesses: Witnesses) -> list[str]:
    """Signs the head and has it cosigned; what witnesses complained of."""
    head = await sealer.head()
    if head is None:
        return []
    given, complaints = await witnesses.ask(sealer.main, head)
    if given:
        await sealer.publish(head.with_signatures(given))
    return complaints


def _asks_for_subjects(registry: ControlFold) -> bool:
    """Whether a verdict on any request rests on kv.subjects."""
    scopes = [request.scope for request in registry.requests.values()]
    return any(isinstance(scope, SubjectScope) and scope.pseudonym is not None for scope in scopes)


async def _seal_subjects(log: AuditedLog, sealer: Sealer) -> list[str]:
    """Seals what kv.subjects holds behind what was sealed of it, if anything ever was bound, or asked for; what
    contradicts that. Without a seal of its own a checkpoint says nothing of kv.subjects."""
    main, subjects = sealer.main, SubjectsWatch()
    if main.subjects.main_size >= main.size:
        return []
    reach = main.subjects.reach
    read = await log.read_subjects(subjects.take, reach)
    if read.stop < reach:
        return [f"{SUBJECTS.name}/0 ends at {read.stop}, records up to {reach} were sealed"]
    if read.stop or _asks_for_subjects(main.registry):
        await sealer.seal_subjects(subjects.segment(read))
    return []


async def make_checkpoint(settings: Settings) -> CheckpointMade:
    """Seals all records that are new since the last checkpoint, and only reads those of kv.events. kv.control is
    read and compared whole. Raises LogUnavailableError, KeyFileError, CommandError if nobody has begun the log."""
    log, registry = AuditedLog(connection(settings)), ControlFold(verify)
    control: list[RawRecord] = []

    def take(record: RawRecord) -> None:
        if registry.feed(record.offset, record.value, record.signature) != "redelivered":
            control.append(record)

    try:
        await log.start()
        await log.read_control(take)
        if not registry.log:
            raise CommandError(
                "the log has no genesis record",
                advice="run `kvledger up` once",
                exit_code=ExitCode.CONFIGURATION,
            )
        starts = await log.open_events(registry.partitions or settings.partitions)
        async with sealing(settings, registry) as sealer:
            main = sealer.main
            ends = await log.events.ends()
            control_end = await log.read_control(take)
            begin: dict[Partition, int] = {
                (EVENTS.name, p): max(start, main.ends.get((EVENTS.name, p), 0))
                for p, start in starts.items()
            }
            watch = LogWatch(main.segments, begin | {(CONTROL.name, 0): registry.start or 0})
            for record in control:
                watch.take(
                    (CONTROL.name, 0), record.offset, raw_leaf(record.offset, record.value, record.signature)
                )
            log.events.skip_to({p: begin[EVENTS.name, p] for p in starts})
            await log.events.read_to(
                ends,
                lambda one: watch.take(
                    (EVENTS.name, one.partition), one.offset, raw_leaf(one.offset, one.value, one.signature)
                ),
            )
            settled = watch.settle(
                {(EVENTS.name, p): end for p, end in ends.items()} | {(CONTROL.name, 0): control_end}
            )
            before = main.size
            await sealer.seal(settled.new)
            witnesses = load_witnesses(settings.home)
            complaints = await _witnessed(sealer, witnesses)
            subjects = await _seal_subjects(log, sealer)
            head = main.head()
            return CheckpointMade(
                origin=origin(registry.log),
                key=str(NoteKey(origin(registry.log), sealer.public_key)),
                note=head.to_bytes().decode() if head is not None else "",
                size=main.size,
                added=main.size - before,
                problems=[*main.problems, *settled.problems, *subjects],
                witnessed=witnesses.policy.count(head) if head is not None else 0,
                witnesses=len(witnesses.policy.keys),
                quorum=witnesses.policy.quorum,
                complaints=complaints,
            )
    finally:
        await log.stop()
