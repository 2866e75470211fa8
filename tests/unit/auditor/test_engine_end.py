"""Engines that end, fall silent or go on under another bridge, and the durable stores that outlive them."""

from __future__ import annotations

import pytest

from events.ids import Inventory, Role, Tier, VerdictReason
from events.model.control import HolderDestroyed, HolderEnrolled
from events.model.part import Closed
from tests.support.audit_log import AuditLog
from tests.support.deletion_case import PENDING, PROVEN, UNPROVABLE, Fleet, reasons


def test_silence_is_not_death() -> None:
    fleet = Fleet()
    fleet.b.obey(fleet.request)
    fleet.log.fence(fleet.a, "timeout")
    verdict = fleet.verdict()
    assert (verdict.kind, VerdictReason.DEATH_BY_TIMEOUT_ONLY in reasons(verdict)) == (UNPROVABLE, True)


def test_an_attested_exit_discharges_what_was_volatile() -> None:
    fleet = Fleet()
    fleet.log.fence(fleet.a, "timeout")
    fleet.log.attest(fleet.a)
    fleet.finish(fleet.b)
    verdict = fleet.verdict()
    assert verdict.kind is PROVEN
    assert any(holder.discharge.startswith("exit attested") for holder in verdict.holders)


def test_a_zombie_that_stores_after_its_attested_exit_still_owes() -> None:
    fleet = Fleet()
    fleet.log.attest(fleet.a)
    fleet.finish(fleet.b)
    assert fleet.verdict().kind is PROVEN
    fleet.a.store("acme", 7)
    assert fleet.verdict().kind is PENDING


def test_a_life_that_was_attached_to_again_is_over_when_its_end_is_attested_anew() -> None:
    fleet = Fleet()
    fleet.log.attest(fleet.a)
    fleet.log.hook("w0", life="life-1").open(inventory=Inventory.PARTIAL)
    fleet.finish(fleet.b)
    assert fleet.verdict().kind is PENDING
    fleet.log.attest(fleet.a)
    assert fleet.verdict().kind is PROVEN


def test_what_a_destroyed_store_held_refutes_nobody() -> None:
    """The owner lives on and says nothing more of it: there is nothing left to say."""
    log = AuditLog()
    log.say(HolderEnrolled(durable_id="disk-1", tier=Tier.DISK, owner="w0"), Role.ENROLMENT)
    hook = log.hook().open(durable_id="disk-1")
    hook.store("acme", 1, holder="disk")
    request = log.delete()
    hook.held.clear()
    hook.ack(request)
    log.say(HolderDestroyed(durable_id="disk-1", evidence="shredded"), Role.SUPERVISOR)
    hook.ack(request, nonce=log.nonce(request))
    assert log.verdict(request).kind is PROVEN
    log.say(HolderEnrolled(durable_id="disk-1", tier=Tier.DISK, owner="w0"), Role.ENROLMENT)
    assert log.verdict(request).kind is not PROVEN


def test_closed_with_the_engines_end_discharges_and_closed_alone_does_not() -> None:
    fleet = Fleet()
    fleet.a.write(Closed(engine_ended=True))
    fleet.finish(fleet.b)
    assert fleet.verdict().kind is PROVEN
    fleet = Fleet()
    fleet.a.write(Closed())
    fleet.finish(fleet.b)
    verdict = fleet.verdict()
    assert (verdict.kind, VerdictReason.MISSING_ACK in reasons(verdict)) == (UNPROVABLE, True)


def test_an_unsigned_end_of_the_engine_is_no_end() -> None:
    fleet = Fleet()
    fleet.a.write(Closed(engine_ended=True), signed=False)
    fleet.finish(fleet.b)
    assert fleet.verdict().kind is not PROVEN


def test_a_superseded_life_without_attestation_is_a_zombie_until_proven_otherwise() -> None:
    fleet = Fleet()
    reborn = fleet.log.hook("w0", life="life-2").open()
    fleet.finish(fleet.b, reborn)
    verdict = fleet.verdict()
    assert (verdict.kind, VerdictReason.EPOCH_UNFENCED in reasons(verdict)) == (UNPROVABLE, True)
    fleet.log.attest(fleet.a)
    assert fleet.verdict().kind is PROVEN


def test_a_bridge_upgraded_in_mid_deletion_answers_for_the_same_engine_life() -> None:
    fleet = Fleet()
    upgraded = fleet.log.hook("w0", life="life-1")
    upgraded.open(inventory=Inventory.PARTIAL)
    upgraded.held = fleet.a.held
    upgraded.snapshot()
    fleet.finish(fleet.b, upgraded)
    assert fleet.verdict().kind is PROVEN


def test_a_bridge_upgraded_in_mid_deletion_cannot_open_empty() -> None:
    fleet = Fleet()
    upgraded = fleet.log.hook("w0", life="life-1").open()
    fleet.finish(fleet.b, upgraded)
    assert fleet.verdict().kind is not PROVEN


def test_a_bridge_upgraded_in_mid_deletion_cannot_make_old_copies_young() -> None:
    fleet = Fleet()
    upgraded = fleet.log.hook("w0", life="life-1")
    upgraded.open(inventory=Inventory.PARTIAL)
    upgraded.held = {("gpu", "acme"): dict.fromkeys(fleet.old, fleet.request)}
    upgraded.snapshot()
    fleet.finish(fleet.b, upgraded)
    verdict = fleet.verdict()
    assert (verdict.kind, VerdictReason.UNKNOWN_LINEAGE in reasons(verdict)) == (UNPROVABLE, True)


@pytest.mark.parametrize("destroyed", [False, True])
def test_a_durable_store_outlives_its_engine(destroyed: bool) -> None:
    log = AuditLog()
    log.say(HolderEnrolled(durable_id="disk-1", tier=Tier.DISK, owner="w0"), Role.ENROLMENT)
    hook = log.hook("w0").open(durable_id="disk-1")
    hook.store("acme", 1, holder="disk")
    request = log.delete()
    log.attest(hook)
    if destroyed:
        log.say(HolderDestroyed(durable_id="disk-1", evidence="shredded"), Role.SUPERVISOR)
    verdict = log.verdict(request)
    assert verdict.kind is (PROVEN if destroyed else UNPROVABLE)
    assert destroyed or reasons(verdict) == {VerdictReason.DURABLE_TIER_UNCOVERED}


def test_a_store_handed_to_a_new_owner_is_not_empty_because_he_says_so() -> None:
    log = AuditLog()
    log.say(HolderEnrolled(durable_id="disk-1", tier=Tier.DISK, owner="w0"), Role.ENROLMENT)
    first = log.hook("w0").open(durable_id="disk-1")
    first.store("acme", 1, holder="disk")
    log.attest(first)
    log.say(HolderEnrolled(durable_id="disk-1", tier=Tier.DISK, owner="w10"), Role.ENROLMENT)
    second = log.hook("w10").open(durable_id="disk-1")
    request = log.delete()
    second.obey(request)
    second.ack(request, nonce=log.nonce(request))
    verdict = log.verdict(request)
    assert verdict.kind is not PROVEN
    assert VerdictReason.DURABLE_TIER_UNCOVERED in reasons(verdict)


def test_a_durable_store_that_nobody_owns_is_uncovered() -> None:
    log = AuditLog()
    hook = log.hook("w0").open(durable_id="disk-1")
    request = log.delete()
    hook.obey(request)
    hook.ack(request, nonce=log.nonce(request))
    assert VerdictReason.DURABLE_TIER_UNCOVERED in reasons(log.verdict(request))
