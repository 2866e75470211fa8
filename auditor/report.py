"""A report: every deletion request between two positions of `kv.control`, none missing, each with its newest verdict.

One file of JSON lines like a bundle. Line 1 is a DSSE envelope that names the SHA-256 of all bytes below: `format`,
the `anchor` and the `segment`s of kv.control if the log has a checkpoint, a `control` line for *every* record of
kv.control (header line and signature; with its body if it is a request of the range or decides whose keys count; its
whole bytes if it can't be read), and the signed `verdict`s of kv.audit that are used. Nothing of it is taken on the
auditor's word but which verdict is the newest. It shows every tenant's requests: it is for whoever oversees them all.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field, ValidationError

from auditor.anchoring import Anchor, Anchoring, WitnessPolicy, appraise
from auditor.bundle import anchor_lines
from auditor.line import REPORT, read_lines
from auditor.proof import (
    STATEMENT_TYPE,
    BundleError,
    CheckpointStated,
    Digest,
    StampStated,
    Subject,
    pae,
    seal,
    unseal,
)
from auditor.registry import ControlFold, RequestRead
from auditor.segment import LogWatch, raw_leaf, record_leaf
from auditor.statement import program_version, state_checkpoint
from auditor.verdict import UNANCHORED
from auditor.verify import GARBLED, auditor_key, optional_bytes, read_anchor
from events.chain import sha256
from events.codec import decode_audit, decode_control
from events.errors import DecodeError, KvledgerError
from events.ids import KeyId, Role, VerdictKind
from events.model.audit import AuditRecord, VerdictGiven
from events.model.control import ControlHeader, Scope
from events.model.field import Hex32, Offset, Record
from events.signing import Signer, key_id, verify
from events.topic import CONTROL

if TYPE_CHECKING:
    from events.kafka.connection import RawRecord

REPORT_TYPE: Final = "urn:kvledger:predicate:deletion-report:v1"
KEY_KINDS = frozenset({"genesis", "granted", "revoked"})
REQUEST_KIND = "deletion_requested"
NOT_JUDGED = "NOT JUDGED"
CLAIM = (
    "These are all deletion requests that the register holds from the first position up to, without, the next one, "
    "and "
    "the newest verdict that an auditor of this log had signed on each of them when the report was made."
)
NOT_CLAIMED = (
    "that a verdict still holds: each holds as of its own frontier; judge again with kvledger audit run --all",
    "which verdict is the newest: that no newer one was left out is the auditor's word",
    "times: they are those of the writers' clocks",
    "requests that were never written into this register",
)


class Given(Record):
    """A verdict as kv.audit holds it at `offset`; `control` is how far it had read the register."""

    offset: Offset
    verdict: VerdictKind
    signer: str
    control: Offset
    given_ms: int
    bundle_sha256: Hex32 | None


class Entry(Record):
    """One request. `proof_ms` is the time from its writing to the first PROVEN; `late` that its deadline passed before
    that, or before the report was made."""

    request: Offset
    record_sha256: Hex32
    scope: Scope
    requester: str
    reason: str
    key_scope: str | None
    written_ms: int
    deadline_s: int | None
    newest: Given | None
    first_proven: Given | None
    proof_ms: int | None
    late: bool


class NotObeyed(Record):
    """A record of the range that asks for a deletion and is none, or can't be read, with why."""

    offset: Offset
    why: str


class ReportPredicate(Record):
    """Whoever verifies recomputes all of it but `made_ms`, `audit_end` (how far kv.audit was read), `verifier` and
    the time stamp.
    `counts` are by verdict, NOT JUDGED for requests without one; `gaps` are positions that the register lost."""

    version: Literal[1] = 1
    log: str
    claim: str
    not_claimed: tuple[str, ...]
    first: Offset
    next: Offset
    control_end: Offset
    control_hash: Hex32
    gaps: tuple[tuple[int, int], ...]
    audit_end: Offset
    made_ms: int
    counts: dict[str, int]
    late: int
    entries: tuple[Entry, ...]
    not_obeyed: tuple[NotObeyed, ...]
    anchoring: str
    checkpoint: CheckpointStated | None
    verifier: str


class ReportStatement(Record):
    type_: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: tuple[Subject, Subject]
    predicateType: Literal["urn:kvledger:predicate:deletion-report:v1"]
    predicate: ReportPredicate


