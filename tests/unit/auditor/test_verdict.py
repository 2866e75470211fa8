"""From acks and the closing nonce to a verdict: proven, pending with who owes, unprovable with the cure."""

from __future__ import annotations

from events.ids import VerdictReason
from events.model.part import Orphans, Refused, UnknownEvents
from tests.support.deletion_case import PENDING, PROVEN, UNPROVABLE, Fleet, reasons


def test_obeyed_acked_and_closed_with_a_nonce_is_proven() -> None:
    fleet = Fleet()
    nonce = fleet.finish()
    verdict = fleet.verdict()
    assert (verdict.kind, verdict.reasons, verdict.counterexamples) == (PROVEN, (), ())
    assert set(verdict.conditions.values()) == {"met"}
    assert verdict.closing_nonce == nonce
    assert verdict.removed == 6
    assert {holder.discharge for holder in verdict.holders} == {"ack"}
    assert {"membership: self-declared", "anchoring: none"} <= set(verdict.assumptions)


def test_nothing_done_yet_is_pending_with_the_holders_that_owe() -> None:
    fleet = Fleet()
    verdict = fleet.verdict()
    assert verdict.kind is PENDING
    assert {r.subject for r in verdict.reasons if r.condition == "P2"} == {
        f"w0/0/{fleet.a.epoch}",
        f"w10/0/{fleet.b.epoch}",
    }
    assert verdict.conditions["P9"] == "not_evaluated"
    looked_at_at_the_ack = [verdict.conditions[name] for name in ("P3", "P4")]
    assert looked_at_at_the_ack == ["not_evaluated"] * 2


def test_acks_without_a_nonce_are_pending() -> None:
    fleet = Fleet()
    fleet.a.obey(fleet.request)
    fleet.b.obey(fleet.request)
    verdict = fleet.verdict()
    assert verdict.kind is PENDING
    assert reasons(verdict) == {VerdictReason.FRONTIER_BEHIND}
    assert {r.condition for r in verdict.reasons} == {"P9"}


def test_a_registered_worker_that_never_wrote_owes_an_ack() -> None:
    fleet = Fleet()
    fleet.log.hook("w100")
    fleet.finish()
    assert fleet.verdict().kind is PENDING


def test_an_ack_with_old_copies_left_is_pending() -> None:
    fleet = Fleet()
    fleet.finish()
    fleet.a.ack(fleet.request, old_left=1)
    assert fleet.verdict().kind is PENDING


def test_orphans_or_unassigned_copies_keep_it_pending() -> None:
    for event in (
        Orphans(holder="gpu", orphans=1, unassigned=0),
        Orphans(holder="gpu", orphans=0, unassigned=2),
    ):
        fleet = Fleet()
        fleet.a.write(event)
        fleet.finish()
        assert (fleet.verdict().kind, reasons(fleet.verdict())) == (
            PENDING,
            {VerdictReason.INVENTORY_INCOMPLETE},
        )


def test_a_nonce_written_before_the_last_ack_closes_nothing() -> None:
    fleet = Fleet()
    fleet.a.obey(fleet.request)
    nonce = fleet.log.nonce(fleet.request)
    fleet.a.ack(fleet.request, nonce=nonce)
    fleet.b.obey(fleet.request, nonce=nonce)
    assert fleet.verdict().kind is PENDING
    fleet.close()
    assert fleet.verdict().kind is PROVEN


def test_an_ack_behind_the_answer_keeps_it_only_if_it_names_the_nonce_or_a_later_one() -> None:
    """What a hook acks for another order stands for this one, too."""
    fleet = Fleet()
    nonce = fleet.finish()
    assert fleet.verdict().kind is PROVEN
    fleet.log.delete()
    fleet.a.ack(fleet.request)
    assert (fleet.verdict().kind, {r.condition for r in fleet.verdict().reasons}) == (PENDING, {"P9"})
    fleet.a.ack(fleet.request, nonce=nonce)
    assert fleet.verdict().kind is PROVEN


def test_an_unanswered_nonce_is_pending() -> None:
    fleet = Fleet()
    fleet.a.obey(fleet.request)
    fleet.b.obey(fleet.request)
    nonce = fleet.log.nonce(fleet.request)
    fleet.a.ack(fleet.request, nonce=nonce)
    assert fleet.verdict().kind is PENDING


def test_a_refusal_is_unprovable_and_carries_its_cure() -> None:
    fleet = Fleet()
    fleet.b.obey(fleet.request)
    refused = Refused(request=fleet.request, reason="no_delete_path", cure="give me the reset route")
    fleet.a.write(parts={"acme": [refused], "acme/eu": [refused]})
    verdict = fleet.verdict()
    assert verdict.kind is UNPROVABLE
    assert VerdictReason.DELETE_REFUSED in reasons(verdict)
    assert "give me the reset route" in {reason.cure for reason in verdict.reasons}


def test_a_refusal_for_blocks_in_use_waits_and_an_ack_ends_it() -> None:
    fleet = Fleet()
    refused = Refused(request=fleet.request, reason="blocks_in_use", cure="drain it")
    fleet.a.write(parts={"acme": [refused], "acme/eu": [refused]})
    assert fleet.verdict().kind is PENDING
    fleet.finish()
    assert fleet.verdict().kind is PROVEN


def test_left_out_conditions_are_not_evaluated_and_never_proven() -> None:
    from auditor.verdict import CONDITIONS, judge

    fleet = Fleet()
    fleet.finish()
    for name in CONDITIONS:
        verdict = judge(fleet.log.evidence(fleet.request), (), without=frozenset({name}))
        assert verdict.kind is UNPROVABLE
        assert verdict.conditions[name] == "not_evaluated"


def test_what_a_hook_could_not_read_is_an_assumption() -> None:
    fleet = Fleet()
    fleet.a.write(UnknownEvents(kind="stored: medium 'XPU', group 0", length=16, count=2))
    fleet.finish()
    verdict = fleet.verdict()
    assert verdict.kind is PROVEN
    (told,) = [one for one in verdict.assumptions if "could not read" in one]
    assert told.startswith("w0/0/w0-e0: 2 things")
    fleet = Fleet()
    fleet.finish()
    assert not [one for one in fleet.verdict().assumptions if "could not read" in one]
