"""Each condition of a verdict, and the museum of what people might try."""

from __future__ import annotations

import pytest

from auditor.finding import Verdict
from events.chain import sha256
from events.ids import Inventory, Role, Tier, VerdictKind, VerdictReason
from events.model.control import (
    DomainAdmitted,
    DomainCreated,
    DomainScope,
    HolderDestroyed,
    HolderEnrolled,
    IdsScope,
    PrefixScope,
    ProfileScope,
    SubjectScope,
)
from events.model.part import (
    BlockEvicted,
    Cleared,
    Closed,
    EngineLoss,
    Orphans,
    Refused,
    TransferCommitted,
    TransferRejected,
    TransferStarted,
)
from events.signing import Signer
from tests.support.audit_log import AuditLog, HookStub
from tests.support.log import block

PROVEN, REFUTED = VerdictKind.PROVEN, VerdictKind.REFUTED
PENDING, UNPROVABLE = VerdictKind.PENDING, VerdictKind.UNPROVABLE


def reasons(verdict: Verdict) -> set[VerdictReason]:
    return {reason.reason for reason in verdict.reasons}


class Fleet:
    """Two workers that hold old copies of both tenants, and a deletion of tenant acme."""

    def __init__(self) -> None:
        self.log = AuditLog()
        self.a, self.b = self.log.hook("w0").open(), self.log.hook("w10").open()
        for hook in (self.a, self.b):
            self.old = hook.store("acme", 1, 2, 3)
            hook.store("umbrella", 1, 2)
        self.request = self.log.delete()

    def finish(self, *hooks: HookStub) -> int:
        """Acks of all, the closing nonce, answers of all."""
        for hook in hooks or (self.a, self.b):
            hook.obey(self.request)
        return self.close(*hooks)

    def close(self, *hooks: HookStub) -> int:
        nonce = self.log.nonce(self.request)
        for hook in hooks or (self.a, self.b):
            hook.ack(self.request, nonce=nonce)
        return nonce

    def verdict(self) -> Verdict:
        return self.log.verdict(self.request)


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


def test_an_unanswered_nonce_is_pending() -> None:
    fleet = Fleet()
    fleet.a.obey(fleet.request)
    fleet.b.obey(fleet.request)
    nonce = fleet.log.nonce(fleet.request)
    fleet.a.ack(fleet.request, nonce=nonce)
    assert fleet.verdict().kind is PENDING


def test_a_lost_record_is_pending_until_a_known_snapshot_and_a_new_ack() -> None:
    fleet = Fleet()
    fleet.a.store("acme", 9, lost=True)
    nonce = fleet.finish()
    assert (fleet.verdict().kind, reasons(fleet.verdict())) == (PENDING, {VerdictReason.SEQ_GAP})
    fleet.a.snapshot()
    assert fleet.verdict().kind is PENDING
    fleet.a.ack(fleet.request, nonce=nonce)
    assert fleet.verdict().kind is PROVEN


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


def test_an_old_copy_stored_after_the_ack_refutes_with_its_record() -> None:
    fleet = Fleet()
    fleet.finish()
    assert fleet.verdict().kind is PROVEN
    fleet.a.store("acme", 1, admitted=fleet.request - 1)
    verdict = fleet.verdict()
    assert verdict.kind is REFUTED
    (record,) = verdict.counterexamples
    assert (record.worker, record.seq, record.event) == ("w0", fleet.a.seq - 1, "block_stored")
    assert record.ids == (block("acme", 1).hex(),)
    assert verdict.conditions["P5"] == "refuted"


def test_an_old_copy_that_came_and_went_between_two_acks_still_refutes() -> None:
    fleet = Fleet()
    fleet.a.obey(fleet.request)
    fleet.b.obey(fleet.request)
    ids = fleet.a.store("acme", 1, admitted=3)
    fleet.a.remove("acme", ids, fleet.request)
    fleet.close()
    assert fleet.verdict().kind is REFUTED


