"""A report holds the whole population of a range: nothing can be taken out of it, put in or told otherwise."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import pyarrow.parquet as parquet
import pytest

from auditor.anchoring import Anchor, WitnessPolicy
from auditor.checkpoint import KeyKind, NoteKey
from auditor.paper.html import to_html
from auditor.paper.pdf import to_pdf
from auditor.paper.register import report_paper, report_tables
from auditor.paper.sheet import Source
from auditor.proof import BundleError, seal, unseal
from auditor.registry import ControlFold
from auditor.report.judgement import Judged, judged
from auditor.report.register import Range
from auditor.report.statement import is_report
from auditor.report.verify import VerifiedReport, verify_report
from auditor.report.writer import make_report
from events.chain import sha256
from events.codec import dump
from events.ids import Role, VerdictKind
from events.kafka.connection import RawRecord
from events.model.audit import AuditRecord, PartitionPosition, VerdictGiven
from events.model.control import DeletionRequested, DomainScope, TenantScope
from events.signing import Signer, verify
from kvledger.command.report import position
from kvledger.failure import CommandError
from tests.support.audit_log import AuditLog
from tests.support.bundle import AUDITOR, INVALID, OPERATOR, second_says
from tests.support.page import read_page
from tests.support.paper_case import pdf_text
from tests.support.sealed_log import sealed

DAY_MS = 86_400_000
MADE_MS = 10 * DAY_MS
WRITTEN_MS = 1
WITNESS = NoteKey("witness", Signer.from_seed(sha256(b"witness")).public_key, KeyKind.COSIGNATURE)


class Population:
    """Requests of two tenants, one repeated, one by nobody who may, garbage, and verdicts on some of them."""

    def __init__(self) -> None:
        self.log = AuditLog()
        self.log.hook("w0")
        self.numbers = [
            self.ask("acme", "k1"),
            self.ask("umbrella", "k2"),
            self.ask("acme/eu", "k3", deadline_s=3_600),
        ]
        self.ask("acme", "k1")  # repeated: nobody obeys it
        self.log.control.records.append((b"\xff garbage", None))
        value, signature = self.log.control.records[self.numbers[0]]
        self.log.control.records.append((value, (signature or b"")[:-1]))
        self.numbers.append(self.ask("acme", "k4"))
        self.verdicts: list[Judged] = []
        self.judge(self.numbers[0], VerdictKind.PENDING, DAY_MS)
        self.judge(self.numbers[0], VerdictKind.PROVEN, 2 * DAY_MS)
        self.judge(self.numbers[0], VerdictKind.PROVEN, 3 * DAY_MS)
        self.judge(self.numbers[1], VerdictKind.PROVEN, DAY_MS)
        self.judge(self.numbers[2], VerdictKind.PENDING, DAY_MS)

    def ask(self, domain: str, key: str, deadline_s: int | None = None) -> int:
        body = DeletionRequested(scope=DomainScope(domain=domain), requester="officer", deadline_s=deadline_s)
        return self.log.say(body, Role.CONTROL, idempotency_key=key, key_scope="officer")

    def control(self) -> list[RawRecord]:
        return [
            RawRecord("kv.control", 0, offset, None, value, signature, 0)
            for offset, (value, signature) in enumerate(self.log.control.records)
        ]

    def registry(self) -> ControlFold:
        registry = ControlFold(verify)
        for record in self.control():
            registry.feed(record.offset, record.value, record.signature)
        return registry

    def judge(self, number: int, kind: VerdictKind, given_ms: int, signer: Signer = AUDITOR) -> Judged | None:
        end = PartitionPosition(topic="kv.control", partition=0, offset=len(self.log.control.records))
        given = VerdictGiven(
            log=self.registry().log,
            request=number,
            verdict=kind,
            reasons=(),
            frontier=(end,),
            given_ms=given_ms,
        )
        raw = dump(given)
        value = dump(AuditRecord(signer=signer.id, signature=signer.sign(raw), statement=raw))
        one = judged(5 + len(self.verdicts), value, self.registry())
        if one is not None:
            self.verdicts.append(one)
        return one

    def anchor(self) -> Anchor:
        return sealed(self.log, [(WITNESS, Signer.from_seed(sha256(b"witness")))])

    def report(
        self, span: Range | None = None, *, anchored: bool = True, without: int | None = None
    ) -> bytes:
        control = [one for one in self.control() if one.offset != without]
        return make_report(
            span or Range(0, len(self.log.control.records)),
            control,
            self.verdicts,
            AUDITOR,
            made_ms=MADE_MS,
            audit_end=99,
            anchor=self.anchor() if anchored else None,
        )


def checked(raw: bytes) -> VerifiedReport:
    """By both verifiers, who must agree."""
    second = second_says(raw, OPERATOR.public_key)
    try:
        verified = verify_report(raw, OPERATOR.public_key)
    except BundleError:
        assert second == INVALID
        raise
    assert second == verified.kind
    return verified


@pytest.fixture
def population() -> Population:
    return Population()


def test_every_request_of_the_range_is_in_it_with_its_newest_verdict(population: Population) -> None:
    raw = population.report()
    assert is_report(raw)
    for key in (OPERATOR, AUDITOR):
        stated = verify_report(raw, key.public_key).predicate
        first, second, third, fourth = stated.entries
        assert [one.request for one in stated.entries] == population.numbers
        assert first.newest is not None
        assert (first.newest.given_ms, first.proof_ms, first.late) == (
            3 * DAY_MS,
            2 * DAY_MS - WRITTEN_MS,
            False,
        )
        assert (second.proof_ms, third.proof_ms, third.late) == (DAY_MS - WRITTEN_MS, None, True)
        assert (fourth.newest, fourth.proof_ms, fourth.late) == (None, None, False)
        assert stated.counts == {"NOT JUDGED": 1, "PENDING": 1, "PROVEN": 2}
        assert (stated.late, stated.anchoring) == (1, "anchoring: witnessed 1 of 1")
        assert [one.why for one in stated.not_obeyed][:1] == ["repeated_idempotency_key"]
        assert len(stated.not_obeyed) == 3
    verified = checked(raw)
    assert (verified.kind, verified.faults) == (VerdictKind.PENDING, ())
    assert verified.witnessed(WitnessPolicy((WITNESS,), 1)) == 1


def test_a_range_holds_what_lies_in_it_and_a_request_repeated_from_before_is_still_none(
    population: Population,
) -> None:
    start = population.numbers[1]
    stated = checked(population.report(Range(start, population.numbers[3]))).predicate
    assert [one.request for one in stated.entries] == population.numbers[1:3]
    assert stated.not_obeyed[0].why == "repeated_idempotency_key"
    empty = checked(population.report(Range(start, start)))
    assert (empty.predicate.entries, empty.kind) == ((), VerdictKind.PROVEN)


def test_the_worst_verdict_is_the_reports(population: Population) -> None:
    span = Range(0, population.numbers[2])
    assert checked(population.report(span)).kind is VerdictKind.PROVEN
    population.judge(population.numbers[1], VerdictKind.UNPROVABLE, 4 * DAY_MS)
    assert checked(population.report(span)).kind is VerdictKind.UNPROVABLE
    population.judge(population.numbers[0], VerdictKind.REFUTED, 4 * DAY_MS)
    assert checked(population.report(span)).kind is VerdictKind.REFUTED


def test_nobody_but_an_auditor_judges(population: Population) -> None:
    control = population.log.control.signers[Role.CONTROL]
    assert population.judge(population.numbers[3], VerdictKind.PROVEN, 1, control) is None
    assert population.judge(population.numbers[3], VerdictKind.PROVEN, 1, Signer.from_seed(bytes(32))) is None


def resigned(raw: bytes, edit: Callable[[list[dict[str, object]], dict[str, object]], object]) -> bytes:
    """By an auditor who signs whatever he likes: `edit` changes lines and statement in place."""
    first, *rest = raw.split(b"\n")
    lines = [json.loads(line) for line in rest if line]
    statement = json.loads(unseal(first)[1])
    edit(lines, statement)
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    statement["subject"][1]["digest"]["sha256"] = sha256(body).hex()
    return seal(json.dumps(statement).encode(), AUDITOR) + b"\n" + body


def control_line(lines: list[dict[str, object]], offset: int) -> dict[str, object]:
    return next(line for line in lines if line["t"] == "control" and line["o"] == offset)


def test_a_request_that_is_left_out_is_noticed_however_it_is_hidden(population: Population) -> None:
    raw, hidden = population.report(), population.numbers[1]
    checked(resigned(raw, lambda lines, statement: None))

    def from_the_list(lines: list[dict[str, object]], statement: dict[str, object]) -> None:
        stated = statement["predicate"]
        stated["entries"] = [one for one in stated["entries"] if one["request"] != hidden]  # type: ignore[index]
        stated["counts"]["PROVEN"] -= 1  # type: ignore[index]

    def its_body(lines: list[dict[str, object]], statement: dict[str, object]) -> None:
        del control_line(lines, hidden)["b"]

    def its_record(lines: list[dict[str, object]], statement: dict[str, object]) -> None:
        from_the_list(lines, statement)
        lines.remove(control_line(lines, hidden))

    def into_garbage(lines: list[dict[str, object]], statement: dict[str, object]) -> None:
        from_the_list(lines, statement)
        line = control_line(lines, hidden)
        line["v"] = "AAAA"

    for edit in (from_the_list, its_body, its_record, into_garbage):
        with pytest.raises(BundleError):
            checked(resigned(raw, edit))


def test_a_register_that_lost_a_request_is_never_whole(population: Population) -> None:
    """The auditor leaves it out and makes the report anew: the positions show it, and the checkpoint if there is "
    "one."""
    for anchored in (True, False):
        verified = checked(population.report(without=population.numbers[1], anchored=anchored))
        assert verified.predicate.gaps == ((population.numbers[1],) * 2,)
        assert verified.faults[0].startswith("topic_compacted")
        assert any("checkpoint_unverified" in fault for fault in verified.faults) is anchored
    span = Range(0, population.numbers[2])
    population.judge(population.numbers[1], VerdictKind.PROVEN, DAY_MS)
    short = make_report(
        span,
        [one for one in population.control() if one.offset != population.numbers[1]],
        population.verdicts,
        AUDITOR,
        made_ms=MADE_MS,
        audit_end=99,
    )
    assert checked(short).kind is VerdictKind.UNPROVABLE


