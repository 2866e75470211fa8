"""Exhibits: what is said to be over, destroyed or revoked, and is not."""

from __future__ import annotations

from events.chain import sha256
from events.ids import Inventory, Lineage, Role, Tier, VerdictReason
from events.model.control import ExitAttested, Granted, HolderDestroyed, HolderEnrolled, Revoked
from events.model.part import Cleared, Closed
from events.signing import Signer
from tests.museum.exhibit import exhibit, shown
from tests.support.audit_log import AuditLog, HookStub
from tests.support.bundle import bundle
from tests.support.deletion_case import PENDING, UNPROVABLE, Fleet

STOLEN = Signer.from_seed(sha256(b"stolen"))


@exhibit(
    "order written again",
    PENDING,
    VerdictReason.SIGNATURE_INVALID,
    VerdictReason.FRONTIER_BEHIND,
    VerdictReason.NOT_EVALUATED,
)
def order_written_again(trick: bool) -> bytes:
    """A stolen key was revoked; whoever has it copies the operator's old grant behind that, byte for byte."""
    fleet = Fleet()
    granted = Granted(public_key=STOLEN.public_key, roles=(Role.SUPERVISOR,), label="supervisor")
    grant = fleet.log.say(granted, Role.OPERATOR)
    fleet.log.say(Revoked(public_key=STOLEN.public_key), Role.OPERATOR)
    if trick:
        fleet.log.control.records.append(fleet.log.control.records[grant])
    end = ExitAttested(worker="w0", engine_life="life-1", attester="supervisor", evidence="exit 0")
    fleet.log.say(end, Role.SUPERVISOR, **({"signer": STOLEN} if trick else {}))
    fleet.finish(fleet.b)
    return shown(fleet)


@exhibit(
    "engine attached to after its end", PENDING, VerdictReason.FRONTIER_BEHIND, VerdictReason.NOT_EVALUATED
)
def attached_to_after_its_end(trick: bool) -> bytes:
    """The supervisor attests an engine's end; then a new bridge attaches to it and lists what it holds."""
    fleet = Fleet()
    if trick:
        fleet.log.attest(fleet.a)
    upgraded = fleet.log.hook("w0", life="life-1").open(inventory=Inventory.PARTIAL)
    upgraded.held = dict(fleet.a.held)
    upgraded.snapshot()
    if not trick:
        fleet.log.attest(fleet.a)
    fleet.finish(fleet.b)
    return shown(fleet)


@exhibit(
    "engine looked into after its end", PENDING, VerdictReason.FRONTIER_BEHIND, VerdictReason.NOT_EVALUATED
)
def looked_into_after_its_end(trick: bool) -> bytes:
    """The supervisor attests an engine's end, and its own bridge inspects its pool behind that."""
    fleet = Fleet()
    fleet.log.attest(fleet.a)
    if trick:
        fleet.a.snapshot(source="pool")
    fleet.finish(fleet.b)
    return shown(fleet)


@exhibit("closed engine that lists", UNPROVABLE, VerdictReason.MISSING_ACK, VerdictReason.NOT_EVALUATED)
def closed_engine_that_lists(trick: bool) -> bytes:
    """A hook says that its engine has ended, and then what that engine holds."""
    fleet = Fleet()
    fleet.a.write(Closed(engine_ended=True))
    if trick:
        fleet.a.snapshot()
    fleet.finish(fleet.b)
    return shown(fleet)


@exhibit("store used after its destruction", UNPROVABLE, VerdictReason.DURABLE_TIER_UNCOVERED)
def store_used_after_its_destruction(trick: bool) -> bytes:
    """A disk is recorded as destroyed, and its owner goes on writing to one of that name."""
    fleet = Fleet()
    fleet.log.say(HolderEnrolled(durable_id="disk-1", tier=Tier.DISK, owner="w100"), Role.ENROLMENT)
    owner = fleet.log.hook("w100").open(durable_id="disk-1")
    owner.store("acme", 1, holder="disk")
    fleet.log.say(HolderDestroyed(durable_id="disk-1", evidence="shredded"), Role.SUPERVISOR)
    if trick:
        owner.store("acme", 2, holder="disk", admitted=3)
    fleet.log.attest(owner)
    fleet.finish()
    return shown(fleet)


@exhibit("tier that a new bridge forgets", PENDING, VerdictReason.INVENTORY_INCOMPLETE)
def tier_that_a_new_bridge_forgets(trick: bool) -> bytes:
    """A new bridge attaches to the living engine, set up without the host memory that holds old copies."""
    log = AuditLog()
    first = log.hook()
    first.open(second_tier=True)
    first.store("acme", 1, 2)
    first.store("acme", 1, 2, holder="cpu")
    request = log.delete()
    if trick:
        first = log.hook("w0", life="life-1").open(inventory=Inventory.PARTIAL)
        first.held = {("gpu", "acme"): dict(log.hooks[0].held["gpu", "acme"])}
        first.snapshot()
    first.obey(request)
    first.ack(request, nonce=log.nonce(request))
    return bundle(log, request)


@exhibit("connector that a new bridge forgets", UNPROVABLE, VerdictReason.UNKNOWN_LINEAGE)
def connector_that_a_new_bridge_forgets(trick: bool) -> bytes:
    """After a reset a block comes back of which nobody knows the age; the bridge has lost sight of the connector."""
    log = AuditLog()
    first = log.hook().open(connectors=("lmcache",) if trick else ())
    first.store("acme", 1, 2)
    request = log.delete()
    upgraded = log.hook("w0", life="life-1").open(inventory=Inventory.PARTIAL)
    return _reset_and_stored(log, upgraded, request, Lineage.PREFILL)


@exhibit("load behind a reset", UNPROVABLE, VerdictReason.UNKNOWN_LINEAGE)
def load_behind_a_reset(trick: bool) -> bytes:
    """After a reset a block is loaded from somewhere, by an engine that has declared no such place."""
    log = AuditLog()
    hook = log.hook().open()
    hook.store("acme", 1, 2)
    request = log.delete()
    return _reset_and_stored(log, hook, request, Lineage.ONLOAD if trick else Lineage.PREFILL)


def _reset_and_stored(log: AuditLog, hook: HookStub, request: int, lineage: Lineage) -> bytes:
    hook.write(Cleared(holders=("gpu",)))
    hook.held.clear()
    hook.store("acme", 1, admitted=None, lineage=lineage)
    hook.ack(request)
    hook.ack(request, nonce=log.nonce(request))
    return bundle(log, request)
