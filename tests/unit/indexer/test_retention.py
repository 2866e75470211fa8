"""Retention policies: one request at once and one a period, whoever asks and however often."""

from __future__ import annotations

from events.fold.registry import Registry
from events.ids import Role
from events.model.control import DeletionRequested, DomainCreated, DomainScope, PolicySet, TenantScope
from events.signing import verify
from indexer.retention import PRINCIPAL, due_requests
from tests.support.log import ControlLog

HOUR_MS = 3_600_000


def registry_of(control: ControlLog) -> Registry:
    registry = Registry(verify)
    for offset, (value, signature) in enumerate(control.records):
        registry.fold(offset, value, signature)
    return registry


def work(control: ControlLog, now_ms: int) -> list[DeletionRequested]:
    """What one controller does: all that is due, each under its key."""
    due = due_requests(registry_of(control), now_ms)
    for one in due:
        control.append(one.body, Role.CONTROL, idempotency_key=one.key, key_scope=PRINCIPAL)
    return [one.body for one in due]


def began(control: ControlLog) -> int:
    return next(iter(registry_of(control).policies.values())).header.written_ms


def test_a_policy_requests_at_once_and_once_every_period() -> None:
    control = ControlLog()
    control.append(DomainCreated(domain="a", tenant="t"), Role.CONTROL)
    control.append(PolicySet(domain="a", retain_s=3_600, prove_within_s=60), Role.CONTROL)
    start = began(control)
    (first,) = work(control, start)
    assert (first.scope, first.requester, first.deadline_s) == (DomainScope(domain="a"), "retention", 60)
    assert not work(control, start)
    assert not work(control, start + HOUR_MS - 1)
    assert not work(control, start - HOUR_MS), "a clock that runs backwards makes no other request"
    assert len(work(control, start + HOUR_MS)) == 1
    assert len(work(control, start + 9 * HOUR_MS)) == 1, "periods that nobody worked in are not made up for"
    assert len(registry_of(control).deletions) == 3


def test_two_controllers_make_one_request() -> None:
    control = ControlLog()
    control.append(PolicySet(tenant="t", retain_s=60), Role.CONTROL)
    due = due_requests(registry_of(control), began(control))
    for _ in range(2):
        control.append(due[0].body, Role.CONTROL, idempotency_key=due[0].key, key_scope=PRINCIPAL)
    registry = registry_of(control)
    assert [order.scope for order in registry.deletions.values()] == [TenantScope(tenant="t")]
    assert registry.ignored == {"repeated_idempotency_key": 1}


def test_a_policy_that_is_replaced_begins_anew_and_one_without_retention_asks_nothing() -> None:
    control = ControlLog()
    control.append(PolicySet(domain="a", retain_s=60), Role.CONTROL)
    assert len(work(control, began(control))) == 1
    control.append(PolicySet(domain="a", retain_s=120), Role.CONTROL)
    assert len(work(control, began(control))) == 1
    control.append(PolicySet(domain="a", prove_within_s=120), Role.CONTROL)
    assert not work(control, began(control) + 9 * HOUR_MS)


def test_a_domains_policy_goes_before_its_tenants() -> None:
    control = ControlLog()
    for domain in ("a", "b"):
        control.append(DomainCreated(domain=domain, tenant="t"), Role.CONTROL)
    control.append(PolicySet(tenant="t", prove_within_s=100), Role.CONTROL)
    control.append(PolicySet(domain="a", prove_within_s=50), Role.CONTROL)
    registry = registry_of(control)
    found = [registry.policy(domain) for domain in ("a", "b", "nowhere")]
    assert [None if one is None else one.body.prove_within_s for one in found] == [50, 100, None]
