"""What the log itself contradicts: an end, a destruction or an ack after which somebody tells of copies."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from events.ids import GroupKind, Inventory, Role, Tier, VerdictReason
from events.model.control import ExitAttested, HolderDestroyed
from events.model.part import Cleared, Closed, Group, HolderDeclared, SnapshotBegin, TierChanged
from tests.support.audit_log import DOMAINS, AuditLog, HookStub
from tests.support.bundle import OPERATOR, bundle, first_says, second_says
from tests.support.deletion_case import PENDING, PROVEN, REFUTED, UNPROVABLE, Fleet, reasons
from tests.support.log import declared

Told = Callable[[HookStub], object]


def moves(hook: HookStub) -> object:
    ids = tuple(hook.held["gpu", "acme"])[:1]
    return hook.write(parts={"acme": [TierChanged(from_holder="gpu", to_holder="gpu", group=0, ids=ids)]})


TOLD: dict[str, Told] = {
    "stores": lambda hook: hook.store("acme", 7),
    "lists": lambda hook: hook.snapshot(),
    "counts in its pool": lambda hook: hook.write(parts={"acme": [hook.statement("acme")]}),
    "moves": moves,
}


def agreed(log: AuditLog, request: int) -> str:
    """The verdict of both verifiers, which must be one."""
    made = bundle(log, request)
    said = first_says(made, OPERATOR.public_key)
    assert second_says(made, OPERATOR.public_key) == said
    return said


def again(fleet: Fleet) -> HookStub:
    """Another bridge at the first worker's engine."""
    hook = fleet.log.hook("w0", epoch="w0-again")
    hook.write(hook.opening(inventory=Inventory.PARTIAL), parts={d: [declared()] for d in DOMAINS})
    return hook


@pytest.mark.parametrize("how", TOLD)
def test_a_life_that_tells_of_copies_behind_its_attested_exit_is_not_over(how: str) -> None:
    fleet = Fleet()
    fleet.log.attest(fleet.a)
    fleet.finish(fleet.b)
    assert agreed(fleet.log, fleet.request) == PROVEN
    TOLD[how](fleet.a)
    assert agreed(fleet.log, fleet.request) == PENDING
    body = ExitAttested(worker="w0", engine_life="life-1", attester="supervisor", evidence="now it has ended")
    fleet.log.say(body, Role.SUPERVISOR)
    assert agreed(fleet.log, fleet.request) == PROVEN


def test_another_bridge_of_a_life_that_is_said_to_be_over_lists_what_it_holds() -> None:
    fleet = Fleet()
    held = dict(fleet.a.held["gpu", "acme"])
    fleet.log.attest(fleet.a)
    again(fleet).snapshot({"acme": held})
    fleet.finish(fleet.b)
    assert agreed(fleet.log, fleet.request) == PENDING


def test_a_life_that_opens_another_epoch_behind_its_attested_exit_is_not_over() -> None:
    fleet = Fleet()
    fleet.log.attest(fleet.a)
    again(fleet)
    fleet.finish(fleet.b)
    assert agreed(fleet.log, fleet.request) == PENDING


@pytest.mark.parametrize("how", TOLD)
def test_a_life_that_tells_of_copies_behind_its_own_end_is_not_over(how: str) -> None:
    fleet = Fleet()
    fleet.a.write(Closed(engine_ended=True))
    TOLD[how](fleet.a)
    fleet.finish(fleet.b)
    assert agreed(fleet.log, fleet.request) == UNPROVABLE


@pytest.mark.parametrize("how", TOLD)
def test_the_newest_bridge_closes_with_the_engine_and_an_earlier_one_tells_on(how: str) -> None:
    fleet = Fleet()
    newest = again(fleet)
    newest.write(Closed(engine_ended=True))
    fleet.finish(fleet.b)
    assert agreed(fleet.log, fleet.request) == PROVEN
    TOLD[how](fleet.a)
    assert agreed(fleet.log, fleet.request) == UNPROVABLE


def test_what_a_hook_knew_before_it_installed_the_exit_says_nothing() -> None:
    fleet = Fleet()
    fleet.a.installed = fleet.request
    fleet.log.attest(fleet.a)
    fleet.a.store("acme", 7)
    fleet.finish(fleet.b)
    assert agreed(fleet.log, fleet.request) == PROVEN


