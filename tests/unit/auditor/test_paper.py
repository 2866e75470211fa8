"""A proof on paper says what the signed statement says, in plain words, and can't be taken for the proof."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from auditor.finding import CURES, Condition, Reason
from auditor.paper.element import Bars, Element, Facts, Items, Notice, Paper, Table, visible
from auditor.paper.html import to_html
from auditor.paper.pdf import to_pdf
from auditor.paper.sheet import Source, proof_paper
from auditor.paper.wording import CONDITIONS, MOMENTS, REASONS, STANDINGS, VERDICTS, scope_in_words
from auditor.proof import Predicate, read_statement, unseal
from auditor.timeline import TIMED_KINDS
from events.chain import sha256
from events.ids import Role, VerdictKind, VerdictReason
from events.model.control import DeletionRequested, Fenced, TenantScope
from tests.support.audit_log import AuditLog
from tests.support.bundle import OPERATOR, bundle
from tests.support.deletion_case import Fleet
from tests.support.page import Page, read_page
from tests.support.paper_case import MAKERS, checked, made, pdf_text, pending, proven, unchecked, unprovable

GOLDEN = Path(__file__).parents[2] / "golden" / "paper" / "reasons.json"
HOSTILE = "</td><script>alert(1)</script>\u202egpj.exe\x00\ud800=cmd()&quot;\"'"


def page_of(predicate: Predicate, source: Source) -> Page:
    return read_page(to_html(proof_paper(predicate, source)))


@pytest.mark.parametrize("kind", list(VerdictKind))
def test_every_verdict_is_a_page_that_stands_alone(kind: VerdictKind) -> None:
    raw, predicate = made(MAKERS[kind]())
    assert predicate.verdict.kind is kind
    page = page_of(predicate, checked(raw))
    _, headline, sentence = VERDICTS[kind]
    for said in (
        headline,
        sentence,
        sha256(raw).hex(),
        OPERATOR.public_key.hex(),
        predicate.claim,
        "not the proof",
    ):
        assert " ".join(said.split()) in page.text, said
    for reason in predicate.verdict.reasons:
        meaning = REASONS[reason.reason]
        for said in (
            meaning.title,
            meaning.sentence,
            meaning.remedy,
            reason.subject,
            reason.detail,
            reason.cure,
        ):
            assert " ".join(said.split()) in page.text, said
    for one in predicate.verdict.counterexamples:
        assert one.ids[0] in page.text
    for holder in predicate.verdict.holders:
        assert f"{holder.worker}/{holder.rank} {holder.holder}" in page.text
    for told in (*predicate.not_claimed, *predicate.verdict.assumptions):
        assert told in page.text


@pytest.mark.parametrize("kind", list(VerdictKind))
def test_a_page_is_well_formed_reachable_and_needs_nothing_from_elsewhere(kind: VerdictKind) -> None:
    raw, predicate = made(MAKERS[kind]())
    html = to_html(proof_paper(predicate, checked(raw)))
    page = read_page(html)
    assert page.faults == []
    assert {"script", "img", "link", "iframe", "object", "form", "a"} & set(page.tags) == set()
    assert not any(name in ("src", "href") or name.startswith("on") for _, name, _ in page.attributes)
    assert not re.search(rb"url\(|@import|https?://", html)
    assert ("html", "lang", "en") in page.attributes
    assert (page.tags.count("h1"), page.tags.count("main"), page.tags.count("title")) == (1, 1, 1)
    levels = [int(tag[1]) for tag in page.tags if re.fullmatch("h[1-6]", tag)]
    assert all(after <= before + 1 for before, after in pairwise(levels)), levels
    assert page.tags.count("caption") == page.tags.count("table") == page.tags.count("thead")
    heads = [value for tag, name, value in page.attributes if (tag, name) == ("th", "scope")]
    assert len(heads) == page.tags.count("th")
    assert set(heads) == {"row", "col"}


@pytest.mark.parametrize("kind", list(VerdictKind))
def test_every_verdict_is_a_pdf_whose_every_page_says_what_it_is(kind: VerdictKind) -> None:
    raw, predicate = made(MAKERS[kind]())
    document = to_pdf(proof_paper(predicate, checked(raw)))
    pages = pdf_text(document)
    assert VERDICTS[kind][1] in pages[0]
    for number, text in enumerate(pages, 1):
        assert sha256(raw).hex() in text
        assert "This paper is not the proof" in text
        assert f"page {number}" in text
    flat = "".join("".join(pages).split())
    for reason in predicate.verdict.reasons:
        assert "".join(REASONS[reason.reason].remedy.split()) in flat
    assert document == to_pdf(proof_paper(predicate, checked(raw)))


def test_a_paper_takes_whatever_length_and_nothing_at_all() -> None:
    """A cell longer than a page, a name without a gap, tables, lists and figures without a row."""
    long = "word " * 1_500
    elements: list[Element] = [
        Notice("x" * 500, long, "bad"),
        Facts([("name", "y" * 4_000)]),
        Table("both", ("a", "b"), [("z" * 2_000, long)]),
        Table("none", ("a", "b"), []),
        Bars("none", []),
        Items([]),
        Items([long]),
    ]
    paper = Paper("t" * 300, "r" * 300, elements)
    assert "".join(pdf_text(to_pdf(paper))).count("word") > 4_000
    assert read_page(to_html(paper)).faults == []


def test_a_fleet_without_a_holder_has_its_papers() -> None:
    log = AuditLog()
    request = log.delete()
    raw = bundle(log, request)
    predicate = read_statement(unseal(raw.partition(b"\n")[0])[1]).predicate
    assert predicate.verdict.holders == ()
    assert "No holder was registered" in page_of(predicate, checked(raw)).text
    assert "No holder was registered" in "".join(pdf_text(to_pdf(proof_paper(predicate, checked(raw)))))


def test_a_paper_of_a_file_that_nobody_checked_says_so_first() -> None:
    raw, predicate = made(proven())
    page = page_of(predicate, unchecked(raw))
    assert page.text.index("Not verified") < page.text.index(VERDICTS[VerdictKind.PROVEN][1])
    assert page.text.count("NOT VERIFIED") == 1
    for text in pdf_text(to_pdf(proof_paper(predicate, unchecked(raw)))):
        assert "NOT VERIFIED" in text


def test_what_is_not_proven_is_not_claimed() -> None:
    raw, predicate = made(pending())
    page = page_of(predicate, checked(raw))
    assert "The verdict is PENDING. So this is not claimed" in page.text
    assert "What is claimed" not in page.text


def spoilt(document: Any) -> Any:
    """Every text of a document that a liar could have chosen, made hostile."""
    if isinstance(document, dict):
        kept = {"kind", "type", "reason", "condition", "state", "stated", "event", "conditions", "root"}
        kept |= {"version", "scope", "topic", "frontier", "discharge", "record_sha256"}
        return {name: value if name in kept else spoilt(value) for name, value in document.items()}
    if isinstance(document, list):
        return [spoilt(one) for one in document]
    return f"{document}{HOSTILE}" if isinstance(document, str) else document


@pytest.mark.parametrize("kind", list(VerdictKind))
def test_hostile_names_stay_text(kind: VerdictKind) -> None:
    raw, predicate = made(MAKERS[kind]())
    evil = Predicate.model_validate_json(
        json.dumps(spoilt(predicate.model_dump(mode="json"))).replace("\\ud800", "?")
    )
    plain, spoiled = page_of(predicate, checked(raw)), page_of(evil, checked(raw))
    assert spoiled.tags == plain.tags
    assert [one[:2] for one in spoiled.attributes] == [one[:2] for one in plain.attributes]
    assert spoiled.faults == []
    assert "\u202e" not in spoiled.text
    assert "\\u{202e}gpj.exe" in spoiled.text
    assert "<script>alert(1)</script>" in spoiled.text
    assert "\\u{202e}gpj.exe" in "".join("".join(pdf_text(to_pdf(proof_paper(evil, checked(raw))))).split())


def test_nothing_that_hides_or_reorders_text_is_left_in_it() -> None:
    assert visible("a\u202eb\x00c\u200bd\ud800e\u2028f\xa0g é漢 ") == (
        "a\\u{202e}b\\u{0}c\\u{200b}d\\u{d800}e\\u{2028}f\\u{a0}g é漢 "
    )


def test_what_a_pdfs_font_lacks_is_written_out() -> None:
    fleet = Fleet()
    fleet.request = fleet.log.say(
        DeletionRequested(scope=TenantScope(tenant="acme"), requester="test", reason="契約 ended"),
        Role.CONTROL,
    )
    raw, predicate = made(fleet)
    assert "\\u{5951}\\u{7d04} ended" in "".join(pdf_text(to_pdf(proof_paper(predicate, checked(raw)))))
    assert "契約 ended" in page_of(predicate, checked(raw)).text


def test_every_closed_set_has_its_words() -> None:
    assert set(VERDICTS) == set(VerdictKind)
    assert set(REASONS) == set(VerdictReason) == set(CURES)
    assert set(CONDITIONS) == set(Condition.__args__)  # type: ignore[attr-defined]
    assert set(MOMENTS) == set(TIMED_KINDS)
    _, predicate = made(proven())
    assert set(predicate.verdict.conditions.values()) <= set(STANDINGS)


def test_each_reason_reads_as_it_was_agreed() -> None:
    """A new reason needs words of its own; changed words are a decision, taken here."""
    words = {
        reason.value: {
            "title": meaning.title,
            "sentence": meaning.sentence,
            "remedy": meaning.remedy,
            "cure": CURES[reason],
        }
        for reason, meaning in REASONS.items()
    }
    assert words == json.loads(GOLDEN.read_text())
    for reason, meaning in REASONS.items():
        assert meaning.sentence.endswith("."), reason
        assert meaning.remedy.endswith("."), reason


@pytest.mark.parametrize("reason", list(VerdictReason))
def test_each_reason_is_on_the_page_with_its_cure(reason: VerdictReason) -> None:
    raw, predicate = made(unprovable())
    told = Reason(reason=reason, condition="P1", subject="somebody", detail="somehow", cure=CURES[reason])
    verdict = predicate.verdict.model_copy(update={"reasons": (told,)})
    page = page_of(predicate.model_copy(update={"verdict": verdict}), checked(raw))
    for said in (REASONS[reason].sentence, REASONS[reason].remedy, CURES[reason], reason.value):
        assert " ".join(said.split()) in page.text


def test_every_kind_of_scope_is_said_in_words() -> None:
    from tests.support.audit_story import Story

    seen = {}
    for seed in range(40):
        story = Story(seed, 0.0)
        scope = story.log.evidence(story.request).request.scope
        seen[scope.type] = scope_in_words(scope)
    assert set(seen) == {"tenant", "domain", "subject", "prefix", "profile", "ids"}
    assert seen["tenant"] == "everything of tenant acme, in all of its domains"


def test_a_fence_is_in_the_course_of_events() -> None:
    raw, predicate = made(unprovable())
    assert any(
        one.kind == Fenced(worker="w", rank=0, epoch="e", evidence="timeout").kind
        for one in predicate.timeline
    )
    assert "a worker was shut out" in page_of(predicate, checked(raw)).text
