"""The paper of a deletion proof, from the signed predicate alone. Pure.

A paper proves nothing: it says which file does, and whether whoever made it has checked that file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from auditor.finding import Reason, Verdict
from auditor.paper.answer import word_assumed
from auditor.paper.assumption import assumption_in_words
from auditor.paper.binding import log, membership
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
from auditor.paper.holder_table import answers, holders, told_removed
from auditor.paper.legal_hold import (
    HELD,
    HELD_HEADLINE,
    HELD_SENTENCE,
    hold_moments,
    hold_notices,
    holds_in_words,
    standing,
)
from auditor.paper.wording import (
    CONDITIONS,
    ENDS,
    MOMENTS,
    STANDINGS,
    VERDICTS,
    Meaning,
    meaning_of,
    scope_in_words,
)
from auditor.proof import Predicate
from events.ids import VerdictKind, VerdictReason


@dataclass(frozen=True, slots=True)
class Source:
    """The file that a paper renders: its SHA-256 and size, and how it was checked. `key` is the trusted public key in
    hex ("" if nobody checked it), `holder` whose key that is, `notes` what else the check found, `signer` the id of the
    key that signed the file's statement."""

    sha256: str
    size: int
    program: str
    key: str = ""
    holder: str = ""
    notes: tuple[str, ...] = ()
    signer: str = ""

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
                *([("Signed with auditor's key", self.signer)] if self.signer else []),
                ("Checked with key", f"{self.key} ({self.holder})" if self.verified else "not checked"),
                *(("Found by the check", note) for note in self.notes),
            ]
        )


def proof_paper(predicate: Predicate, source: Source) -> Paper:
    """The whole paper, in the order in which a person who has to decide reads."""
    verdict = predicate.verdict
    title = f"Deletion request {verdict.request} of log {predicate.log}: {verdict.kind.value}"
    held = standing(predicate.holds)
    if held:
        title += f" (legal hold {', '.join(one.hold for one in held)})"
    return Paper(title, source.running, list(_elements(predicate, source)))


def _elements(predicate: Predicate, source: Source) -> Iterator[Element]:
    verdict = predicate.verdict
    tone, headline, sentence = VERDICTS[verdict.kind]
    if (
        verdict.kind is VerdictKind.PENDING
        and standing(predicate.holds)
        and any(map(_unacked, verdict.reasons))
    ):
        headline, sentence = HELD_HEADLINE, HELD_SENTENCE
    found = [Notice(headline, sentence, tone), *hold_notices(predicate.holds)]
    yield from (*found, source.notice()) if source.verified else (source.notice(), *found)
    yield source.facts()
    yield Heading("The verdict")
    yield _verdict(predicate)
    yield Heading("The request")
    yield _request(predicate)
    if verdict.kind is VerdictKind.PROVEN:
        yield Heading("What is claimed, and what is not")
        yield Paragraph(predicate.claim)
    else:
        yield Heading("What is not claimed")
        told = f"The verdict is {verdict.kind.value}. So this is not claimed, and nobody may rely on it:"
        yield Paragraph(told, leads=True)
        yield Items([predicate.claim])
    yield Paragraph("Never claimed, whatever the verdict:", leads=True)
    yield Items(predicate.not_claimed)
    yield Paragraph("Assumed:", leads=True)
    words = [word_assumed(one) for one in predicate.attestations or ()]
    yield Items([*map(assumption_in_words, verdict.assumptions), *words])
    yield from _reasons(verdict.reasons, held=bool(standing(predicate.holds)))
    yield from _counterexamples(verdict)
    yield Heading("Figures")
    yield Bars(
        "How copies in scope came to their end since the request was known",
        [(label, int(getattr(verdict, name)), meaning) for name, label, meaning in ENDS],
    )
    yield from told_removed(predicate)
    if verdict.holders:
        yield answers(predicate)
    yield Heading("The holders")
    yield from holders(predicate)
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
        [(name, CONDITIONS[name], STANDINGS[found]) for name, found in verdict.conditions.items()],
    )
    yield Paragraph(
        "P3, P4 and P5 look at confirmations: as long as a holder owes one, they are not examined, unless what there "
        "is already contradicts them."
    )
    yield Heading("Who belongs to the fleet, and whose keys count")
    yield from membership(predicate)
    yield Heading("What binds the log")
    yield from log(predicate)


def _verdict(predicate: Predicate) -> Facts:
    verdict, given = predicate.verdict, predicate.given_ms
    ends = ", ".join(f"{one.topic}/{one.partition} at {one.offset}" for one in verdict.frontier)
    return Facts(
        [
            ("Verdict", verdict.kind.value),
            ("Given", "not stated" if given is None else f"{moment(given)} by the auditor's clock"),
            ("Judged by", predicate.verifier),
            (
                "Frontier",
                f"{ends}. Up to these positions, without them, the log was read for this verdict; it says nothing of "
                "what was written behind them.",
            ),
        ]
    )


def _request(predicate: Predicate) -> Facts:
    verdict, request = predicate.verdict, predicate.request
    asked = verdict.requester
    if request.key_scope not in (None, asked):
        asked += f", through principal {request.key_scope}"
    rows = [
        ("Number", f"{verdict.request} (its position in the register)"),
        ("Covers", scope_in_words(verdict.scope)),
        ("Domains found", ", ".join(verdict.domains) or "none"),
        ("Asked by", asked),
        ("Reason given", request.reason or "none"),
        ("Written", f"{moment(request.written_ms)} by its writer's clock"),
        ("To be proven within", "no deadline" if request.deadline_s is None else span(request.deadline_s)),
        ("Legal holds on it", holds_in_words(predicate.holds)),
        ("SHA-256 of its record", request.record_sha256.hex()),
    ]
    return Facts(rows)


def _reasons(reasons: tuple[Reason, ...], *, held: bool) -> Iterator[Element]:
    if not reasons:
        return
    yield Heading("Why it is not proven, and what would cure it")
    by_kind: dict[tuple[VerdictReason, Meaning], list[Reason]] = {}
    for one in reasons:
        meaning = HELD if held and _unacked(one) else meaning_of(one)
        by_kind.setdefault((one.reason, meaning), []).append(one)
    for (kind, meaning), mine in by_kind.items():
        waits = sum(one.waits for one in mine)
        yield Heading(f"{meaning.title} ({kind.value})", 3)
        yield Paragraph(meaning.sentence)
        yield Paragraph(f"What to do: {meaning.remedy}")
        if waits and meaning is not HELD:
            yield Paragraph(f"Waiting may be enough for {waits} of {len(mine)}.")
        yield Table(
            "Where",
            ("Condition", "Concerns", "Finding", "Stated cure"),
            [(one.condition, one.subject, one.detail, one.cure) for one in mine],
        )


def _unacked(reason: Reason) -> bool:
    """Whether it is that a holder hasn't confirmed yet, which a legal hold explains."""
    return reason.reason is VerdictReason.FRONTIER_BEHIND and reason.condition == "P2"


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
    rows += [(offset, 0, moment(ms), what, whom) for offset, ms, what, whom in hold_moments(predicate.holds)]
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
