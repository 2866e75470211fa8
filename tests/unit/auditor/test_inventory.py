"""How exactly a holder's content is known: losses, their ends, and statements against the log."""

from __future__ import annotations

from events.chain import sha256
from events.ids import Inventory, VerdictReason
from events.model.control import DomainScope
from events.model.part import Cleared, EngineLoss
from tests.support.bundle import OPERATOR, bundle, first_says, second_says
from tests.support.deletion_case import PENDING, PROVEN, REFUTED, UNPROVABLE, Fleet, reasons
from tests.support.log import block


def test_a_lost_record_is_pending_until_a_known_snapshot_and_a_new_ack() -> None:
    fleet = Fleet()
    fleet.a.store("acme", 9, lost=True)
    nonce = fleet.finish()
    assert (fleet.verdict().kind, reasons(fleet.verdict())) == (PENDING, {VerdictReason.SEQ_GAP})
    fleet.a.snapshot()
    assert fleet.verdict().kind is PENDING
    fleet.a.ack(fleet.request, nonce=nonce)
    assert fleet.verdict().kind is PROVEN


def test_one_dropped_batch_that_a_snapshot_repaired_costs_no_later_proof() -> None:
    fleet = Fleet()
    fleet.a.store("acme", 9, lost=True)
    fleet.a.store("acme", 10)
    fleet.a.snapshot()
    fleet.finish()
    assert fleet.verdict().kind is PROVEN
    for domain in ("acme", "umbrella"):
        fleet.a.store(domain, 11)
        later = fleet.log.delete(DomainScope(domain=domain))
        for hook in (fleet.a, fleet.b):
            hook.obey(later, domain)
        nonce = fleet.log.nonce(later)
        for hook in (fleet.a, fleet.b):
            hook.ack(later, domain, nonce=nonce)
        assert fleet.log.verdict(later).kind is PROVEN


def test_a_lost_record_of_a_fenced_worker_is_unprovable() -> None:
    fleet = Fleet()
    fleet.a.store("acme", 9, lost=True)
    fleet.finish()
    fleet.log.fence(fleet.a)
    assert (fleet.verdict().kind, reasons(fleet.verdict())) == (UNPROVABLE, {VerdictReason.SEQ_GAP})


def test_a_snapshot_that_ends_partial_is_no_base() -> None:
    fleet = Fleet()
    fleet.a.store("acme", 9, lost=True)
    fleet.a.snapshot(inventory=Inventory.PARTIAL)
    fleet.finish()
    assert fleet.verdict().kind is PENDING


def test_a_clear_of_the_whole_holder_is_a_base() -> None:
    fleet = Fleet()
    fleet.a.store("acme", 9, lost=True)
    fleet.a.held.clear()
    fleet.a.write(Cleared(holders=("gpu",)))
    fleet.finish()
    assert fleet.verdict().kind is PROVEN


def test_an_engine_loss_needs_an_inspection_or_a_clear() -> None:
    fleet = Fleet()
    fleet.a.write(EngineLoss(first_missing=3))
    fleet.finish()
    verdict = fleet.verdict()
    assert verdict.kind is PENDING
    assert VerdictReason.INVENTORY_INCOMPLETE in reasons(verdict)


def test_a_copy_that_the_ack_denies_refutes_on_a_whole_stream_without_statements() -> None:
    fleet = Fleet()
    fleet.a.held[("gpu", "acme")].pop(fleet.old[0])
    for hook in (fleet.a, fleet.b):
        hook.obey(fleet.request)
    fleet.a.log.events[fleet.a.partition].pop()
    fleet.a.seq -= 1
    fleet.a.prev = sha256(fleet.log.events[fleet.a.partition][-1].value.split(b"\n")[0])
    fleet.a.held[("gpu", "acme")][fleet.old[0]] = 3
    fleet.a.ack(fleet.request)
    verdict = fleet.verdict()
    assert verdict.kind is REFUTED
    assert verdict.conditions["P4"] == "refuted"


def test_a_statement_that_differs_from_the_log_is_a_divergence() -> None:
    fleet = Fleet()
    fleet.a.write(parts={"acme": [fleet.a.statement("acme", claimed=[block("forged")])]})
    fleet.finish()
    verdict = fleet.verdict()
    assert (verdict.kind, reasons(verdict)) == (UNPROVABLE, {VerdictReason.INVENTORY_DIVERGENCE})


def test_a_removal_that_was_only_claimed_shows_in_the_checksum() -> None:
    fleet = Fleet()
    fleet.a.remove("acme", fleet.old, fleet.request)
    fleet.a.held[("gpu", "acme")] = {fleet.old[0]: 3}
    fleet.a.ack(fleet.request)
    fleet.b.obey(fleet.request)
    fleet.close()
    assert reasons(fleet.verdict()) >= {VerdictReason.INVENTORY_DIVERGENCE}
    assert fleet.verdict().kind is UNPROVABLE


def test_an_undecodable_record_concerns_its_stream_alone() -> None:
    fleet = Fleet()
    raw = fleet.a.store("acme", 50)
    events = fleet.log.events[fleet.a.partition]
    broken = events[-1].value.replace(b'"holder":"gpu"', b'"holder":7777')
    events[-1] = type(events[-1])(broken, None)
    fleet.a.held[("gpu", "acme")].pop(raw[0])
    fleet.finish()
    verdict = fleet.verdict()
    assert (verdict.kind, reasons(verdict)) == (PENDING, {VerdictReason.UNPARSEABLE_RECORD})
    assert {reason.subject for reason in verdict.reasons} == {f"w0/0/{fleet.a.epoch} gpu"}


def test_a_cut_event_log_says_so() -> None:
    fleet = Fleet()
    fleet.finish()
    fleet.log.starts[fleet.a.partition] = 1
    verdict = fleet.verdict()
    assert VerdictReason.RETENTION_TRUNCATED in reasons(verdict)
    assert verdict.kind is PENDING


def test_a_life_of_which_the_log_holds_nothing_any_more_is_not_just_waited_for() -> None:
    fleet = Fleet()
    fleet.finish()
    held = fleet.log.events[fleet.a.partition]
    fleet.log.starts[fleet.a.partition] = len(held)
    made = bundle(fleet.log, fleet.request)
    assert first_says(made, OPERATOR.public_key) == second_says(made, OPERATOR.public_key) == PENDING
    about = [one for one in fleet.verdict().reasons if one.condition == "P2"]
    assert {one.reason for one in about} == {VerdictReason.RETENTION_TRUNCATED}
    assert all("--archive" in one.cure for one in about)
