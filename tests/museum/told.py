"""Exhibits: what a worker says of its deletion, and copies made young or brought back."""

from __future__ import annotations

from events.ids import EvictReason, Inventory, Lineage, Role, Tier, VerdictReason
from events.model.control import HolderEnrolled
from events.model.part import (
    BlockEvicted,
    Refused,
    TierChanged,
    TransferCommitted,
    TransferRejected,
    TransferStarted,
)
from tests.museum.exhibit import STRANGER, exhibit, shown
from tests.support.audit_log import AuditLog
from tests.support.bundle import bundle
from tests.support.deletion_case import PENDING, REFUTED, UNPROVABLE, Fleet
from tests.support.log import block


@exhibit("replayed ack", PENDING, VerdictReason.FRONTIER_BEHIND)
def replayed_ack(trick: bool) -> bytes:
    """Instead of an answer to the nonce comes the ack of before, byte for byte."""
    fleet = Fleet()
    for hook in (fleet.a, fleet.b):
        hook.obey(fleet.request)
    ack = fleet.log.events[fleet.a.partition][-1]
    nonce = fleet.log.nonce(fleet.request)
    fleet.b.ack(fleet.request, nonce=nonce)
    if trick:
        fleet.log.events[fleet.a.partition].append(ack)
    else:
        fleet.a.ack(fleet.request, nonce=nonce)
    return shown(fleet)


@exhibit("old copy in another's name", PENDING, VerdictReason.FRONTIER_BEHIND)
def old_copy_in_anothers_name(trick: bool) -> bytes:
    """Somebody who can write to the topic says in a worker's name that an old block came back, to have it refuted."""
    fleet = Fleet()
    fleet.finish()
    if trick:
        fleet.a.store("acme", 1, admitted=3)
    return shown(fleet)


@exhibit("word of a bridge that was replaced", UNPROVABLE, VerdictReason.SIGNATURE_INVALID)
def word_of_a_bridge_that_was_replaced(trick: bool) -> bytes:
    """A bridge was replaced, and in its name comes once more an old block: from itself or from somebody else."""
    fleet = Fleet()
    heir = fleet.log.hook("w0", life="life-1").open(inventory=Inventory.PARTIAL)
    heir.held = dict(fleet.a.held)
    heir.snapshot()
    fleet.finish(heir, fleet.b)
    if trick:
        fleet.a.store("acme", 1, admitted=3)
    return shown(fleet)


@exhibit(
    "ack in another's name",
    PENDING,
    VerdictReason.SIGNATURE_INVALID,
    VerdictReason.FRONTIER_BEHIND,
    VerdictReason.NOT_EVALUATED,
)
def ack_in_anothers_name(trick: bool) -> bytes:
    """Somebody who can write to the topic continues a worker's stream with the ack that it never gave."""
    fleet = Fleet()
    fleet.b.obey(fleet.request)
    fleet.a.obey(fleet.request, signer=STRANGER if trick else None)
    nonce = fleet.log.nonce(fleet.request)
    fleet.b.ack(fleet.request, nonce=nonce)
    fleet.a.ack(fleet.request, nonce=nonce, signer=STRANGER if trick else None)
    return shown(fleet)


@exhibit("forged checksum", UNPROVABLE, VerdictReason.INVENTORY_DIVERGENCE)
def forged_checksum(trick: bool) -> bytes:
    """A hook says that it removed what it kept; the sum over what its pool still holds gives it away."""
    fleet = Fleet()
    fleet.a.remove("acme", fleet.old, fleet.request)
    if trick:
        fleet.a.held["gpu", "acme"] = {fleet.old[0]: 3}
    fleet.a.ack(fleet.request)
    fleet.b.obey(fleet.request)
    fleet.close()
    return shown(fleet)


@exhibit("ack taken back", UNPROVABLE, VerdictReason.DELETE_REFUSED, VerdictReason.NOT_EVALUATED)
def ack_taken_back(trick: bool) -> bytes:
    """A worker acks, answers the nonce, and refuses when nobody looks any more."""
    fleet = Fleet()
    fleet.finish()
    if trick:
        refused = Refused(request=fleet.request, reason="no_delete_path", cure="reset it")
        fleet.a.write(parts={"acme": [refused]})
    return shown(fleet)


@exhibit("laundering duplicate", REFUTED)
def laundering_duplicate(trick: bool) -> bytes:
    """A prompt is computed again beside its old block, which the hook then takes for the young one."""
    fleet = Fleet()
    if not trick:
        fleet.a.remove("acme", fleet.old[:1])
    fleet.a.store("acme", 1)
    fleet.a.obey(fleet.request, keep=fleet.old[:1])
    fleet.b.obey(fleet.request)
    fleet.close()
    return shown(fleet)


