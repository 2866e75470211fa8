"""Exhibits: who is silent, dead, or somebody else."""

from __future__ import annotations

from events.chain import sha256
from events.ids import Inventory, Role, Tier, VerdictReason
from events.model.control import (
    DomainAdmitted,
    DomainCreated,
    ExitAttested,
    Fenced,
    Granted,
    HolderDestroyed,
    HolderEnrolled,
    PrefixScope,
)
from events.model.part import Ack, Closed, Refused, RequestStanding
from events.signing import Signer
from tests.museum.exhibit import STRANGER, exhibit, shown
from tests.support.audit_log import DOMAINS, AuditLog
from tests.support.bundle import bundle
from tests.support.deletion_case import PENDING, UNPROVABLE, Fleet
from tests.support.log import block, declared


@exhibit("zombie epoch", UNPROVABLE, VerdictReason.DEATH_BY_TIMEOUT_ONLY, VerdictReason.NOT_EVALUATED)
def zombie_epoch(trick: bool) -> bytes:
    """A worker is fenced for its silence and replaced, and its engine lives on with all that it held."""
    fleet = Fleet()
    fleet.log.fence(fleet.a, "timeout")
    heir = fleet.log.hook("w0", life="life-2").open()
    if not trick:
        fleet.log.attest(fleet.a)
    fleet.finish(heir, fleet.b)
    return shown(fleet)


@exhibit(
    "successor who answers for both", UNPROVABLE, VerdictReason.EPOCH_UNFENCED, VerdictReason.NOT_EVALUATED
)
def successor_who_answers(trick: bool) -> bytes:
    """Another engine registers under the worker's name; nobody says what became of the one before."""
    fleet = Fleet()
    heir = fleet.log.hook("w0", life="life-2").open()
    if not trick:
        fleet.log.attest(fleet.a)
    fleet.finish(heir, fleet.b)
    return shown(fleet)


@exhibit("copies in somebody else's domain", UNPROVABLE, VerdictReason.SHARED_DOMAIN)
def copies_in_somebody_elses_domain(trick: bool) -> bytes:
    """A tenant's blocks lie in a domain that it shares, where nobody can tell whose they are."""
    fleet = Fleet()
    fleet.log.say(DomainCreated(domain="commons", tenant="umbrella", shared=True), Role.CONTROL)
    if trick:
        fleet.log.say(DomainAdmitted(domain="commons", tenant="acme"), Role.CONTROL)
    fleet.finish()
    return shown(fleet)


@exhibit("blocks without ancestors", UNPROVABLE, VerdictReason.SCOPE_UNDECIDABLE)
def blocks_without_ancestors(trick: bool) -> bytes:
    """A block is stored below a parent that no record shows, so that no prefix seems to cover it."""
    fleet = Fleet()
    fleet.a.store("acme", "child", parent=block("acme", "hidden") if trick else None)
    request = fleet.log.delete(PrefixScope(domain="acme", ids=(fleet.old[0],)))
    for hook in (fleet.a, fleet.b):
        hook.remove("acme", fleet.old, request)
        hook.ack(request, "acme")
    nonce = fleet.log.nonce(request)
    for hook in (fleet.a, fleet.b):
        hook.ack(request, "acme", nonce=nonce)
    return bundle(fleet.log, request)


@exhibit("zombie after its end", PENDING, VerdictReason.FRONTIER_BEHIND, VerdictReason.NOT_EVALUATED)
def zombie_after_its_end(trick: bool) -> bytes:
    """The supervisor attests the end of a process of that name; the engine itself goes on storing."""
    fleet = Fleet()
    fleet.log.attest(fleet.a)
    if trick:
        fleet.a.store("acme", 7)
    fleet.finish(fleet.b)
    return shown(fleet)


@exhibit("dead engine's inventory", PENDING, VerdictReason.FRONTIER_BEHIND, VerdictReason.NOT_EVALUATED)
def dead_engines_inventory(trick: bool) -> bytes:
    """The end of an engine is attested, and afterwards another bridge attaches to it and lists what it holds."""
    fleet = Fleet()
    held = dict(fleet.a.held["gpu", "acme"])
    fleet.log.attest(fleet.a)
    if trick:
        again = fleet.log.hook("w0", epoch="w0-again")
        again.write(again.opening(inventory=Inventory.PARTIAL), parts={d: [declared()] for d in DOMAINS})
        again.snapshot({"acme": held})
    fleet.finish(fleet.b)
    return shown(fleet)