def test_an_earlier_bridge_sees_something_old_come_back_behind_the_closing_nonce() -> None:
    fleet = Fleet()
    newest = again(fleet)
    newest.write(Cleared(holders=("gpu",)))
    fleet.finish(newest, fleet.b)
    fleet.a.store("acme", 7)  # younger
    assert agreed(fleet.log, fleet.request) == PROVEN
    fleet.a.store("acme", 8, admitted=3)
    assert agreed(fleet.log, fleet.request) == UNPROVABLE, "nobody has signed it yet"
    fleet.a.say_state()
    assert agreed(fleet.log, fleet.request) == REFUTED


def test_an_earlier_bridge_that_lags_before_the_nonce_refutes_nothing() -> None:
    fleet = Fleet()
    newest = again(fleet)
    newest.write(Cleared(holders=("gpu",)))
    fleet.a.installed = newest.epoch_no
    fleet.a.store("acme", 8, admitted=3)
    fleet.finish(newest, fleet.b)
    assert agreed(fleet.log, fleet.request) == PROVEN


def test_a_holder_that_is_declared_behind_the_last_ack_needs_another() -> None:
    fleet = Fleet()
    fleet.finish()
    group = Group(index=0, kind=GroupKind.FULL, block_tokens=16)
    more = HolderDeclared(name="cpu", tier=Tier.CPU, groups=(group,), inventory=Inventory.PARTIAL)
    opened = fleet.a.opening()
    opened = opened.model_copy(update={"holders": (*opened.holders, more)})
    fleet.a.write(SnapshotBegin(snapshot="s", opened=opened))
    assert agreed(fleet.log, fleet.request) == PENDING
    assert VerdictReason.INVENTORY_INCOMPLETE in reasons(fleet.verdict())


@pytest.mark.parametrize("born", ["before", "behind"])
def test_a_destroyed_store_that_is_used_again_is_not_destroyed(born: str) -> None:
    log = AuditLog()
    hook = log.hook("w0").open(durable_id="nvme0") if born == "before" else None
    log.say(HolderDestroyed(durable_id="nvme0", evidence="shredded"), Role.SUPERVISOR)
    request = log.delete()
    hook = hook or log.hook("w0").open(durable_id="nvme0")
    if born == "before":
        hook.ack(request)
        hook.ack(request, nonce=log.nonce(request))
        assert agreed(log, request) == PROVEN
        hook.store("acme", 1, holder="disk", admitted=None)
    hook.ack(request)
    hook.ack(request, nonce=log.nonce(request))
    verdict = log.verdict(request)
    assert VerdictReason.DURABLE_TIER_UNCOVERED in reasons(verdict)
    assert agreed(log, request) == verdict.kind
    log.say(HolderDestroyed(durable_id="nvme0", evidence="shredded too"), Role.SUPERVISOR)
    assert VerdictReason.DURABLE_TIER_UNCOVERED not in reasons(log.verdict(request))


def test_what_nobody_has_signed_refutes_nothing() -> None:
    """Whoever may write to the topic can continue a stream; no key covers that."""
    fleet = Fleet()
    fleet.finish()
    seq, prev = fleet.a.seq, fleet.a.prev
    fleet.a.store("acme", 1, admitted=3)
    assert agreed(fleet.log, fleet.request) == PENDING
    fleet.a.seq, fleet.a.prev = seq, prev
    fleet.a.held.clear()
    fleet.a.ack(fleet.request)
    assert agreed(fleet.log, fleet.request) == UNPROVABLE


def test_a_signature_behind_a_hole_covers_nothing_before_it() -> None:
    fleet = Fleet()
    fleet.finish()
    fleet.a.store("acme", 1, admitted=3)
    fleet.a.store("acme", 2)
    del fleet.log.events[fleet.a.partition][-1]
    fleet.a.ack(fleet.request)
    assert agreed(fleet.log, fleet.request) != REFUTED
    fleet = Fleet()
    fleet.finish()
    fleet.a.store("acme", 1, admitted=3)
    fleet.a.ack(fleet.request)
    assert agreed(fleet.log, fleet.request) == REFUTED
