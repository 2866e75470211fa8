"""The paper of a deletion proof, from the signed predicate alone. Pure.

A paper proves nothing: it says which file does, and whether whoever made it has checked that file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from auditor.finding import HolderFound, Reason, Verdict
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
    moment,
    span,
)
from auditor.paper.wording import (
    CONDITIONS,
    ENDS,
    MOMENTS,
    REASONS,
    SHREDDED,
    STANDINGS,
    VERDICTS,
    discharge_in_words,
    scope_in_words,
)
from auditor.proof import CheckpointStated, Predicate
from events.ids import VerdictKind, VerdictReason


@dataclass(frozen=True, slots=True)
class Source:
    """The file that a paper renders: its SHA-256 and size, and how it was checked. `key` is the trusted public key in
    hex ("" if nobody checked it), `holder` whose key that is, `notes` what else the check found."""

    sha256: str
    size: int
    program: str
    key: str = ""
    holder: str = ""
    notes: tuple[str, ...] = ()

    @property
    def verified(self) -> bool:
        return bool(self.key)

    @property
    def running(self) -> str:
        state = "verified when this was made" if self.verified else "NOT VERIFIED"
        return f"This paper is not the proof. File with SHA-256 {self.sha256}: {state}"

    def notice(self) -> Notice:
        """What every paper says before anything else."""
        how = (
            "without a network, with `kvledger audit verify FILE --key KEY` and the operator's public key from a "
            "source that he trusts."
        )
        if not self.verified:
            text = (
                "This paper repeats what a file says of itself. Nobody has checked its signature or its evidence. "
                f"Have it checked before you rely on it: anybody can do that {how}"
            )
            return Notice("Not verified", text, "bad")
        text = (
            f"When this paper was made, {self.program} checked the signature and the evidence of the file below "
            f"against the {self.holder}'s public key {self.key}, recomputed all of it, and came to the same. A paper "
            f"can be altered unnoticed, the file can't. The proof is the file: anybody can check it {how}"
        )
        return Notice("Verified, but not itself the proof", text, "good")

    def facts(self) -> Facts:
        return Facts(
            [
                ("SHA-256 of the file", self.sha256),
                ("Size of the file", f"{self.size:,} bytes"),
                ("Checked with key", f"{self.key} ({self.holder})" if self.verified else "not checked"),
                *(("Found by the check", note) for note in self.notes),
            ]
        )


def proof_paper(predicate: Predicate, source: Source) -> Paper:
    """The whole paper, in the order in which a person who has to decide reads."""
    verdict = predicate.verdict
    title = f"Deletion request {verdict.request} of log {predicate.log}: {verdict.kind.value}"
    return Paper(title, source.running, list(_elements(predicate, source)))


def _elements(predicate: Predicate, source: Source) -> Iterator[Element]:
    verdict = predicate.verdict
    tone, headline, sentence = VERDICTS[verdict.kind]
    notices = [Notice(headline, sentence, tone), source.notice()]
    yield from notices if source.verified else reversed(notices)
    yield source.facts()
    yield Heading("The request")
    yield _request(predicate)
    if verdict.kind is VerdictKind.PROVEN:
        yield Heading("What is claimed, and what is not")
        yield Paragraph(predicate.claim)
    else:
        yield Heading("What is not claimed")
        yield Paragraph(
            f"The verdict is {verdict.kind.value}. So this is not claimed, and nobody may rely on it:"
        )
        yield Items([predicate.claim])
    yield Paragraph("Never claimed, whatever the verdict:")
    yield Items(predicate.not_claimed)
    yield Paragraph("Assumed:")
    yield Items(verdict.assumptions)
    yield from _reasons(verdict.reasons)
    yield from _counterexamples(verdict)
    yield Heading("Figures")
    yield Bars(
        "How copies in scope came to their end since the request was known",
        [(label, int(getattr(verdict, name)), meaning) for name, label, meaning in ENDS],
    )
    if verdict.holders:
        yield _answers(verdict)
    yield Heading("The holders")
    yield from _holders(verdict)
    if verdict.transfers_in_all:
        yield Heading("Transfers")
        yield _transfers(verdict)
    yield Heading("Course of events")
    yield Paragraph(
        "In the order of the log. Times are those of the writers' clocks and are for orientation; the verdict "
        "rests on the "
        "order alone. A holder's confirmation has no clock time of its own: it stands behind the newest entry that "
        "it knew."
    )
    yield _timeline(predicate)
    yield Heading("The nine conditions")
    yield Table(
        "Each must be met for a proof",
        ("Condition", "What it asks", "Finding"),
        [(name, CONDITIONS[name], STANDINGS[standing]) for name, standing in verdict.conditions.items()],
    )
    yield Heading("Who belongs to the fleet, and whose keys count")
    yield from _membership(predicate)
    yield Heading("What binds the log")
    yield from _log(predicate)


def _request(predicate: Predicate) -> Facts:
    verdict, request = predicate.verdict, predicate.request
    rows = [
        ("Number", f"{verdict.request} (its position in the register)"),
        ("Covers", scope_in_words(verdict.scope)),
        ("Domains found", ", ".join(verdict.domains) or "none"),
        ("Asked by", verdict.requester),
        ("Principal", request.key_scope or "not stated"),
        ("Reason given", request.reason or "none"),
        ("Written", f"{moment(request.written_ms)} by its writer's clock"),
        ("To be proven within", "no deadline" if request.deadline_s is None else span(request.deadline_s)),
        ("SHA-256 of its record", request.record_sha256.hex()),
        ("Judged by", predicate.verifier),
    ]
    return Facts(rows)


def _reasons(reasons: tuple[Reason, ...]) -> Iterator[Element]:
    if not reasons:
        return
    yield Heading("Why it is not proven, and what would cure it")
    by_kind: dict[VerdictReason, list[Reason]] = {}
    for one in reasons:
        by_kind.setdefault(one.reason, []).append(one)
    for kind, mine in by_kind.items():
        meaning = REASONS[kind]
        waits = sum(one.waits for one in mine)
        yield Heading(f"{meaning.title} ({kind.value})", 3)
        yield Paragraph(meaning.sentence)
        yield Paragraph(f"What to do: {meaning.remedy}")
        if waits:
            yield Paragraph(f"Waiting may be enough for {waits} of {len(mine)}.")
        yield Table(
            "Where",
            ("Condition", "Concerns", "Finding", "Stated cure"),
            [(one.condition, one.subject, one.detail, one.cure) for one in mine],
        )


def _counterexamples(verdict: Verdict) -> Iterator[Element]:
    if not verdict.counterexamples:
        return
    yield Heading("The records that contradict it")
    yield Table(
        "Each of these refutes the deletion by itself",
        ("What", "Holder", "Record", "Where it lies", "Copies", "First ids"),
        [
            (
                one.what,
                f"{one.worker}/{one.rank} {one.holder}",
                f"{one.seq} of {one.epoch} ({one.event})",
                f"kv.events/{one.partition} at {one.offset}",
                f"{one.count:,}",
                ", ".join(one.ids),
            )
            for one in verdict.counterexamples
        ],
    )


def _answers(verdict: Verdict) -> Bars:
    found = Counter(_group(one) for one in verdict.holders)
    return Bars("What discharges the holders", [(name, count, "") for name, count in sorted(found.items())])


def _group(holder: HolderFound) -> str:
    if holder.discharge == "ack":
        return "confirmed the removal"
    if holder.discharge == "none":
        return "still owes an answer"
    if holder.discharge.startswith(SHREDDED):
        return "the store's keys were destroyed"
    return "the store was destroyed" if holder.discharge == "destroyed" else "memory proven to have ended"


def _holders(verdict: Verdict) -> Iterator[Element]:
    if not verdict.holders:
        yield Paragraph("No holder was registered: nobody could hold a copy, and nobody could answer.")
        return
    yield Table(
        "One row for each memory or store that may hold copies. «Left» and the checksum are the auditor's own "
        "count of the "
        "domains in scope at the last confirmation",
        (
            "Holder", "Kind", "Engine life, series", "Answer", "Knew of", "Read to", "Removed", "Left", "Stated from",
            "Checksum",
        ),
        [
            (
                f"{one.worker}/{one.rank} {one.holder}",
                one.tier + (f" ({one.durable_id})" if one.durable_id else ""),
                f"{one.engine_life}, {one.epoch} (no. {one.epoch_no})",
                discharge_in_words(one.discharge, one.ack_seq),
                "–" if one.installed is None else f"register to {one.installed}",
                "–" if one.read_to is None else f"record {one.read_to}",
                f"{one.removed:,}",
                "–" if one.held is None else f"{one.held:,}",
                {"pool": "memory itself", "derived": "its records", "none": "no statement"}[one.stated],
                one.checksum or "–",
            )
            for one in verdict.holders
        ],
    )  # fmt: skip


def _transfers(verdict: Verdict) -> Table:
    shown, in_all = len(verdict.transfers), verdict.transfers_in_all
    return Table(
        "Transfers that may have carried old data since the request was known"
        + (f"; the first {shown} of {in_all:,}" if shown < in_all else ""),
        ("Transfer", "To", "Blocks", "State", "Record"),
        [
            (
                one.transfer,
                f"{one.worker}/{one.rank} {one.holder}",
                f"{one.blocks:,}",
                one.state,
                f"{one.seq} of {one.epoch}",
            )
            for one in verdict.transfers
        ],
    )


def _timeline(predicate: Predicate) -> Table:
    rows = [
        (one.offset, 0, moment(one.written_ms), MOMENTS.get(one.kind, one.kind), one.subject)
        for one in predicate.timeline
    ]
    for holder in predicate.verdict.holders:
        if holder.installed is not None:
            what = "a holder confirmed the removal" if holder.discharge == "ack" else "a holder's last answer"
            subject = f"{holder.worker}/{holder.rank} {holder.holder} (record {holder.ack_seq})"
            rows.append((holder.installed, 1, "", what, subject))
    return Table(
        "Course of events",
        ("Register position", "Time", "What", "Concerns"),
        [
            (f"after {offset}" if late else f"{offset}", when, what, whom)
            for offset, late, when, what, whom in sorted(rows, key=lambda row: row[:2])
        ],
    )


def _membership(predicate: Predicate) -> Iterator[Element]:
    fleet = predicate.membership
    yield Facts(
        [
            ("Whose word it is who belongs to it", fleet.basis),
            ("Engine lives registered", f"{fleet.lives:,}"),
            ("Series of records", f"{fleet.streams:,}"),
            ("Probes of kvledger itself, which hold nothing", ", ".join(fleet.canaries) or "none"),
            ("Not registered, yet reporting", ", ".join(fleet.strangers) or "none"),
            ("Operator's key", fleet.operator),
        ]
    )
    yield Table(
        "Keys that may sign",
        ("Key", "Roles", "Revoked"),
        [
            (one.key, ", ".join(one.roles), "no" if one.revoked_at is None else f"at {one.revoked_at}")
            for one in fleet.keys
        ],
    )


def _log(predicate: Predicate) -> Iterator[Element]:
    yield Paragraph(_binding(predicate.checkpoint, predicate.anchoring))
    yield Facts(
        [
            ("Log", predicate.log),
            ("Stated", predicate.anchoring),
            ("Running hash of the register", predicate.verdict.control_hash),
            (
                "Read to",
                ", ".join(f"{o.topic}/{o.partition} at {o.offset}" for o in predicate.verdict.frontier),
            ),
            ("Records that nobody obeys", "; ".join(predicate.verdict.records_ignored) or "none"),
        ]
    )
    checkpoint = predicate.checkpoint
    if checkpoint is None:
        return
    yield Facts(
        [
            ("Checkpoint", f"{checkpoint.origin}, {checkpoint.size:,} segments"),
            ("Root", checkpoint.root.hex()),
            ("Witnesses needed", f"{checkpoint.quorum} of {len(checkpoint.witnesses)}"),
            ("Time stamp", _stamp(checkpoint)),
        ]
    )
    if checkpoint.witnesses:
        yield Table(
            "Outside witnesses",
            ("Witness", "Countersigned"),
            [
                (one.key, "no" if one.cosigned_s is None else moment(one.cosigned_s * 1_000))
                for one in checkpoint.witnesses
            ],
        )


def _binding(checkpoint: CheckpointStated | None, line: str) -> str:
    if checkpoint is None or line.startswith("anchoring: none"):
        return (
            "Nothing outside binds this log: whoever keeps it could have rewritten it as a whole before it was "
            "audited, and "
            "this proof would not show that."
        )
    if not checkpoint.witnesses:
        return (
            "The log is sealed by the auditor's own checkpoint. Records can't be changed without contradicting it, "
            "but "
            "nobody outside has confirmed having seen it."
        )
    return (
        "The log is sealed by a checkpoint. Witnesses who keep memory of their own have countersigned it: the log "
        "can't be "
        "rewritten without contradicting what they have seen."
    )


def _stamp(checkpoint: CheckpointStated) -> str:
    if checkpoint.stamp is None:
        return "none"
    stamp = checkpoint.stamp
    return f"{stamp.authority} at {stamp.time}, as the auditor read it; check it with `audit verify --tsa`"