@dataclass(frozen=True, slots=True)
class Range:
    """Positions of kv.control from `first` up to, without, `next`."""

    first: int
    next: int


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict of kv.audit under a checked signature, with the record that carries it."""

    offset: int
    record: AuditRecord
    given: VerdictGiven

    def stated(self) -> Given:
        ends = {(one.topic, one.partition): one.offset for one in self.given.frontier}
        return Given(
            offset=self.offset,
            verdict=self.given.verdict,
            signer=self.record.signer,
            control=ends.get((CONTROL.name, 0), 0),
            given_ms=self.given.given_ms,
            bundle_sha256=self.given.bundle_sha256,
        )


def judged(offset: int, value: bytes, registry: ControlFold) -> Judged | None:
    """The verdict of one record of kv.audit, if an auditor of this log signed it whose key stands."""
    try:
        record = decode_audit(value)
        given = VerdictGiven.model_validate_json(record.statement)
    except (DecodeError, ValidationError):
        return None
    grant = registry.grants.get(KeyId(record.signer))
    if grant is None or grant.revoked_at is not None or Role.AUDITOR not in grant.roles:
        return None
    if given.log != registry.log:
        return None
    holds = registry.verify(grant.public_key, record.signature, record.statement)
    return Judged(offset, record, given) if holds else None


def chosen(verdicts: Iterable[Judged], numbers: Iterable[int]) -> list[Judged]:
    """Of each request the newest verdict and the first PROVEN, in the order of kv.audit."""
    wanted, kept = set(numbers), dict[tuple[int, str], Judged]()
    for one in sorted(verdicts, key=lambda known: known.offset):
        if one.given.request in wanted:
            kept[one.given.request, "newest"] = one
            if one.given.verdict is VerdictKind.PROVEN:
                kept.setdefault((one.given.request, "proven"), one)
    return sorted(set(kept.values()), key=lambda known: known.offset)


def make_report(
    span: Range,
    control: Sequence[RawRecord],
    verdicts: Iterable[Judged],
    signer: Signer,
    *,
    made_ms: int,
    audit_end: int,
    control_end: int | None = None,
    anchor: Anchor | None = None,
    stamp: StampStated | None = None,
) -> bytes:
    """The whole file. `stamp` is what the anchor's time stamp says.

    `control` is kv.control from its start up to `control_end`, None: up to its last record; what lies behind `span`
    is shown by headers too."""
    lines = [*_evidence_lines(span, control, anchor)]
    registry = _fold(lines, span)
    registry.reach(control_end or 0)
    used = chosen(verdicts, _numbers(registry, span))
    lines += [_verdict_line(one) for one in used]
    body = b"".join(
        json.dumps(one, separators=(",", ":"), ensure_ascii=False).encode() + b"\n" for one in lines
    )
    anchoring = UNANCHORED if anchor is None else _anchoring(anchor, registry, lines)
    predicate = _predicate(span, registry, used, made_ms, audit_end, anchor, anchoring, stamp)
    statement = ReportStatement(
        _type=STATEMENT_TYPE,
        predicateType=REPORT_TYPE,
        subject=(
            Subject(
                name=f"{registry.log} kv.control {span.first} to {span.next}",
                digest=Digest(sha256=registry.hash),
            ),
            Subject(name="evidence", digest=Digest(sha256=sha256(body))),
        ),
        predicate=predicate,
    )
    return seal(statement.model_dump_json(by_alias=True).encode(), signer) + b"\n" + body


def _evidence_lines(
    span: Range, control: Sequence[RawRecord], anchor: Anchor | None
) -> Iterator[dict[str, Any]]:
    yield {"t": "format", "version": 1, "first": span.first, "next": span.next}
    if anchor is not None:
        yield from anchor_lines(anchor)
    for record in control:
        yield _control_line(record, span)


def _control_line(record: RawRecord, span: Range) -> dict[str, Any]:
    signature = None if record.signature is None else base64.b64encode(record.signature).decode()
    line: dict[str, Any] = {"t": "control", "o": record.offset, "s": signature}
    try:
        kind = decode_control(record.value).header.kind
        head, _, body = record.value.decode().partition("\n")
    except (DecodeError, UnicodeDecodeError):
        return line | {"v": base64.b64encode(record.value).decode()}
    line["h"] = head
    mine = kind == REQUEST_KIND and span.first <= record.offset < span.next
    return line | {"b": body} if mine or kind in KEY_KINDS else line


def _verdict_line(one: Judged) -> dict[str, Any]:
    return {"t": "verdict", "o": one.offset, "v": json.loads(one.record.model_dump_json())}


def _fold(lines: Iterable[Mapping[str, Any]], span: Range) -> ControlFold:
    """kv.control from its lines. Raises BundleError if a body is left out that has to be there."""
    registry, last = ControlFold(verify), -1
    for line in lines:
        if line["t"] != "control":
            continue
        offset, signature = int(line["o"]), optional_bytes(line["s"])
        if offset <= last:
            raise BundleError("the control records are out of order")
        last = offset
        if "v" in line:
            registry.feed(offset, base64.b64decode(line["v"], validate=True), signature)
        elif "b" in line:
            registry.feed(offset, f"{line['h']}\n{line['b']}".encode(), signature)
        else:
            head = str(line["h"]).encode()
            header = ControlHeader.model_validate_json(head)
            if header.kind in KEY_KINDS or (header.kind == REQUEST_KIND and span.first <= offset < span.next):
                raise BundleError(f"the body of the {header.kind} record {offset} is left out")
            registry.feed_withheld(offset, header, head, signature)
    return registry


def _numbers(registry: ControlFold, span: Range) -> list[int]:
    return sorted(number for number in registry.requests if span.first <= number < span.next)


def _predicate(
    span: Range,
    registry: ControlFold,
    used: Sequence[Judged],
    made_ms: int,
    audit_end: int,
    anchor: Anchor | None,
    anchoring: Anchoring,
    stamp: StampStated | None,
) -> ReportPredicate:
    given: dict[int, list[Judged]] = {}
    for one in used:
        given.setdefault(one.given.request, []).append(one)
    entries = tuple(
        _entry(registry.requests[number], given.get(number, []), made_ms)
        for number in _numbers(registry, span)
    )
    counts = Counter(one.newest.verdict.value if one.newest is not None else NOT_JUDGED for one in entries)
    start = registry.start or 0
    return ReportPredicate(
        log=registry.log,
        claim=CLAIM,
        not_claimed=NOT_CLAIMED,
        first=span.first,
        next=span.next,
        control_end=registry.next_offset,
        control_hash=registry.hash,
        gaps=(*([(0, start - 1)] if start else []), *registry.holes),
        audit_end=audit_end,
        made_ms=made_ms,
        counts=dict(sorted(counts.items())),
        late=sum(one.late for one in entries),
        entries=entries,
        not_obeyed=tuple(
            NotObeyed(offset=one.offset, why=one.why)
            for one in registry.ignored
            if span.first <= one.offset < span.next
        ),
        anchoring=anchoring.line,
        checkpoint=None if anchor is None else state_checkpoint(anchor, stamp),
        verifier=f"kvledger {program_version()}",
    )


def _entry(request: RequestRead, mine: Sequence[Judged], made_ms: int) -> Entry:
    proven = next((one for one in mine if one.given.verdict is VerdictKind.PROVEN), None)
    proof_ms = None if proven is None else proven.given.given_ms - request.written_ms
    waited_ms = made_ms - request.written_ms if proof_ms is None else proof_ms
    return Entry(
        request=request.number,
        record_sha256=request.record_sha256,
        scope=request.scope,
        requester=request.requester,
        reason=request.reason,
        key_scope=request.key_scope,
        written_ms=request.written_ms,
        deadline_s=request.deadline_s,
        newest=mine[-1].stated() if mine else None,
        first_proven=None if proven is None else proven.stated(),
        proof_ms=proof_ms,
        late=request.deadline_s is not None and waited_ms > request.deadline_s * 1_000,
    )


def _anchoring(anchor: Anchor, registry: ControlFold, lines: Iterable[Mapping[str, Any]]) -> Anchoring:
    """How kv.control, as shown, fits the segments of it that the checkpoint commits to."""
    ordered = [anchor.segments[index] for index in sorted(anchor.segments)]
    watch = LogWatch(ordered, {(CONTROL.name, 0): registry.start or 0})
    for line in lines:
        if line["t"] == "control":
            watch.take((CONTROL.name, 0), int(line["o"]), _leaf(line))
    return appraise(anchor, watch.settle({(CONTROL.name, 0): registry.next_offset}))


def _leaf(line: Mapping[str, Any]) -> bytes:
    offset, signature = int(line["o"]), optional_bytes(line["s"])
    if "v" in line:
        return raw_leaf(offset, base64.b64decode(line["v"], validate=True), signature)
    head = str(line["h"]).encode()
    if "b" in line:
        return raw_leaf(offset, head + b"\n" + str(line["b"]).encode(), signature)
    rest = ControlHeader.model_validate_json(head).body_sha256
    return record_leaf(offset, sha256(head), rest, sha256(signature or b""))


@dataclass(frozen=True, slots=True)
class VerifiedReport:
    """A report that holds. `faults` say why its population can't be shown to be complete; the rest is as for a
    bundle."""

    predicate: ReportPredicate
    signer: str
    anchor: str
    checked: Anchor | None
    anchoring: Anchoring
    stamp: StampStated | None

    @property
    def faults(self) -> tuple[str, ...]:
        gaps = [
            f"topic_compacted: records {one} to {last} of kv.control are missing"
            for one, last in self.predicate.gaps
        ]
        return (*gaps, *(f"checkpoint_unverified: {one}" for one in self.anchoring.problems))

    @property
    def kind(self) -> VerdictKind:
        """The worst that it says of any request; what nobody judged is pending, what has faults not provable."""
        found = set(self.predicate.counts)
        if VerdictKind.REFUTED in found:
            return VerdictKind.REFUTED
        if found & {VerdictKind.PENDING.value, NOT_JUDGED}:
            return VerdictKind.PENDING
        return (
            VerdictKind.UNPROVABLE if VerdictKind.UNPROVABLE in found or self.faults else VerdictKind.PROVEN
        )

    def witnessed(self, policy: WitnessPolicy) -> int:
        """How many of the reader's own witnesses have cosigned the log that holds this register."""
        if self.checked is None or not self.anchoring.checkpoint or self.anchoring.problems:
            return 0
        return policy.count(self.checked.note)