def test_the_same_prompt_computed_again_is_listed_as_recreated() -> None:
    fleet = Fleet()
    fleet.finish()
    fleet.a.store("acme", 1, 2)
    verdict = fleet.verdict()
    assert (verdict.kind, verdict.recreated) == (PROVEN, 2)


def test_an_unknown_admission_after_the_ack_is_unprovable() -> None:
    fleet = Fleet()
    fleet.finish()
    fleet.a.store("acme", 1, admitted=None)
    verdict = fleet.verdict()
    assert (verdict.kind, reasons(verdict)) == (UNPROVABLE, {VerdictReason.UNKNOWN_LINEAGE})


def test_behind_a_barrier_an_unknown_admission_is_recreated() -> None:
    log = AuditLog()
    hook = log.hook().open(admission_known=False)
    hook.store("acme", 1, 2, admitted=None)
    request = log.delete()
    hook.held.clear()
    hook.write(Cleared(holders=("gpu",)))
    hook.store("acme", 1, admitted=None)
    hook.ack(request)
    hook.store("acme", 2, admitted=None)
    hook.ack(request, nonce=log.nonce(request))
    verdict = log.verdict(request)
    assert verdict.kind is PROVEN
    assert verdict.recreated == 1


def test_a_clear_from_before_the_request_is_no_barrier() -> None:
    log = AuditLog()
    hook = log.hook().open(admission_known=False)
    hook.write(Cleared(holders=("gpu",)))
    request = log.delete()
    hook.store("acme", 1, admitted=None)
    hook.ack(request)
    hook.ack(request, nonce=log.nonce(request))
    assert (log.verdict(request).kind, reasons(log.verdict(request))) == (
        UNPROVABLE,
        {VerdictReason.UNKNOWN_LINEAGE},
    )


def test_with_a_connector_a_clear_is_no_barrier() -> None:
    log = AuditLog()
    hook = log.hook().open(connectors=("offload",), admission_known=False)
    request = log.delete()
    hook.write(Cleared(holders=("gpu",)))
    hook.store("acme", 1, admitted=None)
    hook.ack(request)
    hook.ack(request, nonce=log.nonce(request))
    assert log.verdict(request).kind is UNPROVABLE


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


def test_a_fresh_duplicate_does_not_launder_an_old_copy() -> None:
    fleet = Fleet()
    fleet.a.store("acme", 1, 2, 3)
    for hook in (fleet.a, fleet.b):
        hook.obey(fleet.request, keep=fleet.old if hook is fleet.a else ())
    fleet.close()
    assert fleet.verdict().kind is REFUTED


def test_a_snapshot_does_not_launder_an_old_copy() -> None:
    fleet = Fleet()
    fleet.a.held[("gpu", "acme")] = dict.fromkeys(fleet.old, fleet.request)
    fleet.a.snapshot()
    fleet.finish()
    assert fleet.verdict().kind is REFUTED


def test_a_snapshot_that_lists_an_old_copy_after_the_ack_refutes() -> None:
    fleet = Fleet()
    fleet.finish()
    fleet.a.snapshot({"acme": {fleet.old[0]: 3}})
    assert fleet.verdict().kind is REFUTED


def test_a_broken_chain_is_unprovable() -> None:
    fleet = Fleet()
    fleet.a.write(prev=bytes(32))
    fleet.finish()
    verdict = fleet.verdict()
    assert (verdict.kind, VerdictReason.CHAIN_BREAK in reasons(verdict)) == (UNPROVABLE, True)


def test_a_stream_that_saw_another_control_log_is_a_broken_chain() -> None:
    fleet = Fleet()
    fleet.finish()
    value, signature = fleet.log.control.records[fleet.request]
    fleet.log.control.records[fleet.request] = (value, signature)
    original = fleet.log.control_hash
    fleet.log.control_hash = lambda offset: sha256(b"split view")  # type: ignore[method-assign]
    fleet.a.ack(fleet.request)
    fleet.log.control_hash = original  # type: ignore[method-assign]
    verdict = fleet.verdict()
    assert (verdict.conditions["P1"], VerdictReason.CHAIN_BREAK in reasons(verdict)) == ("unmet", True)


