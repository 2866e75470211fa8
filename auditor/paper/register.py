"""The paper and the table of a report, from the signed predicate alone. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from auditor.paper.element import (
    Bars,
    Element,
    Facts,
    Heading,
    Items,
    Notice,
    Paper,
    Paragraph,
    Table,
    Tone,
    moment,
    span,
)
from auditor.paper.ledger import NUMBER, TEXT, Kind, Ledger
from auditor.paper.sheet import Source
from auditor.paper.wording import VERDICTS, scope_in_words
from auditor.report.statement import NOT_JUDGED, Entry, ReportPredicate
from events.ids import VerdictKind


def report_paper(predicate: ReportPredicate, source: Source) -> Paper:
    """All requests of the range, the counts first."""
    title = f"Deletion requests {predicate.first} to {predicate.next} of log {predicate.log}"
    return Paper(title, source.running, list(_elements(predicate, source)))


def _elements(predicate: ReportPredicate, source: Source) -> Iterator[Element]:
    notices = [_summary(predicate), source.notice()]
    yield from notices if source.verified else reversed(notices)
    yield source.facts()
    if predicate.gaps:
        gaps = ", ".join(f"{first} to {last}" for first, last in predicate.gaps)
        text = f"Positions {gaps} are missing in the register. Requests may have been among them."
        yield Notice("This population can't be shown to be complete", text, "bad")
    yield Heading("What is claimed, and what is not")
    yield Paragraph(predicate.claim)
    yield Paragraph("Not claimed:", leads=True)
    yield Items(predicate.not_claimed)
    yield Heading("Figures")
    rows = [(kind, predicate.counts.get(kind, 0), _meaning(kind)) for kind in (*VerdictKind, NOT_JUDGED)]
    yield Bars(
        "Requests by their newest verdict", [(str(kind), number, meaning) for kind, number, meaning in rows]
    )
    yield Heading("The requests")
    yield Table(
        "Every request of the range, in the order of the register",
        (
            "Number",
            "Asked by",
            "Covers",
            "Written",
            "Verdict",
            "As of",
            "Time to proof",
            "Deadline",
            "Proof file (SHA-256)",
        ),
        [_row(entry) for entry in predicate.entries],
    )
    if predicate.not_obeyed:
        yield Table(
            "Records of the range that nobody obeys: not signed by who may ask, repeated, or unreadable",
            ("Position", "Why"),
            [(str(one.offset), one.why) for one in predicate.not_obeyed],
        )
    yield Heading("What binds the register")
    yield Paragraph(
        "The file shows every record of the register by its header and the digest of its body. Taking one out, or "
        "putting "
        "one in, changes the running hash below, and contradicts the checkpoint where there is one."
    )
    checkpoint = predicate.checkpoint
    stated = "none" if checkpoint is None else f"{checkpoint.origin}, {checkpoint.size:,} segments"
    yield Facts(
        [
            ("Made", f"{moment(predicate.made_ms)} by the auditor's clock, with {predicate.verifier}"),
            ("Register shown up to", str(predicate.control_end)),
            ("Running hash there", predicate.control_hash.hex()),
            ("Verdicts read up to", f"kv.audit at {predicate.audit_end}"),
            ("Stated", predicate.anchoring),
            ("Checkpoint", stated),
            ("Root", "none" if checkpoint is None else checkpoint.root.hex()),
        ]
    )


def _summary(predicate: ReportPredicate) -> Notice:
    total, counts = len(predicate.entries), predicate.counts
    proven = counts.get(VerdictKind.PROVEN, 0)
    tone: Tone = "good" if proven == total else "bad" if counts.get(VerdictKind.REFUTED) else "open"
    text = (
        f"Of {total:,} deletion requests {proven:,} are proven, {counts.get(VerdictKind.REFUTED, 0):,} refuted, "
        f"{counts.get(VerdictKind.UNPROVABLE, 0):,} can't be proven, {counts.get(VerdictKind.PENDING, 0):,} are "
        f"pending "
        f"and {counts.get(NOT_JUDGED, 0):,} were not judged. {predicate.late:,} are late."
    )
    return Notice("All requests of the range", text, tone)


def _meaning(kind: str) -> str:
    if kind == NOT_JUDGED:
        return "No auditor has judged them yet."
    return VERDICTS[VerdictKind(kind)][1]


def _row(entry: Entry) -> tuple[str, ...]:
    newest = entry.newest
    deadline = "none" if entry.deadline_s is None else span(entry.deadline_s)
    bundle = None if newest is None else newest.bundle_sha256
    return (
        str(entry.request),
        entry.requester,
        scope_in_words(entry.scope),
        moment(entry.written_ms),
        NOT_JUDGED if newest is None else newest.verdict.value,
        "–" if newest is None else f"register at {newest.control}, {moment(newest.given_ms)}",
        "not proven" if entry.proof_ms is None else span(entry.proof_ms / 1_000),
        f"{deadline}: LATE" if entry.late else deadline,
        "–" if bundle is None else bundle.hex(),
    )


def report_tables(predicate: ReportPredicate, source: Source) -> dict[str, Ledger]:
    """The requests as a table, and what it was made of."""
    columns: tuple[tuple[str, Kind], ...] = (
        ("request", NUMBER), ("requester", TEXT), ("reason", TEXT), ("scope", TEXT), ("key_scope", TEXT),
        ("written_ms", NUMBER), ("deadline_s", NUMBER), ("verdict", TEXT), ("verdict_ms", NUMBER),
        ("verdict_control", NUMBER), ("bundle_sha256", TEXT), ("proof_ms", NUMBER), ("late", "flag"),
        ("record_sha256", TEXT),
    )  # fmt: skip
    requests = Ledger(columns)
    for entry in predicate.entries:
        newest = entry.newest
        bundle = None if newest is None else newest.bundle_sha256
        requests.rows.append(
            (
                entry.request,
                entry.requester,
                entry.reason,
                entry.scope.model_dump_json(),
                entry.key_scope,
                entry.written_ms,
                entry.deadline_s,
                None if newest is None else newest.verdict.value,
                None if newest is None else newest.given_ms,
                None if newest is None else newest.control,
                None if bundle is None else bundle.hex(),
                entry.proof_ms,
                entry.late,
                entry.record_sha256.hex(),
            )
        )
    about = Ledger(
        (("name", TEXT), ("value", TEXT)),
        [
            ("log", predicate.log),
            ("range", f"{predicate.first} to {predicate.next}"),
            ("report_sha256", source.sha256),
            ("verified", "yes" if source.verified else "no"),
            ("verified_with_key", source.key or None),
            ("made_by", source.program),
        ],
    )
    return {"about": about, "requests": requests}