def test_a_register_that_was_written_anew_contradicts_its_checkpoint(population: Population) -> None:
    """Left out, and all that follows moved up by one: no position is missing, yet the root is another."""
    kept = [one for one in population.control() if one.offset != population.numbers[1]]
    moved = [RawRecord("kv.control", 0, at, None, one.value, one.signature, 0) for at, one in enumerate(kept)]
    raw = make_report(
        Range(0, len(moved)), moved, [], AUDITOR, made_ms=MADE_MS, audit_end=99, anchor=population.anchor()
    )
    verified = checked(raw)
    assert verified.predicate.gaps == ()
    assert any("checkpoint_unverified" in fault for fault in verified.faults)
    assert verified.witnessed(WitnessPolicy((WITNESS,), 1)) == 0


def test_a_verdict_can_be_neither_changed_nor_made_up(population: Population) -> None:
    raw = population.report()

    def other_verdict(lines: list[dict[str, object]], statement: dict[str, object]) -> None:
        statement["predicate"]["entries"][2]["newest"]["verdict"] = "PROVEN"  # type: ignore[index]

    def unsigned(lines: list[dict[str, object]], statement: dict[str, object]) -> None:
        line = next(line for line in lines if line["t"] == "verdict")
        line["v"]["signature"] = "00" * 64  # type: ignore[index]

    def sooner(lines: list[dict[str, object]], statement: dict[str, object]) -> None:
        statement["predicate"]["entries"][0]["proof_ms"] = 5  # type: ignore[index]

    def in_time(lines: list[dict[str, object]], statement: dict[str, object]) -> None:
        statement["predicate"]["late"] = 0  # type: ignore[index]
        statement["predicate"]["entries"][2]["late"] = False  # type: ignore[index]

    def claims_more(lines: list[dict[str, object]], statement: dict[str, object]) -> None:
        statement["predicate"]["claim"] = "All is well."  # type: ignore[index]

    for edit in (other_verdict, unsigned, sooner, in_time, claims_more):
        with pytest.raises(BundleError):
            checked(resigned(raw, edit))