def test_a_request_truncated_and_its_offset_reused_shows_in_the_running_hash() -> None:
    fleet = Fleet()
    fleet.finish()
    del fleet.log.control.records[fleet.request :]
    again = fleet.log.delete(DomainScope(domain="acme"))
    assert again == fleet.request
    fleet.log.nonce(again)
    verdict = fleet.verdict()
    assert verdict.kind is not PROVEN
    assert VerdictReason.CHAIN_BREAK in reasons(verdict)


def test_two_records_of_one_number_are_an_equivocation() -> None:
    fleet = Fleet()
    seq, prev = fleet.a.seq, fleet.a.prev
    fleet.finish()
    fleet.a.seq, fleet.a.prev = seq, prev
    fleet.a.store("acme", 77)
    verdict = fleet.verdict()
    assert (verdict.kind, VerdictReason.EQUIVOCATION in reasons(verdict)) == (UNPROVABLE, True)


def test_a_redelivered_ack_changes_nothing() -> None:
    fleet = Fleet()
    ack = fleet.a.ack(fleet.request)
    del fleet.log.events[fleet.a.partition][-1]
    fleet.log.events[fleet.a.partition].append(ack)
    fleet.finish()
    before = fleet.verdict()
    fleet.log.events[fleet.a.partition].append(ack)
    after = fleet.verdict()
    assert (before.kind, after.kind) == (PROVEN, PROVEN)


def test_an_ack_of_another_epoch_signed_by_the_wrong_key_does_not_count() -> None:
    fleet = Fleet()
    fleet.b.obey(fleet.request)
    fleet.a.obey(fleet.request, signer=Signer.from_seed(bytes(32)))
    fleet.close()
    verdict = fleet.verdict()
    assert (verdict.kind, VerdictReason.SIGNATURE_INVALID in reasons(verdict)) == (UNPROVABLE, True)


def test_a_fence_or_exit_that_somebody_granted_himself_obliges_nobody_less() -> None:
    for role, more in ((Role.CONTROL, {}), (Role.SUPERVISOR, {"signer": Signer.from_seed(bytes(32))})):
        fleet = Fleet()
        fleet.b.obey(fleet.request)
        fleet.log.attest(fleet.a, role, **more)
        verdict = fleet.verdict()
        assert verdict.kind is PENDING
        assert VerdictReason.SIGNATURE_INVALID in reasons(verdict)
        fleet.a.obey(fleet.request)
        fleet.close()
        assert fleet.verdict().kind is UNPROVABLE


def test_garbage_in_the_control_log_is_reported_and_harms_no_proof() -> None:
    fleet = Fleet()
    fleet.log.control.records.append((b"\x00garbage", None))
    fleet.finish()
    verdict = fleet.verdict()
    assert verdict.kind is PROVEN
    assert any("not_json" in line for line in verdict.records_ignored)


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


def test_garbage_in_the_event_log_concerns_no_stream() -> None:
    fleet = Fleet()
    record = type(fleet.log.events[fleet.a.partition][0])
    for garbage in (b"", b"\xff\x00", b"{}", b'{"v":1}'):
        fleet.log.events[fleet.a.partition].append(record(garbage, b"x"))
    fleet.finish()
    assert fleet.verdict().kind is PROVEN


def test_an_unregistered_writer_makes_the_membership_incomplete() -> None:
    fleet = Fleet()
    stray = fleet.log.hook("w1000")
    fleet.log.control.records[stray.epoch_no] = (fleet.log.control.records[stray.epoch_no][0], None)
    stray.open()
    fleet.finish()
    verdict = fleet.verdict()
    assert verdict.kind is UNPROVABLE
    assert {VerdictReason.MEMBERSHIP_INCOMPLETE, VerdictReason.SIGNATURE_INVALID} <= reasons(verdict)


