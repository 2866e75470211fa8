"""The fold of `kv.audit` into the one main log: its leaves are the sealed segments, its heads are checkpoints. Pure.

Every auditor folds the same records in the same order and signs nothing but heads of that fold. So two of them
never sign trees of which neither extends the other, unless `kv.audit` itself loses or changes records: that is
what witnesses are for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pydantic import TypeAdapter, ValidationError

from auditor.checkpoint import Note, NoteError, NoteKey, TreeHead, parse_head, parse_note, sign
from auditor.registry import ControlFold
from auditor.segment import Partition, segment_leaf
from auditor.subject_seal import SubjectSeals
from auditor.tree import EMPTY_ROOT, Tree, consistency_ranges
from events.codec import decode_audit
from events.errors import DecodeError
from events.ids import KeyId, Role
from events.model.audit import AuditStatement, CheckpointSigned, Segment, SegmentsSealed, SubjectsSealed
from events.signing import Signer

_STATEMENT: TypeAdapter[AuditStatement] = TypeAdapter(AuditStatement)


def origin(log: str) -> str:
    """The main log's name in checkpoints, and that of its key: notes allow no plus sign in it."""
    return "kvledger.audit/" + log.replace("+", "%2B")


def log_keys(registry: ControlFold, *, revoked: bool) -> list[NoteKey]:
    """Keys that may sign the log's checkpoints: those of its auditors, `revoked` ones too or not."""
    return [
        NoteKey(origin(registry.log), grant.public_key)
        for grant in registry.grants.values()
        if Role.AUDITOR in grant.roles and (revoked or grant.revoked_at is None)
    ]


@dataclass(slots=True)
class MainLog:
    """`registry` says who may write it. A record that a revoked auditor wrote stays: nobody knows whether it came
    before the revocation, and a new checkpoint under a living key takes it in."""

    registry: ControlFold
    segments: list[Segment] = field(default_factory=list)
    leaves: list[bytes] = field(default_factory=list)
    roots: dict[int, bytes] = field(default_factory=lambda: {0: EMPTY_ROOT})
    ends: dict[Partition, int] = field(default_factory=dict)
    checkpoints: dict[int, Note] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    subjects: SubjectSeals = field(default_factory=SubjectSeals)
    _tree: Tree = field(default_factory=Tree)

    @property
    def size(self) -> int:
        return len(self.leaves)

    def take(self, value: bytes) -> bool:
        """Folds one record of `kv.audit`, in order; whether it changed anything. Whatever isn't an auditor's word
        about this log is ignored."""
        try:
            record = decode_audit(value)
            statement = _STATEMENT.validate_json(record.statement)
        except (DecodeError, ValidationError):
            return False
        grant = self.registry.grants.get(KeyId(record.signer))
        if grant is None or Role.AUDITOR not in grant.roles or statement.log != self.registry.log:
            return False
        if not self.registry.verify(grant.public_key, record.signature, record.statement):
            return False
        if isinstance(statement, SegmentsSealed):
            return self._extend(statement)
        if isinstance(statement, SubjectsSealed):
            return self.subjects.take(statement, value)
        return isinstance(statement, CheckpointSigned) and self._checkpoint(statement)

    def _extend(self, sealed: SegmentsSealed) -> bool:
        if sealed.first_leaf != self.size:
            return False
        ends = dict(self.ends)
        for segment in sealed.segments:
            where = segment.topic, segment.partition
            if not ends.get(where, 0) <= segment.first < segment.next or segment.records > (
                segment.next - segment.first
            ):
                return False
            ends[where] = segment.next
        for segment in sealed.segments:
            self._append(segment)
        self.roots[self.size] = self._tree.root()
        return True

    def _checkpoint(self, signed: CheckpointSigned) -> bool:
        try:
            note = parse_note(signed.note.encode())
            head = parse_head(note.text)
        except NoteError:
            return False
        keys = log_keys(self.registry, revoked=True)
        if head.origin != origin(self.registry.log) or not any(note.signed_by(key) for key in keys):
            return False
        if self.roots.get(head.size) != head.root:
            self.problems.append(f"kv.audit holds a checkpoint of {head.size} leaves over another tree")
            return False
        known = self.checkpoints.get(head.size)
        if known is None or known.text != note.text:
            self.checkpoints[head.size] = note
        else:
            self.checkpoints[head.size] = known.with_signatures(note.signatures)
        return True

    def restore(self, segments: Iterable[Segment], note: Note) -> None:
        """Makes these the leaves of an empty main log and `note` the checkpoint over them: an archive's, whose tree
        and signature the caller has checked."""
        for segment in segments:
            self._append(segment)
        self.roots[self.size] = self._tree.root()
        self.checkpoints[self.size] = note

    def _append(self, segment: Segment) -> None:
        self.ends[segment.topic, segment.partition] = segment.next
        self.segments.append(segment)
        self.leaves.append(segment_leaf(segment))
        self._tree.append(self.leaves[-1])

    def head(self) -> Note | None:
        """The checkpoint over all leaves under a living auditor's key, with what witnesses added; None if nobody
        has signed one yet."""
        note = self.checkpoints.get(self.size)
        living = log_keys(self.registry, revoked=False)
        return note if note is not None and any(note.signed_by(key) for key in living) else None

    def sign_head(self, signer: Signer) -> Note:
        """The head under this auditor's key."""
        text = TreeHead(origin(self.registry.log), self.size, self._tree.root()).text()
        key = NoteKey(origin(self.registry.log), signer.public_key)
        return Note(text, (sign(text, key, signer),))

    def consistency(self, old: int) -> list[bytes]:
        """Proof that the head extends its first `old` leaves. Raises ValueError if it never had as many."""
        ranges = consistency_ranges(old, self.size)
        return Tree(ranges).extend(self.leaves).proof(ranges)

    def unsealed(self, ends: Mapping[Partition, int]) -> bool:
        """Whether a partition reaches behind its last segment."""
        return any(end > self.ends.get(where, 0) for where, end in ends.items())


def split(segments: Iterable[Segment], first_leaf: int, log: str, at_most: int) -> list[SegmentsSealed]:
    """Records that add the segments, in order, none with more than `at_most`."""
    todo = list(segments)
    return [
        SegmentsSealed(log=log, first_leaf=first_leaf + at, segments=tuple(todo[at : at + at_most]))
        for at in range(0, len(todo), at_most)
    ]