def test_a_foreign_key_a_cut_and_garbage_prove_nothing(population: Population) -> None:
    raw = population.report()
    with pytest.raises(BundleError):
        verify_report(raw, bytes(32))
    for length in range(0, len(raw) - 1, 499):
        with pytest.raises(BundleError):
            checked(raw[:length])
    for garbage in (b"", b"\n", b"{}\n{}", b"null\nnull", b"[" * 50_000 + b"\n["):
        assert not is_report(garbage)
        with pytest.raises(BundleError):
            checked(garbage)


def test_an_edited_byte_leaves_no_report_with_another_meaning(population: Population) -> None:
    raw = population.report()
    honest = checked(raw).predicate
    for place in range(3, len(raw), 61):
        edited = bytearray(raw)
        edited[place] ^= 1
        try:
            found = checked(bytes(edited)).predicate
        except BundleError:
            continue
        assert found == honest


def test_a_position_is_an_offset_or_the_first_record_of_a_time() -> None:
    stamped = [
        RawRecord("kv.control", 0, at, None, b"", None, ms)
        for at, ms in ((0, 0), (1, DAY_MS), (2, 2 * DAY_MS))
    ]
    assert position("17", stamped, 3) == 17
    assert position("1970-01-02", stamped, 3) == 1
    assert position("1970-01-02T00:00:01+00:00", stamped, 3) == 2
    assert position("2099-01-01", stamped, 3) == 3
    for text in ("yesterday", "-1", "", "٣", "9" * 30):
        with pytest.raises(CommandError, match="is no time"):
            position(text, stamped, 3)


def test_a_report_becomes_paper_and_tables(population: Population) -> None:
    population.log.say(
        DeletionRequested(scope=TenantScope(tenant="acme"), requester="o", reason="<b>=1</b>\u202e"),
        Role.CONTROL,
    )
    raw = population.report()
    stated = checked(raw).predicate
    source = Source(sha256(raw).hex(), len(raw), "kvledger test", OPERATOR.public_key.hex(), "operator")
    page = read_page(to_html(report_paper(stated, source)))
    assert page.faults == []
    for said in (
        "Of 5 deletion requests 2 are proven",
        "1 are late",
        "60 min: LATE",
        "repeated_idempotency_key",
    ):
        assert said in page.text, said
    assert sha256(raw).hex() in page.text
    text = "".join(pdf_text(to_pdf(report_paper(stated, source))))
    assert "NOT JUDGED" in text
    tables = report_tables(stated, source)
    rows = parquet.read_table(io.BytesIO(tables["requests"].to_parquet())).to_pylist()
    assert [row["request"] for row in rows] == [one.request for one in stated.entries]
    assert b"\\u{202e}" in tables["requests"].to_csv()