def test_lost_control_records_are_never_proven() -> None:
    fleet = Fleet()
    fleet.finish()
    evidence = fleet.log.evidence(fleet.request)
    evidence.registry.holes.append((2, 3))
    from auditor.verdict import judge

    verdict = judge(evidence, ())
    assert (verdict.kind, reasons(verdict)) == (UNPROVABLE, {VerdictReason.TOPIC_COMPACTED})


def test_a_cut_event_log_says_so() -> None:
    fleet = Fleet()
    fleet.finish()
    fleet.log.starts[fleet.a.partition] = 1
    verdict = fleet.verdict()
    assert VerdictReason.RETENTION_TRUNCATED in reasons(verdict)
    assert verdict.kind is PENDING


def test_an_open_transfer_of_old_blocks_is_pending_until_it_is_rejected() -> None:
    fleet = Fleet()
    started = TransferStarted(
        transfer="t1", source="x", holder="gpu", group=0, profile=0, ids=(block("acme", 5),), admitted_after=3
    )
    fleet.finish()
    fleet.a.write(parts={"acme": [started]})
    assert (fleet.verdict().kind, reasons(fleet.verdict())) == (PENDING, {VerdictReason.OPEN_TRANSFER})
    fleet.a.write(parts={"acme": [TransferRejected(transfer="t1", request=fleet.request)]})
    assert fleet.verdict().kind is PROVEN


def test_a_transfer_between_two_acks_refutes() -> None:
    fleet = Fleet()
    fleet.a.obey(fleet.request)
    fleet.b.obey(fleet.request)
    started = TransferStarted(
        transfer="t1", source="x", holder="gpu", group=0, profile=0, ids=(block("acme", 5),), admitted_after=3
    )
    fleet.a.write(parts={"acme": [started]})
    fleet.a.write(parts={"acme": [TransferCommitted(transfer="t1", digest=bytes(32))]})
    fleet.a.remove("acme", [block("acme", 5)])
    fleet.close()
    verdict = fleet.verdict()
    assert verdict.kind is REFUTED
    assert verdict.counterexamples[0].event == "transfer_committed"


def test_an_uncertain_copy_is_still_in_scope() -> None:
    fleet = Fleet()
    evicted = BlockEvicted(holder="gpu", group=0, ids=tuple(fleet.old), certain=False)
    fleet.a.write(parts={"acme": [evicted]})
    fleet.a.held[("gpu", "acme")] = dict.fromkeys(fleet.old, 3)
    fleet.b.obey(fleet.request)
    fleet.a.ack(fleet.request)
    fleet.close()
    assert fleet.verdict().kind is REFUTED


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


def test_a_missing_key_or_domain_makes_the_scope_undecidable() -> None:
    from auditor.verdict import judge

    fleet = Fleet()
    fleet.finish()
    verdict = judge(fleet.log.evidence(fleet.request, ring={"acme": 1, "umbrella": 1}), ())
    assert (verdict.kind, reasons(verdict)) == (UNPROVABLE, {VerdictReason.SCOPE_UNDECIDABLE})
    nobody = fleet.log.delete(DomainScope(domain="nowhere"))
    assert VerdictReason.SCOPE_UNDECIDABLE in reasons(fleet.log.verdict(nobody))


def test_a_tenant_in_somebody_elses_shared_domain_cannot_be_proven_gone() -> None:
    fleet = Fleet()
    fleet.log.say(DomainCreated(domain="commons", tenant="umbrella", shared=True), Role.CONTROL)
    fleet.log.say(DomainAdmitted(domain="commons", tenant="acme"), Role.CONTROL)
    fleet.finish()
    assert reasons(fleet.verdict()) == {VerdictReason.SHARED_DOMAIN}


