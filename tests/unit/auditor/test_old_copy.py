"""Copies from before the request: what brings one back, what makes one young, and what only seems to."""

from __future__ import annotations

from typing import Any

import pytest

from events.chain import transfer_digest
from events.ids import VerdictReason
from events.model.part import (
    BlockEvicted,
    Cleared,
    TransferAborted,
    TransferCommitted,
    TransferRejected,
    TransferStarted,
)
from tests.support.audit_log import AuditLog
from tests.support.deletion_case import PENDING, PROVEN, REFUTED, UNPROVABLE, Fleet, reasons
from tests.support.log import block


def test_an_old_copy_stored_after_the_ack_refutes_with_its_record() -> None:
    fleet = Fleet()
    fleet.finish()
    assert fleet.verdict().kind is PROVEN
    fleet.a.store("acme", 1, admitted=fleet.request - 1, signed=True)
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


@pytest.mark.parametrize("end", [TransferRejected, TransferAborted, TransferCommitted])
def test_a_transfer_whose_end_was_lost_is_over_once_a_snapshot_does_not_list_it(end: type) -> None:
    """And one that the snapshot lists is not."""
    for listed in (False, True):
        fleet = Fleet()
        block_ = block("acme", 5)
        started = TransferStarted(
            transfer="t1", source="x", holder="gpu", group=0, profile=0, ids=(block_,), admitted_after=3
        )
        fleet.a.write(parts={"acme": [started]})
        more: dict[str, Any] = {"request": fleet.request} if end is TransferRejected else {}
        more = {"digest": transfer_digest([block_])} if end is TransferCommitted else more
        fleet.a.write(parts={"acme": [end(transfer="t1", **more)]}, lost=True)
        if end is TransferCommitted or listed:
            fleet.a.held["gpu", "acme"][block_] = 3
        fleet.a.snapshot(pending={block_: "t1"} if listed else {})
        fleet.finish()
        assert fleet.verdict().kind is (PENDING if listed else PROVEN)
        assert not listed or VerdictReason.OPEN_TRANSFER in reasons(fleet.verdict())


def test_a_transfer_stays_open_under_a_snapshot_of_a_whole_stream() -> None:
    """No end of it can have been lost: the snapshot forgot it."""
    fleet = Fleet()
    started = TransferStarted(
        transfer="t1", source="x", holder="gpu", group=0, profile=0, ids=(block("acme", 5),), admitted_after=3
    )
    fleet.a.write(parts={"acme": [started]})
    fleet.a.snapshot()
    fleet.finish()
    assert (fleet.verdict().kind, reasons(fleet.verdict())) == (PENDING, {VerdictReason.OPEN_TRANSFER})
