"""Exhibits: what is said where nobody looks, by whom nobody asks, or of something that nobody has seen."""

from __future__ import annotations

from events.ids import GroupKind, Inventory, Lineage, Role, VerdictReason
from events.model.control import InventoryMember, InventoryStated, PrefixScope
from events.model.part import (
    BlockStored,
    Cleared,
    Closed,
    Group,
    ProfileRetired,
    SnapshotBegin,
    TierChanged,
)
from tests.museum.exhibit import exhibit, shown
from tests.support.audit_log import AuditLog
from tests.support.bundle import bundle
from tests.support.deletion_case import PENDING, REFUTED, UNPROVABLE, Fleet
from tests.support.log import block, declared


@exhibit("ancestor that a stranger names", UNPROVABLE, VerdictReason.SCOPE_UNDECIDABLE)
def ancestor_that_a_stranger_names(trick: bool) -> bytes:
    """Whose child a block is, nobody has told; somebody who can write to the topic says it in a dead worker's name."""
    log = AuditLog()
    hook, dead = log.hook("w0").open(), log.hook("w10", life="life-9").open()
    if not trick:
        dead.store("acme", 8, admitted=3, signed=True)
    hook.store("acme", 9, parent=block("acme", 8), admitted=3)
    request = log.delete(PrefixScope(domain="acme", ids=(block("acme", 1),)))
    log.attest(dead)
    if trick:
        dead.installed = request - 1
        dead.store("acme", 8, admitted=3)
    hook.ack(request, "acme")
    hook.ack(request, "acme", nonce=log.nonce(request))
    return bundle(log, request)


@exhibit("number from the future", PENDING, VerdictReason.SEQ_GAP)
def number_from_the_future(trick: bool) -> bytes:
    """Behind the last ack a stranger writes a number far ahead, below which the worker's own refutation isn't read."""
    fleet = Fleet()
    fleet.finish()
    if trick:
        seq, prev, fleet.a.seq = fleet.a.seq, fleet.a.prev, 1_000_000
        fleet.a.write(signed=False)
        fleet.a.seq, fleet.a.prev = seq, prev
        fleet.a.store("acme", 1, admitted=3)
    fleet.a.say_state()
    return shown(fleet)


@exhibit("return under a lost name", REFUTED)
def return_under_a_lost_name(trick: bool) -> bytes:
    """An old block comes back under a profile whose declaration the log doesn't hold."""
    fleet = Fleet()
    fleet.finish()
    fleet.a.write(parts={"acme": [declared(1)]}, lost=True)
    back = BlockStored(holder="gpu", group=0, profile=1, ids=(block("acme", 1),), admitted_after=3)
    fleet.a.write(parts={"acme": [back] if trick else []})
    fleet.a.say_state()
    return shown(fleet)


@exhibit("order of the future", UNPROVABLE, VerdictReason.UNKNOWN_LINEAGE)
def order_of_the_future(trick: bool) -> bytes:
    """An engine comes from another log, by whose numbers its old blocks were admitted behind any order of this one."""
    log = AuditLog()
    hook = log.hook("w0").open(inventory=Inventory.PARTIAL)
    request = log.delete()
    hook.held["gpu", "acme"] = {block("acme", 1): 5_000 if trick else request}
    hook.snapshot()
    hook.ack(request)
    hook.ack(request, nonce=log.nonce(request))
    return bundle(log, request)


@exhibit("snapshot of another engine", UNPROVABLE, VerdictReason.CHAIN_BREAK)
def snapshot_of_another_engine(trick: bool) -> bytes:
    """A bridge whose own engine's records were lost lists what another engine holds."""
    fleet = Fleet()
    fleet.a.store("acme", 9, lost=True)
    fleet.a.held.clear()
    life, fleet.a.life = fleet.a.life, "life-2" if trick else fleet.a.life
    fleet.a.snapshot()
    fleet.a.life = life
    fleet.finish()
    return shown(fleet)


@exhibit("group that turns up", PENDING, VerdictReason.INVENTORY_INCOMPLETE)
def group_that_turns_up(trick: bool) -> bytes:
    """A hook finds that its engine has another group of layers, and acks before it has listed what that holds."""
    fleet = Fleet()
    opening = fleet.a.opening()
    groups = (*opening.holders[0].groups, Group(index=1, kind=GroupKind.FULL, block_tokens=16))
    if trick:
        holder = opening.holders[0].model_copy(update={"groups": groups})
        opening = opening.model_copy(update={"holders": (holder,)})
    fleet.a.write(SnapshotBegin(snapshot="s", opened=opening))
    fleet.finish()
    return shown(fleet)


@exhibit("birth of a living engine", UNPROVABLE, VerdictReason.UNKNOWN_LINEAGE)
def birth_of_a_living_engine(trick: bool) -> bytes:
    """A new bridge says that it found the living engine empty, acks, and then lists blocks of unknown age."""
    log = AuditLog()
    hook = log.hook("w0").open()
    hook.store("acme", 1, admitted=None, lineage=Lineage.UNKNOWN)
    request = log.delete()
    heir = log.hook("w0").open()
    if not trick:
        heir.write(Cleared(holders=("gpu",)))
    heir.ack(request)
    heir.held["gpu", "acme"] = {block("acme", 1): None}
    heir.snapshot()
    heir.ack(request)
    heir.ack(request, nonce=log.nonce(request))
    return bundle(log, request)


