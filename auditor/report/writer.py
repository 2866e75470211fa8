"""Makes a report from the register and the verdicts. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from auditor.anchoring import Anchor
from auditor.bundle import anchor_lines
from auditor.proof import STATEMENT_TYPE, Digest, StampStated, Subject, seal
from auditor.report.judgement import Judged, chosen, verdict_line
from auditor.report.predicate import report_predicate
from auditor.report.register import Range, anchoring_of, control_line, fold_shown, requests_in
from auditor.report.statement import REPORT_TYPE, ReportStatement
from auditor.verdict import UNANCHORED
from events.chain import sha256
from events.signing import Signer

if TYPE_CHECKING:
    from events.kafka.connection import RawRecord


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
    registry = fold_shown(lines, span)
    registry.reach(control_end or 0)
    used = chosen(verdicts, requests_in(registry, span))
    lines += [verdict_line(one) for one in used]
    body = b"".join(
        json.dumps(one, separators=(",", ":"), ensure_ascii=False).encode() + b"\n" for one in lines
    )
    anchoring = UNANCHORED if anchor is None else anchoring_of(anchor, registry, lines)
    predicate = report_predicate(span, registry, used, made_ms, audit_end, anchor, anchoring, stamp)
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
        yield control_line(record, span)