@exhibit("end that another bridge denies", UNPROVABLE, VerdictReason.MISSING_ACK, VerdictReason.NOT_EVALUATED)
def end_that_another_bridge_denies(trick: bool) -> bytes:
    """A new bridge says that the engine has ended; the one before is still there and counts what lies in its pool."""
    fleet = Fleet()
    again = fleet.log.hook("w0", epoch="w0-again")
    again.write(again.opening(inventory=Inventory.PARTIAL), parts={d: [declared()] for d in DOMAINS})
    again.write(Closed(engine_ended=True))
    fleet.finish(fleet.b)
    if trick:
        fleet.a.write(parts={"acme": [fleet.a.statement("acme")]})
    return shown(fleet)


@exhibit("destroyed store in use", UNPROVABLE, VerdictReason.DURABLE_TIER_UNCOVERED)
def destroyed_store_in_use(trick: bool) -> bytes:
    """A disk is attested to be shredded, and another takes its place under the same name."""
    log = AuditLog()
    log.say(HolderDestroyed(durable_id="disk-1", evidence="shredded"), Role.SUPERVISOR)
    hook = log.hook("w0").open(durable_id="disk-1" if trick else None)
    hook.store("acme", 1, holder="disk" if trick else "gpu")
    request = log.delete()
    if trick:
        hook.ack(request)
    else:
        hook.obey(request)
    hook.ack(request, nonce=log.nonce(request))
    return bundle(log, request)


@exhibit(
    "unsigned end",
    PENDING,
    VerdictReason.SIGNATURE_INVALID,
    VerdictReason.FRONTIER_BEHIND,
    VerdictReason.NOT_EVALUATED,
)
def unsigned_end(trick: bool) -> bytes:
    """Somebody who can write to the topic says in a worker's name that its engine has ended."""
    fleet = Fleet()
    fleet.a.write(Closed(engine_ended=True), signed=not trick)
    if trick:
        fleet.a.write()
    fleet.finish(fleet.b)
    return shown(fleet)


@exhibit("end of the reporting", UNPROVABLE, VerdictReason.MISSING_ACK, VerdictReason.NOT_EVALUATED)
def end_of_the_reporting(trick: bool) -> bytes:
    """A bridge that doesn't want to delete says in a signed record that it leaves; its engine serves on."""
    fleet = Fleet()
    fleet.a.write(Closed(engine_ended=not trick))
    fleet.finish(fleet.b)
    return shown(fleet)


@exhibit(
    "self-granted fence",
    PENDING,
    VerdictReason.SIGNATURE_INVALID,
    VerdictReason.FRONTIER_BEHIND,
    VerdictReason.NOT_EVALUATED,
)
def self_granted_fence(trick: bool) -> bytes:
    """A worker that doesn't want to delete fences itself and attests its own end, with its own key."""
    fleet = Fleet()
    end = ExitAttested(worker="w0", engine_life="life-1", attester="w0", evidence="believe me")
    fence = Fenced(worker="w0", rank=0, epoch=fleet.a.epoch, evidence="operator")
    more = {"signer": fleet.a.signer} if trick else {}
    fleet.log.say(fence, Role.CONTROL, **more)
    fleet.log.say(end, Role.SUPERVISOR, **more)
    fleet.finish(fleet.b)
    return shown(fleet)


def _bound_node(fleet: Fleet) -> Signer:
    """A node's own key, which may register and attest the end of the workers `node7-*`."""
    key = Signer.from_seed(sha256(b"node 7"))
    roles = (Role.ENROLMENT, Role.SUPERVISOR)
    fleet.log.say(
        Granted(public_key=key.public_key, roles=roles, label="node 7", workers=("node7-*",)), Role.OPERATOR
    )
    return key


@exhibit(
    "hook that registers as another worker",
    PENDING,
    VerdictReason.SIGNATURE_INVALID,
    VerdictReason.FRONTIER_BEHIND,
    VerdictReason.NOT_EVALUATED,
    VerdictReason.MEMBERSHIP_INCOMPLETE,
)
def hook_that_registers_as_another(trick: bool) -> bytes:
    """A node's hook registers an epoch of another node's worker, finds it empty, and acks in its name."""
    fleet = Fleet()
    key = _bound_node(fleet)
    heir = fleet.log.hook("w0" if trick else "node7-a", life="life-1" if trick else "life-7", signed_by=key)
    fleet.finish(heir.open(), fleet.b, *([] if trick else [fleet.a]))
    return shown(fleet)


