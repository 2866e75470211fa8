"""An old record of kv.control that somebody appends again, signature and all, undoes nothing; and what was passed
over in another tenant's records breaks nobody's bundle."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from auditor.registry import ControlFold
from events.fold.registry import Registry
from events.ids import Role, Tier
from events.model.control import (
    ControlBody,
    DomainCreated,
    ExitAttested,
    Granted,
    HolderDestroyed,
    HolderEnrolled,
    HoldReleased,
    HoldSet,
    InventoryStated,
    Revoked,
)
from events.signing import Signer, key_id, verify
from tests.support.audit_log import AuditLog
from tests.support.bundle import OPERATOR, bundle, first_says, second_says
from tests.support.deletion_case import PENDING, PROVEN, Fleet

THIEF = Signer.from_seed(bytes(32))
GRANT = Granted(public_key=THIEF.public_key, roles=(Role.SUPERVISOR,), label="lost")
REVOKED = Revoked(public_key=THIEF.public_key)


def append_again(log: AuditLog, offset: int) -> None:
    """What whoever may write to the topic can do, without any key."""
    log.control.records.append(log.control.records[offset])


def folded(log: AuditLog) -> tuple[Registry, ControlFold]:
    registry, fold = Registry(verify), ControlFold(verify)
    for offset, (value, signature) in enumerate(log.control.records):
        _, why = registry.fold(offset, value, signature)
        assert fold.feed(offset, value, signature) == why
    return registry, fold


def agreed(fleet: Fleet) -> str:
    made = bundle(fleet.log, fleet.request)
    said = first_says(made, OPERATOR.public_key)
    assert second_says(made, OPERATOR.public_key) == said
    return said


def test_a_revoked_key_is_not_granted_again_by_its_old_grant() -> None:
    fleet = Fleet()
    granted = fleet.log.say(GRANT, Role.OPERATOR)
    revoked = fleet.log.say(REVOKED, Role.OPERATOR)
    append_again(fleet.log, granted)
    registry, fold = folded(fleet.log)
    assert registry.grants[key_id(THIEF.public_key)].revoked_at == revoked
    assert fold.grants[key_id(THIEF.public_key)].revoked_at == revoked
    assert [one.why for one in fold.ignored] == ["repeated_record"]
    fleet.log.say(
        ExitAttested(worker="w0", engine_life="life-1", attester="x", evidence="x"),
        Role.SUPERVISOR,
        signer=THIEF,
    )
    fleet.finish(fleet.b)
    assert agreed(fleet) != PROVEN


def test_an_old_attestation_does_not_end_a_life_that_went_on() -> None:
    fleet = Fleet()
    attested = fleet.log.attest(fleet.a)
    fleet.a.store("acme", 7)
    append_again(fleet.log, attested)
    fleet.finish(fleet.b)
    assert agreed(fleet) == PENDING


OLD: dict[str, tuple[ControlBody, Role, Callable[[ControlFold], object]]] = {
    "an owner": (
        HolderEnrolled(durable_id="d", tier=Tier.DISK, owner="a"),
        Role.ENROLMENT,
        lambda f: f.stores.owners,
    ),
    "a hold": (HoldSet(hold="h", tenant="acme", reason="r"), Role.CONTROL, lambda f: f.holds),
    "a release": (HoldReleased(hold="h"), Role.CONTROL, lambda f: f.holds),
    "a destruction": (
        HolderDestroyed(durable_id="d", evidence="e"),
        Role.SUPERVISOR,
        lambda f: f.stores.destroyed,
    ),
    "an inventory": (InventoryStated(source="s", members=()), Role.SUPERVISOR, lambda f: f.inventories),
}


@pytest.mark.parametrize("what", OLD)
def test_an_old_record_that_is_appended_again_changes_nothing(what: str) -> None:
    body, role, state = OLD[what]
    log = AuditLog()
    if isinstance(body, HoldReleased):
        log.say(HoldSet(hold="h", tenant="acme", reason="first"), Role.CONTROL)
    old = log.say(body, role)
    if isinstance(body, HoldReleased):
        log.say(HoldSet(hold="h", tenant="acme", reason="second"), Role.CONTROL)
    elif isinstance(body, HolderEnrolled):
        log.say(HolderEnrolled(durable_id="d", tier=Tier.DISK, owner="b"), Role.ENROLMENT)
    elif isinstance(body, HoldSet):
        log.say(HoldReleased(hold="h"), Role.CONTROL)
    before = state(folded(log)[1])
    append_again(log, old)
    assert state(folded(log)[1]) == before


@pytest.mark.parametrize(
    "body",
    [DomainCreated(domain="umbrella", tenant="umbrella"), HoldReleased(hold="nobody-placed-it")],
    ids=lambda body: body.kind,
)
def test_what_was_passed_over_of_another_tenant_breaks_no_bundle(body: ControlBody) -> None:
    fleet = Fleet()
    fleet.log.say(body, Role.CONTROL)
    fleet.finish()
    assert agreed(fleet) == PROVEN
    assert b"umbrella" not in bundle(fleet.log, fleet.request)
