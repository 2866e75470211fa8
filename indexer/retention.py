"""Retention policies make deletion requests by themselves: one at once, then one every period. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from events.fold.registry import Registry
from events.fold.registry_state import Policy
from events.model.control import DeletionRequested, DomainScope, TenantScope

PRINCIPAL = "retention"
"""Whose idempotency keys these are: one for each policy and period, whichever controller comes first."""


@dataclass(frozen=True, slots=True)
class DueRequest:
    """`key` is the same for every controller and every start, so that one period makes one request."""

    body: DeletionRequested
    key: str


def due_requests(registry: Registry, now_ms: int) -> list[DueRequest]:
    """What is to be requested now. The wall clock only says which period it is: a clock that is wrong makes a
    request early or late, never two, and periods that nobody worked in are not made up for."""
    found: list[DueRequest] = []
    for policy in registry.policies.values():
        retain_s = policy.body.retain_s
        if retain_s is None:
            continue
        period = max(0, now_ms - policy.header.written_ms) // (retain_s * 1_000)
        key = f"{policy.number}:{period}"
        if (PRINCIPAL, key) not in registry.idempotency:
            found.append(DueRequest(_request(policy, retain_s), key))
    return found


def _request(policy: Policy, retain_s: int) -> DeletionRequested:
    body = policy.body
    scope = DomainScope(domain=body.domain) if body.domain else TenantScope(tenant=body.tenant or "")
    return DeletionRequested(
        scope=scope,
        requester=PRINCIPAL,
        reason=f"policy {policy.number}: nothing is kept longer than {retain_s} s",
        deadline_s=body.prove_within_s,
    )