@exhibit(
    "hook that attests another worker's end",
    PENDING,
    VerdictReason.SIGNATURE_INVALID,
    VerdictReason.FRONTIER_BEHIND,
    VerdictReason.NOT_EVALUATED,
)
def hook_that_attests_anothers_end(trick: bool) -> bytes:
    """A node's bridge, which may say when its own engines have died, says so of another node's."""
    fleet = Fleet()
    key = _bound_node(fleet)
    own = fleet.log.hook("node7-a", life="life-7", signed_by=key).open()
    fleet.log.attest(fleet.a if trick else own, signer=key)
    fleet.finish(fleet.b, *([own] if trick else [fleet.a]))
    return shown(fleet)


@exhibit("bridge upgraded in mid-deletion", PENDING, VerdictReason.INVENTORY_INCOMPLETE)
def bridge_upgraded(trick: bool) -> bytes:
    """A new bridge attaches to the living engine and says that it found it empty."""
    fleet = Fleet()
    upgraded = fleet.log.hook("w0", life="life-1")
    upgraded.open(inventory=Inventory.EMPTY if trick else Inventory.PARTIAL)
    if not trick:
        upgraded.held = fleet.a.held
        upgraded.snapshot()
    fleet.finish(upgraded, fleet.b)
    return shown(fleet)


@exhibit("bridge that makes young", UNPROVABLE, VerdictReason.UNKNOWN_LINEAGE)
def bridge_that_makes_young(trick: bool) -> bytes:
    """A new bridge lists what the engine holds, as if all of it had been admitted since."""
    fleet = Fleet()
    upgraded = fleet.log.hook("w0", life="life-1").open(inventory=Inventory.PARTIAL)
    upgraded.held = {("gpu", "acme"): dict.fromkeys(fleet.old, fleet.request if trick else 3)}
    upgraded.snapshot()
    fleet.finish(upgraded, fleet.b)
    return shown(fleet)


@exhibit("store handed to a new owner", UNPROVABLE, VerdictReason.DURABLE_TIER_UNCOVERED)
def store_handed_over(trick: bool) -> bytes:
    """A disk with old blocks gets another owner, who declares it empty and acks."""
    log = AuditLog()
    log.say(HolderEnrolled(durable_id="disk-1", tier=Tier.DISK, owner="w0"), Role.ENROLMENT)
    first = log.hook("w0").open(durable_id="disk-1")
    first.store("acme", 1, holder="disk")
    log.attest(first)
    log.say(HolderEnrolled(durable_id="disk-1", tier=Tier.DISK, owner="w10"), Role.ENROLMENT)
    second = log.hook("w10").open(**({"durable_id": "disk-1"} if trick else {}))
    request = log.delete()
    if not trick:
        log.say(HolderDestroyed(durable_id="disk-1", evidence="shredded"), Role.SUPERVISOR)
    second.obey(request)
    second.ack(request, nonce=log.nonce(request))
    if trick:
        log.attest(second)
    return bundle(log, request)


@exhibit(
    "unregistered worker", UNPROVABLE, VerdictReason.MEMBERSHIP_INCOMPLETE, VerdictReason.SIGNATURE_INVALID
)
def unregistered_worker(trick: bool) -> bytes:
    """A worker keeps its copies out of the count by never having been enrolled."""
    fleet = Fleet()
    stray = fleet.log.hook("w1000")
    if trick:
        value, _ = fleet.log.control.records[stray.epoch_no]
        fleet.log.control.records[stray.epoch_no] = (value, STRANGER.sign(value.split(b"\n")[0]))
    stray.open().store("acme", 1, admitted=3)
    fleet.finish(fleet.a, fleet.b, *([] if trick else [stray]))
    return shown(fleet)


@exhibit("refusal behind the end", PENDING, VerdictReason.DELETE_REFUSED, VerdictReason.NOT_EVALUATED)
def refusal_behind_the_end(trick: bool) -> bytes:
    """The supervisor attests an engine's end; its bridge has read that and refuses, as blocks are in use."""
    fleet = Fleet()
    fleet.log.attest(fleet.a)
    busy = Refused(request=fleet.request, reason="blocks_in_use", cure="drain it")
    if trick:
        fleet.a.write(parts={"acme": [busy], "acme/eu": [busy]})
    fleet.finish(fleet.b)
    return shown(fleet)


@exhibit(
    "ended engine that has some left", UNPROVABLE, VerdictReason.MISSING_ACK, VerdictReason.NOT_EVALUATED
)
def ended_engine_that_has_some_left(trick: bool) -> bytes:
    """A hook says that its engine has ended, and then that it has removed what it could and some are left."""
    fleet = Fleet()
    fleet.a.write(Closed(engine_ended=True))
    left = RequestStanding(request=fleet.request, removed=1, old_left=2)
    if trick:
        fleet.a.write(parts={"acme": [Ack(requests=(left,))]}, signed=True)
    fleet.finish(fleet.b)
    return shown(fleet)