def is_report(raw: bytes) -> bool:
    """Whether the first line is an envelope around a report; says nothing of whether it holds."""
    try:
        document = json.loads(unseal(raw.partition(b"\n")[0])[1])
    except (BundleError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.get("predicateType") == REPORT_TYPE


def read_report(payload: bytes) -> ReportStatement:
    """The statement, its signature not looked at. Raises BundleError."""
    try:
        return ReportStatement.model_validate_json(payload)
    except ValidationError as error:
        raise BundleError("the statement is no report of version 1") from error


def verify_report(raw: bytes, trusted_key: bytes) -> VerifiedReport:
    """Checks envelope, signatures and hashes, and that the register, as shown, gives the very report. `trusted_key` is
    the operator's or the auditor's public key. Raises BundleError, and nothing else."""
    first, newline, body = raw.partition(b"\n")
    if not newline:
        raise BundleError("the file holds no evidence")
    signer, payload, signature = unseal(first)
    try:
        return _verify(body, KeyId(signer), payload, signature, trusted_key)
    except BundleError:
        raise
    except (*GARBLED, KvledgerError) as error:
        raise BundleError(f"the evidence is garbled ({type(error).__name__})") from error


def _verify(
    body: bytes, signer: KeyId, payload: bytes, signature: bytes, trusted_key: bytes
) -> VerifiedReport:
    lines = read_lines(body, REPORT)
    form = lines[0]
    if form["version"] != 1:
        raise BundleError("the evidence has an unknown format")
    span = Range(int(form["first"]), int(form["next"]))
    registry = _fold(lines, span)
    key, vouched = auditor_key(registry, signer, trusted_key)
    if key_id(key) != signer or not verify(key, signature, pae(payload)):
        raise BundleError("the envelope is not signed by this key")
    statement = read_report(payload)
    if statement.subject[1].digest.sha256 != sha256(body):
        raise BundleError("the evidence is not the one that was signed")
    registry.reach(statement.predicate.control_end)
    if not 0 <= span.first <= span.next <= registry.next_offset:
        raise BundleError("the register doesn't reach over the range")
    used = []
    for line in lines:
        if line["t"] == "verdict":
            one = judged(int(line["o"]), json.dumps(line["v"]).encode(), registry)
            if one is None:
                raise BundleError("a verdict is not signed by an auditor of this log")
            used.append(one)
    if chosen(used, _numbers(registry, span)) != used:
        raise BundleError("the verdicts are not the newest and the first proven of the requests")
    checked = read_anchor(registry, lines)
    anchoring = UNANCHORED if checked is None else _anchoring(checked, registry, lines)
    stated = statement.predicate
    stamp = None if stated.checkpoint is None else stated.checkpoint.stamp
    found = _predicate(span, registry, used, stated.made_ms, stated.audit_end, checked, anchoring, stamp)
    if found != stated.model_copy(update={"verifier": found.verifier}):
        raise BundleError("the register gives another report than the one stated")
    if statement.subject[0].digest.sha256 != registry.hash or any(
        one.offset >= stated.audit_end for one in used
    ):
        raise BundleError("the statement names another register")
    return VerifiedReport(stated, signer, vouched, checked, anchoring, stamp)