@exhibit("laundering snapshot", REFUTED)
def laundering_snapshot(trick: bool) -> bytes:
    """A snapshot lists old blocks with an admission of today."""
    fleet = Fleet()
    if trick:
        fleet.a.held["gpu", "acme"] = dict.fromkeys(fleet.old, fleet.request)
    fleet.a.snapshot()
    fleet.finish()
    return shown(fleet)


@exhibit("laundering onload", UNPROVABLE, VerdictReason.UNKNOWN_LINEAGE)
def laundering_onload(trick: bool) -> bytes:
    """An old block is moved to another tier, loaded again as if admitted today, and the old copy evicted."""
    log = AuditLog()
    log.say(HolderEnrolled(durable_id="disk-1", tier=Tier.DISK, owner="w0"), Role.ENROLMENT)
    hook = log.hook("w0").open(durable_id="disk-1")
    (old,) = hook.store("acme", 1, admitted=3)
    request = log.delete()
    away = TierChanged(from_holder="gpu", to_holder="disk", group=0, ids=(old,))
    hook.write(parts={"acme": [away]})
    del hook.held["gpu", "acme"][old]
    lineage = Lineage.ONLOAD if trick else Lineage.PREFILL
    hook.store("acme", 1, lineage=lineage)
    hook.write(parts={"acme": [BlockEvicted(holder="disk", group=0, ids=(old,))]})
    hook.ack(request)
    hook.ack(request, nonce=log.nonce(request))
    return bundle(log, request)


@exhibit("laundering through a hole", UNPROVABLE, VerdictReason.UNKNOWN_LINEAGE)
def laundering_through_a_hole(trick: bool) -> bytes:
    """The same snapshot behind a lost record, where they might have been computed anew."""
    fleet = Fleet()
    fleet.a.store("acme", 9, lost=True)
    if trick:
        fleet.a.held["gpu", "acme"] = dict.fromkeys(fleet.old, fleet.request)
    fleet.a.snapshot()
    fleet.finish()
    return shown(fleet)


def _started(age: int = 3) -> TransferStarted:
    ids = (block("acme", 5),)
    return TransferStarted(
        transfer="t1", source="x", holder="gpu", group=0, profile=0, ids=ids, admitted_after=age
    )


@exhibit("transfer between two acks", REFUTED)
def transfer_between_two_acks(trick: bool) -> bytes:
    """Old blocks land behind the first ack and are gone before the second."""
    fleet = Fleet()
    for hook in (fleet.a, fleet.b):
        hook.obey(fleet.request)
    fleet.a.write(parts={"acme": [_started()]})
    if trick:
        fleet.a.write(parts={"acme": [TransferCommitted(transfer="t1", digest=bytes(32))]})
        fleet.a.remove("acme", [block("acme", 5)])
    else:
        fleet.a.write(parts={"acme": [TransferRejected(transfer="t1", request=fleet.request)]})
    fleet.close()
    return shown(fleet)


@exhibit("transfer that a snapshot forgets", PENDING, VerdictReason.OPEN_TRANSFER)
def transfer_that_a_snapshot_forgets(trick: bool) -> bytes:
    """A transfer of old blocks is under way; the hook's snapshot doesn't know of it, nor its ack."""
    fleet = Fleet()
    fleet.a.write(parts={"acme": [_started()]})
    if not trick:
        fleet.a.write(parts={"acme": [TransferRejected(transfer="t1", request=fleet.request)]})
    fleet.a.snapshot()
    fleet.finish()
    return shown(fleet)


@exhibit("transfer behind another's end", PENDING, VerdictReason.OPEN_TRANSFER)
def transfer_behind_anothers_end(trick: bool) -> bytes:
    """Old blocks are on their way to where young ones of the same ids lie, and something else expires there."""
    fleet = Fleet()
    fleet.a.store("acme", 5)
    started = [_started()] if trick else []
    fleet.a.write(parts={"acme": started})
    expired = BlockEvicted(holder="gpu", group=0, ids=(block("acme", 6),), reason=EvictReason.EXPIRED)
    fleet.a.write(parts={"acme": [expired]})
    fleet.a.held["gpu", "acme"][block("acme", 5)] = 3
    fleet.finish()
    return shown(fleet)


@exhibit("transfer whose start was lost", PENDING, VerdictReason.SEQ_GAP)
def transfer_whose_start_was_lost(trick: bool) -> bytes:
    """The record that a transfer began with is kept out of the log; a snapshot mends the hole; then it lands."""
    fleet = Fleet()
    fleet.a.write(parts={"acme": [_started()]}, lost=True)
    fleet.a.snapshot()
    if trick:
        fleet.a.write(parts={"acme": [TransferCommitted(transfer="t1", digest=bytes(32))]})
    fleet.finish()
    return shown(fleet)
