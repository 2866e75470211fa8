"""Exhibits: what is under way, or lies where somebody else answers for it."""

from __future__ import annotations

from events.chain import sha256
from events.identity import profile_digest
from events.ids import EvictReason, Inventory, Role, Tier, VerdictReason
from events.keyring import KeyRing
from events.model.control import HolderEnrolled, ProfileScope
from events.model.part import (
    BlockEvicted,
    Cleared,
    Orphans,
    TierChanged,
    TransferAborted,
    TransferStarted,
)
from tests.museum.exhibit import exhibit, shown
from tests.support.audit_log import DOMAINS, NEWEST, AuditLog, HookStub
from tests.support.bundle import bundle
from tests.support.deletion_case import PENDING, REFUTED, UNPROVABLE, Fleet
from tests.support.log import PROFILE, block, declared


def _started(age: int = 3, number: int = 5, domain: str = "acme") -> TransferStarted:
    ids = (block(domain, number),)
    return TransferStarted(
        transfer="t1", source="x", holder="gpu", group=0, profile=0, ids=ids, admitted_after=age
    )


@exhibit("transfer that a new bridge forgets", PENDING, VerdictReason.OPEN_TRANSFER)
def transfer_that_a_new_bridge_forgets(trick: bool) -> bytes:
    """A bridge is replaced while old blocks are on their way; the new one finds nothing of them in the pool yet."""
    fleet = Fleet()
    fleet.a.write(parts={"acme": [_started()]})
    heir = fleet.log.hook("w0", life="life-1").open(inventory=Inventory.PARTIAL)
    heir.held = dict(fleet.a.held)
    heir.snapshot()
    if not trick:
        heir.write(parts={"acme": [TransferAborted(transfer="t1")]})
    fleet.finish(heir, fleet.b)
    return shown(fleet)


@exhibit("transfer that a replaced bridge begins", PENDING, VerdictReason.OPEN_TRANSFER)
def transfer_that_a_replaced_bridge_begins(trick: bool) -> bytes:
    """A bridge is replaced and runs on; old blocks are on their way to it under a name that the new one has used."""
    fleet = Fleet()
    heir = fleet.log.hook("w0", life="life-1").open(inventory=Inventory.PARTIAL)
    heir.held = dict(fleet.a.held)
    heir.snapshot()
    over = TransferAborted(transfer="t1")
    heir.write(parts={"acme": [_started(number=6), over]})
    if trick:
        fleet.a.write(parts={"acme": [_started()]})
    fleet.finish(heir, fleet.b)
    return shown(fleet)


@exhibit("transfer ended by its namesake", PENDING, VerdictReason.OPEN_TRANSFER)
def transfer_ended_by_its_namesake(trick: bool) -> bytes:
    """Old blocks of two domains are on their way under one name, to where young ones lie; those of one domain end."""
    fleet = Fleet()
    for domain in ("acme", "acme/eu"):
        fleet.a.store(domain, 5)
    fleet.a.write(parts={"acme": [_started()], "acme/eu": [_started(domain="acme/eu")]})
    for domain in ("acme", "acme/eu"):
        fleet.a.remove(domain, [block(domain, 5)], fleet.request)
    over = TransferAborted(transfer="t1")
    fleet.a.write(parts={"acme/eu": [over]} if trick else {"acme": [over], "acme/eu": [over]})
    fleet.finish()
    return shown(fleet)


@exhibit("transfer behind its namesake", PENDING, VerdictReason.OPEN_TRANSFER)
def transfer_behind_its_namesake(trick: bool) -> bytes:
    """While old blocks are on their way to where young ones lie, a young transfer takes over their name."""
    fleet = Fleet()
    fleet.a.store("acme", 5)
    fleet.a.write(parts={"acme": [_started()] if trick else []})
    fleet.a.remove("acme", [block("acme", 5)], fleet.request)
    fleet.a.write(parts={"acme": [_started(fleet.request, 6)]})
    fleet.a.held["gpu", "acme"][block("acme", 6)] = fleet.request
    fleet.finish()
    return shown(fleet)


