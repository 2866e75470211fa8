"""The holders on a paper: how many answered how, and a row for each. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from auditor.finding import HolderFound
from auditor.paper.answer import Answer, answer_of
from auditor.paper.element import Bars, Element, Paragraph, Table
from auditor.proof import Predicate

STATED = {"pool": "memory itself", "derived": "its records", "none": "no statement"}


def answers(predicate: Predicate) -> Bars:
    """How many holders answered how."""
    found = Counter(_answer(predicate, one).group for one in predicate.verdict.holders)
    return Bars("What discharges the holders", [(name, count, "") for name, count in sorted(found.items())])


def told_removed(predicate: Predicate) -> Iterator[Element]:
    """Why the holders' own counts of removals and the records' may differ."""
    verdict = predicate.verdict
    streams = {(one.worker, one.rank, one.epoch): one.removed for one in verdict.holders}
    told = sum(streams.values())
    if told == verdict.removed:
        return
    text = (
        f"In their confirmations the workers say that they removed {told:,} for this request; their records name "
        f"{verdict.removed:,} one by one as removed for it."
    )
    if verdict.cleared:
        text += (
            f" A worker whose memory can only be emptied as a whole (a reset) counts what it held then; a reset names "
            f"neither blocks nor request, so its records show that as «ended by a reset»: {verdict.cleared:,}."
        )
    yield Paragraph(f"{text} The verdict rests on the records, not on this count.")


def holders(predicate: Predicate) -> Iterator[Element]:
    """A row for each holder."""
    verdict = predicate.verdict
    if not verdict.holders:
        yield Paragraph("No holder was registered: nobody could hold a copy, and nobody could answer.")
        return
    yield Table(
        "One row for each memory or store that may hold copies. «Says it removed» is the worker's own count, over all "
        "of its holders, resets included. «Left» and the checksum are the auditor's own count of the domains in scope "
        "at the last confirmation",
        (
            "Holder", "Kind", "Engine life, series", "Answer", "Knew of", "Read to", "Says it removed", "Left",
            "Stated from", "Checksum",
        ),
        [_row(predicate, one) for one in verdict.holders],
    )  # fmt: skip


def _row(predicate: Predicate, one: HolderFound) -> tuple[str, ...]:
    return (
        f"{one.worker}/{one.rank} {one.holder}",
        one.tier + (f" ({one.durable_id})" if one.durable_id else ""),
        f"{one.engine_life}, {one.epoch} (no. {one.epoch_no})",
        _answer(predicate, one).text,
        "–" if one.installed is None else f"register to {one.installed}",
        "–" if one.read_to is None else f"record {one.read_to}",
        "–" if one.ack_seq is None else f"{one.removed:,}",
        "–" if one.held is None else f"{one.held:,}",
        STATED[one.stated],
        (one.checksum or "–") if one.held else "–",
    )


def _answer(predicate: Predicate, holder: HolderFound) -> Answer:
    return answer_of(predicate.verdict, holder, predicate.attestations or (), predicate.holds or ())
