"""What people might try on the log: breaks, forgeries, self-granted powers, garbage, and records that are gone."""

from __future__ import annotations

from events.chain import sha256
from events.ids import Role, VerdictReason
from events.model.control import DomainScope
from events.signing import Signer
from tests.support.deletion_case import PENDING, PROVEN, UNPROVABLE, Fleet, reasons


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
    assert (verdict.kind, VerdictReason.SIGNATURE_INVALID in reasons(verdict)) == (PENDING, True)


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