@exhibit(
    "transfer that only a snapshot names",
    PENDING,
    VerdictReason.OPEN_TRANSFER,
    VerdictReason.UNKNOWN_LINEAGE,
)
def transfer_that_only_a_snapshot_names(trick: bool) -> bytes:
    """An engine without connectors is reset; the record that a transfer began with is lost, and a snapshot lists it."""
    log = AuditLog()
    hook = log.hook("w0").open()
    request = log.delete()
    hook.write(Cleared(holders=("gpu",)))
    hook.ack(request)
    hook.write(lost=True)
    coming = {block("acme", 5): "t1"} if trick else {}
    hook.held["gpu", "acme"] = dict.fromkeys(coming)
    hook.snapshot(pending=coming)
    hook.ack(request)
    hook.ack(request, nonce=log.nonce(request))
    return bundle(log, request)


def _two_writers() -> tuple[AuditLog, HookStub, HookStub]:
    log = AuditLog()
    log.say(HolderEnrolled(durable_id="disk-1", tier=Tier.DISK, owner="w0"), Role.ENROLMENT)
    return log, log.hook("w0").open(durable_id="disk-1"), log.hook("w10").open(durable_id="disk-1")


@exhibit("store with another writer", PENDING, VerdictReason.DURABLE_TIER_UNCOVERED)
def store_with_another_writer(trick: bool) -> bytes:
    """A store's owner has listed it and acked; a worker that hasn't read the request yet moves an old block there."""
    log, owner, other = _two_writers()
    old = other.store("acme", 1, admitted=3)
    request = log.delete()
    owner.obey(request)
    other.installed = request - 1
    away = TierChanged(from_holder="gpu", to_holder="disk", group=0, ids=tuple(old))
    gone = BlockEvicted(holder="gpu", group=0, ids=tuple(old))
    other.write(parts={"acme": [away if trick else gone]})
    other.installed, other.held = NEWEST, {("disk", "acme"): {old[0]: 3}} if trick else {}
    other.ack(request)
    nonce = log.nonce(request)
    for hook in (owner, other):
        hook.ack(request, nonce=nonce)
    return bundle(log, request)


@exhibit("store with something in it that nobody can name", PENDING, VerdictReason.DURABLE_TIER_UNCOVERED)
def store_with_something_that_nobody_can_name(trick: bool) -> bytes:
    """A store's owner has listed it and acked; a worker puts blocks there of which it can't tell whose they are, and
    its engine ends."""
    log, owner, other = _two_writers()
    request = log.delete()
    owner.obey(request)
    other.write(Orphans(holder="disk", orphans=0, unassigned=1 if trick else 0))
    log.attest(other)
    owner.ack(request, nonce=log.nonce(request))
    return bundle(log, request)


@exhibit("store with something under a key that was replaced", UNPROVABLE, VerdictReason.SCOPE_UNDECIDABLE)
def store_with_something_under_a_replaced_key(trick: bool) -> bytes:
    """A worker moves an old block to a shared store under a domain's key that was replaced since, and its engine
    ends."""
    log, owner, other = _two_writers()
    other.keys = KeyRing({domain: sha256(b"replaced " + domain.encode()) for domain in DOMAINS})
    other.write(parts={"acme": [declared()]})
    old = other.store("acme", 1, admitted=3)
    request = log.delete(ProfileScope(profile=bytes.fromhex(profile_digest(PROFILE))))
    owner.obey(request, *DOMAINS)
    away = TierChanged(from_holder="gpu", to_holder="disk", group=0, ids=tuple(old))
    gone = BlockEvicted(holder="gpu", group=0, ids=tuple(old))
    other.write(parts={"acme": [away if trick else gone]})
    log.attest(other)
    owner.ack(request, *DOMAINS, nonce=log.nonce(request))
    return bundle(log, request)


