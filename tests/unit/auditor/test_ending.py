"""A proof says how the copies in scope came to their end, and ties to the request only what names it."""

from __future__ import annotations

from events.chain import transfer_digest
from events.ids import EvictReason
from events.model.part import (
    BlockEvicted,
    Cleared,
    Closed,
    TransferCommitted,
    TransferRejected,
    TransferStarted,
)
from tests.support.audit_log import AuditLog, HookStub
from tests.support.deletion_case import PROVEN, Fleet
from tests.support.log import block


def reset(hook: HookStub) -> None:
    hook.write(Cleared(holders=("gpu",)))
    hook.held.clear()


def test_a_deletion_by_a_whole_reset_counts_what_the_reset_ended() -> None:
    """Both tenants go with the reset; only acme's three blocks on each worker are this proof's."""
    fleet = Fleet()
    for hook in (fleet.a, fleet.b):
        reset(hook)
    fleet.finish()
    verdict = fleet.verdict()
    assert verdict.kind is PROVEN
    assert (verdict.removed, verdict.cleared, verdict.evicted, verdict.died) == (0, 6, 0, 0)


def test_a_reset_before_the_request_was_installed_is_not_counted() -> None:
    log = AuditLog()
    hook = log.hook().open()
    hook.store("acme", 1, 2)
    reset(hook)
    request = log.delete()
    hook.obey(request)
    hook.ack(request, nonce=log.nonce(request))
    assert log.verdict(request).cleared == 0


def test_a_copy_that_is_younger_than_the_request_is_not_counted() -> None:
    fleet = Fleet()
    fleet.a.store("acme", 8)
    reset(fleet.a)
    fleet.finish()
    assert fleet.verdict().cleared == 3


def test_what_was_evicted_meanwhile_is_counted_apart_and_once() -> None:
    fleet = Fleet()
    gone = BlockEvicted(holder="gpu", group=0, ids=(block("acme", 1),), reason=EvictReason.CAPACITY)
    fleet.a.write(parts={"acme": [gone, gone]})
    fleet.a.held["gpu", "acme"].pop(block("acme", 1))
    fleet.finish()
    verdict = fleet.verdict()
    assert (verdict.kind, verdict.removed, verdict.evicted) == (PROVEN, 5, 1)


def test_what_died_with_its_engine_is_counted_however_the_end_is_known() -> None:
    attested, closed = Fleet(), Fleet()
    attested.log.attest(attested.a)
    closed.a.write(Closed(engine_ended=True))
    for fleet in (attested, closed):
        fleet.finish(fleet.b)
        verdict = fleet.verdict()
        assert (verdict.kind, verdict.removed, verdict.died) == (PROVEN, 3, 3)


def test_an_engine_that_ended_before_the_request_took_nothing_of_it_along() -> None:
    log = AuditLog()
    hook = log.hook().open()
    hook.store("acme", 1, 2)
    log.attest(hook)
    assert log.verdict(log.delete()).died == 0


def test_transfers_are_named_with_what_became_of_them() -> None:
    fleet = Fleet()
    for name in ("t1", "t2", "t3", "foreign"):
        domain = "umbrella" if name == "foreign" else "acme"
        start = TransferStarted(
            transfer=name, source="w9", holder="gpu", group=0, profile=0, admitted_after=0,
            ids=(block(domain, name),),
        )  # fmt: skip
        fleet.a.write(parts={domain: [start]})
    fleet.a.write(
        parts={
            "acme": [
                TransferRejected(transfer="t1", request=fleet.request),
                TransferCommitted(transfer="t2", digest=transfer_digest([block("acme", "t2")])),
            ]
        }
    )
    verdict = fleet.verdict()
    assert verdict.rejected == 1
    seq = fleet.a.seq - 1
    worker, epoch = fleet.a.worker, fleet.a.epoch
    assert [(one.transfer, one.state, one.seq, one.blocks) for one in verdict.transfers] == [
        ("t1", "rejected", seq, 1),
        ("t2", "committed", seq, 1),
        ("t3", "open", seq - 2, 1),
    ]
    assert {(one.worker, one.epoch, one.holder) for one in verdict.transfers} == {(worker, epoch, "gpu")}


def test_a_holder_says_how_far_it_was_read_and_what_was_left() -> None:
    fleet = Fleet()
    fleet.finish()
    fresh = fleet.a.store("acme", 9)
    fleet.a.ack(fleet.request)
    for holder in fleet.verdict().holders:
        mine = fleet.a if holder.worker == fleet.a.worker else fleet.b
        left = fresh if mine is fleet.a else []
        checksum = sum(int.from_bytes(one, "big") for one in left)
        assert (holder.read_to, holder.held, holder.checksum) == (mine.seq - 1, len(left), f"{checksum:032x}")
        assert holder.stated == "pool"
