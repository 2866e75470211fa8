"""What the register and the verdicts give as the predicate, whoever computes it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from auditor.anchoring import Anchor, Anchoring
from auditor.proof import StampStated
from auditor.registry import ControlFold, RequestRead
from auditor.report.judgement import Judged
from auditor.report.register import Range, requests_in
from auditor.report.statement import (
    CLAIM,
    NOT_CLAIMED,
    NOT_JUDGED,
    Entry,
    NotObeyed,
    ReportPredicate,
)
from auditor.statement import program_version, state_checkpoint
from events.ids import VerdictKind


def report_predicate(
    span: Range,
    registry: ControlFold,
    used: Sequence[Judged],
    made_ms: int,
    audit_end: int,
    anchor: Anchor | None,
    anchoring: Anchoring,
    stamp: StampStated | None,
) -> ReportPredicate:
    """`used` are the verdicts that count, in the order of kv.audit; `anchoring` says how the register fits `anchor`,
    whose time stamp says `stamp`."""
    given: dict[int, list[Judged]] = {}
    for one in used:
        given.setdefault(one.given.request, []).append(one)
    entries = tuple(
        _entry(registry.requests[number], given.get(number, []), made_ms)
        for number in requests_in(registry, span)
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
            NotObeyed(offset=one.offset, why=one.why) for one in registry.ignored if one.offset in span
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