@exhibit("block that comes from a shared store", REFUTED)
def block_that_comes_from_a_shared_store(trick: bool) -> bytes:
    """What a worker left to a store's owner to delete, it moves back behind its ack."""
    log, owner, other = _two_writers()
    old = other.store("acme", 1, admitted=3, holder="disk")
    request = log.delete()
    owner.obey(request)
    other.ack(request)
    nonce = log.nonce(request)
    owner.write(Cleared(holders=("disk",)))
    for hook in (owner, other):
        hook.ack(request, nonce=nonce)
    back = TierChanged(from_holder="disk", to_holder="gpu", group=0, ids=tuple(old))
    other.write(parts={"acme": [back] if trick else []}, signed=True)
    return bundle(log, request)


@exhibit("engine that was there before it was enrolled", PENDING, VerdictReason.FRONTIER_BEHIND)
def engine_that_was_there_before(trick: bool) -> bytes:
    """Behind the nonce another engine is enrolled, lists an old block, removes it and acks; before, it may have sent
    it to one that has answered already."""
    fleet = Fleet()
    fleet.finish()
    late = fleet.log.hook("w200").open(inventory=Inventory.PARTIAL if trick else Inventory.EMPTY)
    late.held["gpu", "acme"] = {block("acme", 1): 3} if trick else {}
    late.snapshot()
    late.obey(fleet.request)
    return shown(fleet)


@exhibit("ack taken back and given again", PENDING, VerdictReason.FRONTIER_BEHIND)
def ack_taken_back_and_given_again(trick: bool) -> bytes:
    """Behind the nonce a worker finds old blocks after all, and acks once they are gone; meanwhile it may have sent
    them to one that has answered already."""
    fleet = Fleet()
    for hook in (fleet.a, fleet.b):
        hook.obey(fleet.request)
    nonce = fleet.log.nonce(fleet.request)
    fleet.b.ack(fleet.request, nonce=nonce)
    if trick:
        fleet.a.ack(fleet.request, old_left=2)
    fleet.a.ack(fleet.request, nonce=nonce)
    return shown(fleet)


@exhibit("transfer ended by another start of its name", PENDING, VerdictReason.OPEN_TRANSFER)
def transfer_ended_by_another_start(trick: bool) -> bytes:
    """Old blocks are on their way under a name under which others start as well; one of the two is given up."""
    fleet = Fleet()
    fleet.a.write(parts={"acme": [_started()]})
    fleet.a.write(parts={"acme": [_started(number=6)]})
    fleet.a.remove("acme", [block("acme", 5), block("acme", 6)], fleet.request)
    over = TransferAborted(transfer="t1")
    fleet.a.write(parts={"acme": [over] if trick else [over, over]})
    fleet.finish()
    return shown(fleet)


@exhibit("transfer of which the rest expires", PENDING, VerdictReason.OPEN_TRANSFER)
def transfer_of_which_the_rest_expires(trick: bool) -> bytes:
    """Of two old blocks that are on their way, one is removed before it lands, and the wait for the other expires."""
    fleet = Fleet()
    both = (block("acme", 5), block("acme", 6))
    start = TransferStarted(
        transfer="t1", source="x", holder="gpu", group=0, profile=0, ids=both, admitted_after=3
    )
    fleet.a.write(parts={"acme": [start]})
    if trick:
        fleet.a.remove("acme", both[:1], fleet.request)
    rest = both[1:] if trick else both
    gone = BlockEvicted(holder="gpu", group=0, ids=rest, reason=EvictReason.EXPIRED)
    fleet.a.write(parts={"acme": [gone]})
    fleet.finish()
    return shown(fleet)


@exhibit("ack given again by a hook that lags", PENDING, VerdictReason.FRONTIER_BEHIND)
def ack_given_again_by_a_hook_that_lags(trick: bool) -> bytes:
    """The same by one that hasn't read the nonce yet when it acks again, which looks as if it had come before."""
    fleet = Fleet()
    for hook in (fleet.a, fleet.b):
        hook.obey(fleet.request)
    fleet.a.installed = fleet.request
    nonce = fleet.log.nonce(fleet.request)
    fleet.b.ack(fleet.request, nonce=nonce)
    if trick:
        fleet.a.ack(fleet.request, old_left=2)
    fleet.a.ack(fleet.request)
    fleet.a.installed = NEWEST
    fleet.a.ack(fleet.request, nonce=nonce)
    return shown(fleet)
