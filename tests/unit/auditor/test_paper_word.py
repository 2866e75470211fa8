"""On whose word a proof rests, what stands in its way, and what its conditions say before everybody has answered."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from auditor.paper.answer import answer_of
from auditor.paper.assumption import assumption_in_words
from auditor.paper.element import moment
from auditor.paper.html import to_html
from auditor.paper.pdf import to_pdf
from auditor.paper.sheet import proof_paper
from auditor.proof import CLAIMS, read_statement, seal, unseal
from auditor.shredding import Shredding
from events.ids import Role, VerdictKind
from events.keyring import storage_key_id
from events.model.control import ExitAttested, HolderDestroyed, HoldReleased, HoldSet
from events.model.part import Ack, Cleared, Closed, Refused, RequestStanding
from tests.support.audit_log import AuditLog
from tests.support.audit_story import Story
from tests.support.bundle import AUDITOR, INVALID, OPERATOR, bundle, first_says, second_says
from tests.support.deletion_case import Fleet
from tests.support.encrypted_store import KEYS, EncryptedStore
from tests.support.page import read_page
from tests.support.paper_case import GIVEN_MS, checked, made, pdf_text, pending, proven, refuted, unprovable


def told(fleet: Fleet) -> str:
    """The text of the page, after both verifiers have agreed on the proof."""
    raw, predicate = made(fleet)
    kinds = {first_says(raw, OPERATOR.public_key), second_says(raw, OPERATOR.public_key)}
    assert kinds == {predicate.verdict.kind}
    page = read_page(to_html(proof_paper(predicate, checked(raw))))
    assert page.faults == []
    assert to_pdf(proof_paper(predicate, checked(raw)))
    return page.text


def held(*, tenant: str = "acme", fleet: Fleet | None = None) -> Fleet:
    fleet = fleet or Fleet()
    hold = HoldSet(hold="case-2031", tenant=tenant, reason="litigation, ticket 88")
    fleet.log.say(hold, Role.CONTROL, key_scope="legal.office", idempotency_key="hold")
    return fleet


def test_a_legal_hold_is_told_first_with_who_why_and_how_it_ends() -> None:
    page = told(held())
    assert "PENDING (legal hold case-2031)" in page
    assert "Pending: a legal hold forbids the removal." in page
    notice = page.index("Legal hold case-2031")
    for said in (
        "every domain of tenant acme",
        "Reason: litigation, ticket 88.",
        "Placed by legal.office on",
        "kvledger hold release case-2031",
    ):
        assert notice < page.index(said) < page.index("SHA-256 of the file"), said
    assert "waits: legal hold case-2031 stands" in page
    assert "A legal hold stands on it (frontier_behind)" in page
    assert "its operator looks at the worker" not in page
    events = page[page.index("Course of events") :]
    assert "a legal hold was placed" in events
    assert "case-2031 on every domain of tenant acme, by legal.office" in events


def test_a_hold_that_was_placed_before_the_request_is_in_the_course_of_events_too() -> None:
    log = AuditLog()
    log.say(HoldSet(hold="old-1", domain="acme/eu", reason="dispute"), Role.CONTROL)
    page = told(Fleet(log))
    assert "Legal hold old-1" in page
    assert "old-1 on domain acme/eu" in page[page.index("Course of events") :]


def test_a_hold_that_came_when_all_had_confirmed_is_not_what_is_waited_for() -> None:
    fleet = Fleet()
    for hook in (fleet.a, fleet.b):
        hook.obey(fleet.request)
    page = told(held(fleet=fleet))
    assert "Legal hold case-2031" in page
    assert "Pending: not proven yet." in page
    assert "forbids the removal" not in page


def test_a_released_hold_is_history() -> None:
    fleet = held()
    released = fleet.log.say(HoldReleased(hold="case-2031"), Role.CONTROL, key_scope="legal.office")
    fleet.finish()
    page = told(fleet)
    assert "Proven: the data is gone" in page
    assert "(legal hold" not in page
    assert f"case-2031: released at {released}" in page
    assert "a legal hold was released" in page


def test_a_hold_released_before_the_request_and_another_tenants_are_not_told() -> None:
    log = AuditLog()
    log.say(HoldSet(hold="over-1", tenant="acme", reason="long settled"), Role.CONTROL)
    log.say(HoldReleased(hold="over-1"), Role.CONTROL)
    fleet = held(tenant="umbrella", fleet=Fleet(log))
    fleet.finish()
    raw, predicate = made(fleet)
    assert predicate.holds == ()
    assert b"litigation" not in raw
    page = told(fleet)
    assert "case-2031" not in page
    assert "over-1" not in page


def exited(attester: str, evidence: str) -> Fleet:
    fleet = Fleet()
    body = ExitAttested(worker="w10", engine_life=fleet.b.life, attester=attester, evidence=evidence)
    fleet.log.say(body, Role.SUPERVISOR)
    fleet.finish(fleet.a)
    return fleet


def test_an_exit_that_nobody_saw_is_somebodys_statement() -> None:
    page = told(exited("operator", "host scrapped, ticket 88"))
    assert "stated to have ended by an operator: «host scrapped, ticket 88» (register 11, key " in page
    assert "memory stated to have ended" in page
    assert "proven to have ended" not in page
    assumed = page[page.index("Assumed:") : page.index("Figures")]
    assert "is the word of an operator: «host scrapped, ticket 88»" in assumed
    assert "stated to have ended by attester somebody" in told(exited("somebody", "gone"))


@pytest.mark.parametrize(
    ("attester", "who"),
    [
        ("kvledger-bridge", "the bridge that held the engine's process"),
        ("kubernetes", "the Kubernetes attester"),
    ],
)
def test_an_exit_that_was_seen_says_by_whom(attester: str, who: str) -> None:
    page = told(exited(attester, "exit code 0"))
    assert f"its engine ended, seen by {who}: «exit code 0» (register 11, key " in page
    assert "memory proven to have ended" in page


def test_an_engine_that_closed_itself_is_its_own_witness() -> None:
    fleet = Fleet()
    fleet.b.write(Closed(engine_ended=True))
    fleet.finish(fleet.a)
    page = told(fleet)
    assert "says itself that its engine ended: closed with its engine (record 3)" in page
    assert "ended by its own last record" in page


def test_a_destroyed_store_says_by_whose_word() -> None:
    log = AuditLog()
    hook = log.hook("w0").open(durable_id="nas-1")
    request = log.delete()
    log.say(HolderDestroyed(durable_id="nas-1", evidence="shredded, certificate 17"), Role.SUPERVISOR)
    hook.obey(request)
    raw = bundle(log, request)
    assert first_says(raw, OPERATOR.public_key) == second_says(raw, OPERATOR.public_key) != INVALID
    document = json.loads(unseal(raw.partition(b"\n")[0])[1])
    (said,) = document["predicate"]["attestations"]
    assert (said["kind"], said["subject"], said["evidence"]) == (
        "holder_destroyed",
        "nas-1",
        "shredded, certificate 17",
    )


def test_a_shredded_store_says_by_whose_word_each_key_is_gone() -> None:
    store = EncryptedStore()
    store.end()
    store.declare("umbrella", "k-umbrella")  # another tenant's: its key is nobody's affair here
    store.list_rings("k-umbrella", "a")
    store.destroy("k-umbrella", "a")
    store.destroy_all()
    store.log.nonce(store.request)
    raw = bundle(store.log, store.request)
    assert first_says(raw, OPERATOR.public_key) == second_says(raw, OPERATOR.public_key) == VerdictKind.PROVEN
    document = json.loads(unseal(raw.partition(b"\n")[0])[1])
    said = [one for one in document["predicate"]["attestations"] if one["kind"] == "key_destroyed"]
    wanted = {f"{storage_key_id(key).hex()} in {ring}" for key in KEYS.values() for ring in ("a", "b")}
    assert {one["subject"] for one in said} == wanted
    stated = read_statement(unseal(raw.partition(b"\n")[0])[1]).predicate
    (disk,) = [one for one in stated.verdict.holders if one.holder == "disk"]
    text = answer_of(stated.verdict, disk, stated.attestations or ()).text
    assert all(subject in text for subject in wanted)
    assert text.count("erased") == len(wanted)


def test_a_refusal_is_told_as_one_with_its_reason() -> None:
    fleet = Fleet()
    fleet.finish(fleet.a)
    refusal = Refused(request=fleet.request, reason="engine_error", cure="restart the engine")
    fleet.b.write(parts={"acme": [refusal]}, signed=True)
    page = told(fleet)
    assert "refuses: engine_error in domain acme; restart the engine" in page
    _, predicate = made(fleet)
    groups = [answer_of(predicate.verdict, one).group for one in predicate.verdict.holders]
    assert groups == ["confirmed the removal", "refuses"]


def test_what_rests_on_confirmations_is_not_met_before_all_have_confirmed() -> None:
    waiting = made(pending())[1].verdict.conditions
    assert waiting["P2"] == "waiting"
    assert {waiting[name] for name in ("P3", "P4", "P5", "P9")} == {"not_evaluated"}
    silent = made(unprovable())[1].verdict.conditions
    assert (silent["P2"], silent["P6"]) == ("unmet", "unmet")
    assert {silent[name] for name in ("P3", "P4", "P5")} == {"not_evaluated"}
    assert set(made(proven())[1].verdict.conditions.values()) == {"met"}
    assert made(refuted())[1].verdict.conditions["P5"] == "refuted"
    assert "not examined, which counts as not met" in told(pending())
    closed = Fleet()
    closed.b.write(Closed())
    closed.finish(closed.a)
    assert made(closed)[1].verdict.conditions["P2"] == "unmet"
    assert "gone without an answer: closed by its hook" in told(closed)


def test_a_worker_that_was_emptied_as_a_whole_and_the_records_are_told_apart() -> None:
    fleet = Fleet()
    standing = RequestStanding(request=fleet.request, removed=3, old_left=0, orphans=0, unassigned=0)
    fleet.a.write(Cleared(holders=("gpu",)))
    fleet.a.held.clear()
    parts = {name: [fleet.a.statement(name)] for name in ("acme", "acme/eu")}
    fleet.a.write(parts={"acme": [*parts["acme"], Ack(requests=(standing,))]})
    page = told(fleet)
    assert "the workers say that they removed 3 for this request; their records name 0 one by one" in page
    assert "«ended by a reset»: 3." in page
    assert "holders say they removed" not in page


def test_a_proof_says_when_and_under_which_key_it_was_given() -> None:
    page = told(proven())
    assert f"{moment(GIVEN_MS)} by the auditor's clock" in page
    assert f"Signed with auditor's key {AUDITOR.id}" in page
    assert "Up to these positions, without them, the log was read" in page


def resaid(raw: bytes, edit: Callable[[dict[str, object]], None]) -> bytes:
    first, _, body = raw.partition(b"\n")
    document = json.loads(unseal(first)[1])
    edit(document["predicate"])
    return seal(json.dumps(document).encode(), AUDITOR) + b"\n" + body


def test_a_proof_of_an_older_program_still_holds() -> None:
    def older(predicate: dict[str, object]) -> None:
        for name in ("given_ms", "attestations", "holds"):
            del predicate[name]
        predicate["claim"] = CLAIMS[1]

    raw = resaid(made(exited("operator", "host scrapped"))[0], older)
    assert first_says(raw, OPERATOR.public_key) == second_says(raw, OPERATOR.public_key) == VerdictKind.PROVEN


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attestations", []),
        ("holds", [{"hold": "made-up"}]),
        ("given_ms", -1),
        ("claim", "Nothing was ever there."),
    ],
)
def test_both_verifiers_want_what_is_said_of_words_to_be_true(name: str, value: object) -> None:
    raw, _ = made(exited("operator", "host scrapped"))
    forged = resaid(raw, lambda predicate: predicate.update({name: value}))
    assert first_says(forged, OPERATOR.public_key) == second_says(forged, OPERATOR.public_key) == INVALID


def test_both_verifiers_want_the_very_attester_and_the_very_hold() -> None:
    def liar(predicate: dict[str, object]) -> None:
        predicate["attestations"][0]["attester"] = "kubernetes"  # type: ignore[index]

    def silent(predicate: dict[str, object]) -> None:
        predicate["holds"] = []

    for raw, edit in ((made(exited("operator", "gone"))[0], liar), (made(held())[0], silent)):
        forged = resaid(raw, edit)
        assert first_says(forged, OPERATOR.public_key) == second_says(forged, OPERATOR.public_key) == INVALID


def test_every_assumption_has_its_words_and_keeps_its_own() -> None:
    seen = set()
    for seed in range(30):
        story = Story(seed, 0.3)
        seen |= set(story.log.verdict(story.request).assumptions)
    seen |= {
        "membership: inventory of 3 by cluster-a (kv.control/17)",
        "anchoring: checkpoint",
        "anchoring: witnessed 2 of 3",
        "member w7 in pod p-1, named by k8s (kv.control/17), is gone by the word of kv.control/18",
        Shredding(("hsm", "backup")).assumption("disk-1"),
        "what lies before the newest records was read by an earlier audit of this auditor",
    }
    for one in seen:
        words = assumption_in_words(one)
        assert words.endswith(f" ({one})"), one
    assert assumption_in_words("of another kind {0}") == "of another kind {0}"


def test_no_heading_and_no_lead_is_the_last_line_of_a_page() -> None:
    leads = (
        "whatever the verdict:",
        "rely on it:",
        "Assumed:",
        "Figures",
        "The holders",
        "What binds the log",
    )
    for fleet in (pending(), held(), exited("operator", "x" * 300), unprovable()):
        raw, predicate = made(fleet)
        for text in pdf_text(to_pdf(proof_paper(predicate, checked(raw)))):
            lines = [line for line in text.splitlines() if line.strip()]
            body = [one for one in lines if not one.startswith("This paper is not") and "page " not in one]
            assert not body[-1].endswith(leads), body[-1]