def test_a_subject_is_its_sub_domain_and_bound_leaves_are_not_evaluated() -> None:
    fleet = Fleet()
    request = fleet.log.delete(SubjectScope(domain="acme", subject="eu"))
    for hook in (fleet.a, fleet.b):
        hook.obey(request, "acme/eu")
    nonce = fleet.log.nonce(request)
    for hook in (fleet.a, fleet.b):
        hook.ack(request, "acme/eu", nonce=nonce)
    assert fleet.log.verdict(request).kind is PROVEN
    other = fleet.log.delete(SubjectScope(domain="acme", subject="us"))
    assert VerdictReason.NOT_EVALUATED in reasons(fleet.log.verdict(other))


def scoped(fleet: Fleet, request: int, removed: list[bytes]) -> Verdict:
    for hook in (fleet.a, fleet.b):
        hook.remove("acme", removed, request)
        hook.ack(request, "acme")
    nonce = fleet.log.nonce(request)
    for hook in (fleet.a, fleet.b):
        hook.ack(request, "acme", nonce=nonce)
    return fleet.log.verdict(request)


def test_a_prefix_covers_its_descendants_and_nothing_above() -> None:
    fleet = Fleet()
    scope = PrefixScope(domain="acme", ids=tuple(fleet.old[:2]))
    assert scoped(fleet, fleet.log.delete(scope), fleet.old[1:]).kind is PROVEN
    fleet = Fleet()
    scope = PrefixScope(domain="acme", ids=tuple(fleet.old[:2]))
    assert scoped(fleet, fleet.log.delete(scope), fleet.old[1:2]).kind is REFUTED


def test_ids_cover_their_descendants_too() -> None:
    fleet = Fleet()
    assert (
        scoped(fleet, fleet.log.delete(IdsScope(domain="acme", ids=(fleet.old[2],))), fleet.old[2:]).kind
        is PROVEN
    )
    fleet = Fleet()
    assert (
        scoped(fleet, fleet.log.delete(IdsScope(domain="acme", ids=(fleet.old[0],))), fleet.old[:2]).kind
        is REFUTED
    )


def test_an_unknown_ancestor_is_in_every_prefix_scope_and_refutes_nothing() -> None:
    fleet = Fleet()
    fleet.a.store("acme", "lost child", parent=block("never shown"))
    request = fleet.log.delete(PrefixScope(domain="acme", ids=(fleet.old[0],)))
    verdict = scoped(fleet, request, fleet.old)
    assert (verdict.kind, reasons(verdict)) == (UNPROVABLE, {VerdictReason.SCOPE_UNDECIDABLE})


def test_a_profile_scope_reaches_every_domain() -> None:
    from events.identity import profile_digest
    from tests.support.log import PROFILE

    fleet = Fleet()
    request = fleet.log.delete(ProfileScope(profile=bytes.fromhex(profile_digest(PROFILE))))
    every = ("acme", "acme/eu", "umbrella")
    for hook in (fleet.a, fleet.b):
        hook.obey(request, *every)
    nonce = fleet.log.nonce(request)
    for hook in (fleet.a, fleet.b):
        hook.ack(request, *every, nonce=nonce)
    assert fleet.log.verdict(request).kind is PROVEN
    fleet.a.store("umbrella", 9, admitted=2)
    assert fleet.log.verdict(request).kind is REFUTED


def test_another_tenants_records_decide_nothing_here() -> None:
    fleet = Fleet()
    fleet.finish()
    before = fleet.verdict()
    fleet.a.store("umbrella", 99, admitted=0)
    fleet.a.write(parts={"umbrella": [fleet.a.statement("umbrella", claimed=[block("forged")])]})
    after = fleet.verdict()
    assert (before.kind, after.kind) == (PROVEN, PROVEN)


def test_left_out_conditions_are_not_evaluated_and_never_proven() -> None:
    from auditor.verdict import CONDITIONS, judge

    fleet = Fleet()
    fleet.finish()
    for name in CONDITIONS:
        verdict = judge(fleet.log.evidence(fleet.request), (), without=frozenset({name}))
        assert verdict.kind is UNPROVABLE
        assert verdict.conditions[name] == "not_evaluated"