@exhibit("birth behind the pruned part", PENDING, VerdictReason.INVENTORY_INCOMPLETE)
def birth_behind_the_pruned_part(trick: bool) -> bytes:
    """The same where retention has taken all that the bridge before has told."""
    log = AuditLog()
    hook = log.hook("w0").open()
    hook.store("acme", 1, admitted=3)
    request = log.delete()
    cut = len(log.events[hook.partition])
    heir = log.hook("w0").open()
    if not trick:
        heir.write(Cleared(holders=("gpu",)))
    heir.ack(request)
    heir.ack(request, nonce=log.nonce(request))
    log.starts[hook.partition] = cut
    return bundle(log, request)


@exhibit("end in the same breath", UNPROVABLE, VerdictReason.MISSING_ACK, VerdictReason.NOT_EVALUATED)
def end_in_the_same_breath(trick: bool) -> bytes:
    """A new bridge says that the engine has ended; the one before goes on storing, under the same newest order."""
    fleet = Fleet()
    heir = fleet.log.hook("w0", life="life-1").open(inventory=Inventory.PARTIAL)
    heir.write(Closed(engine_ended=True))
    if trick:
        fleet.a.store("acme", 7)
        fleet.a.say_state()
    fleet.finish(fleet.b)
    return shown(fleet)


@exhibit("end that another rank denies", PENDING, VerdictReason.FRONTIER_BEHIND, VerdictReason.NOT_EVALUATED)
def end_that_another_rank_denies(trick: bool) -> bytes:
    """The supervisor attests an engine's end; one of its ranks knows of that and goes on storing."""
    log = AuditLog()
    ranks = [log.hook("w0", rank=rank).open() for rank in (0, 1)]
    for hook in ranks:
        hook.store("acme", 1, admitted=3)
    request = log.delete()
    ranks[1].obey(request)
    log.attest(ranks[0])
    nonce = log.nonce(request)
    if trick:
        ranks[1].store("acme", 7)
        ranks[1].ack(request, nonce=nonce)
    return bundle(log, request)


@exhibit("end that is forgotten again", PENDING, VerdictReason.FRONTIER_BEHIND, VerdictReason.NOT_EVALUATED)
def end_that_is_forgotten_again(trick: bool) -> bytes:
    """A worker says that it has read the attestation of its end, and then goes on storing as if it hadn't."""
    fleet = Fleet()
    before = fleet.log.attest(fleet.a) - 1
    if trick:
        fleet.a.write(signed=True)
    fleet.a.installed = before
    fleet.a.store("acme", 7)
    fleet.a.say_state()
    fleet.finish(fleet.b)
    return shown(fleet)


@exhibit("epochs side by side", UNPROVABLE, VerdictReason.CHAIN_BREAK)
def epochs_side_by_side(trick: bool) -> bytes:
    """A new bridge writes to another partition, so that nothing says whether it spoke behind the one before."""
    fleet = Fleet()
    heir = fleet.log.hook("w0", life="life-1", partition=0 if trick else None).open(
        inventory=Inventory.PARTIAL
    )
    heir.held = dict(fleet.a.held)
    heir.snapshot()
    fleet.finish(heir, fleet.b)
    return shown(fleet)


@exhibit("move of what was lost", PENDING, VerdictReason.SEQ_GAP)
def move_of_what_was_lost(trick: bool) -> bytes:
    """The record that stored a block is lost; a snapshot mends the hole, and meanwhile the block moves from a tier
    that it is about to list to one that it has listed."""
    log = AuditLog()
    hook = log.hook("w0").open(second_tier=True)
    hook.store("acme", 1, admitted=3, holder="cpu", lost=True)
    request = log.delete()
    moved = TierChanged(from_holder="cpu", to_holder="gpu", group=0, ids=(block("acme", 1),))
    hook.held.clear()
    hook.snapshot(between=[moved] if trick else [])
    hook.ack(request)
    hook.ack(request, nonce=log.nonce(request))
    return bundle(log, request)


@exhibit("engine that nobody registered again", PENDING, VerdictReason.MEMBERSHIP_INCOMPLETE)
def engine_that_nobody_registered_again(trick: bool) -> bytes:
    """A worker's engine has ended, and runs again without a hook; the cluster still lists the worker."""
    fleet = Fleet()
    if trick:
        fleet.log.attest(fleet.a)
    members = tuple(InventoryMember(worker=hook.worker) for hook in (fleet.a, fleet.b))
    fleet.log.say(InventoryStated(source="k8s", members=members), Role.SUPERVISOR)
    if not trick:
        fleet.log.attest(fleet.a)
    fleet.finish(fleet.b)
    return shown(fleet)


@exhibit("retired profile that nobody counts", PENDING, VerdictReason.INVENTORY_INCOMPLETE)
def retired_profile_that_nobody_counts(trick: bool) -> bytes:
    """A hook retires the profile of old blocks, so that nobody finds them any more, and doesn't say that they are still
    in memory."""
    fleet = Fleet()
    if trick:
        del fleet.a.held["gpu", "acme"]
        fleet.a.write(parts={"acme": [ProfileRetired(profile=0)]})
    fleet.finish()
    return shown(fleet)
