"""Control, audit and quota records as rows of their tables; plain dictionaries named like the columns."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import assert_never

from events.fold.registry import Registry
from events.fold.registry_state import Deletion, Domain, Registration
from events.model.audit import Checkpoint, QuotaState, VerdictGiven
from events.model.control import (
    DomainScope,
    IdsScope,
    LimitSet,
    PrefixScope,
    ProfileScope,
    Scope,
    SubjectScope,
    TenantScope,
)
from events.scope import scoped_ids
from indexer.row import Row

LAST_MS = 253_402_300_799_000


def moment(ms: int) -> str:
    """A writer's wall clock as ISO 8601, kept inside what a timestamp can hold."""
    return datetime.fromtimestamp(min(max(ms, 0), LAST_MS) / 1_000, UTC).isoformat()


def domain_row(domain: Domain) -> Row:
    return {
        "name": domain.name,
        "tenant": domain.tenant,
        "shared": domain.shared,
        "admitted": sorted(domain.admitted),
        "created_at_offset": domain.created_at,
    }


def registration_row(registry: Registry, registration: Registration, written_ms: int) -> Row:
    body = registration.body
    return {
        "epoch_no": registration.epoch_no,
        "worker": body.worker,
        "rank": body.rank,
        "epoch": body.epoch,
        "engine_life": body.engine_life,
        "partition": body.partition,
        "model": body.model,
        "superseded": registry.superseded(registration.stream),
        "fenced": registry.fenced.get(registration.stream),
        "exit_attested": (body.worker, body.engine_life) in registry.exits,
        "registered_at": moment(written_ms),
    }


def _scope_place(registry: Registry, scope: Scope) -> tuple[str | None, str | None]:
    """(tenant, domain) that a scope names; a profile's scope reaches all of them."""
    match scope:
        case TenantScope():
            return scope.tenant, None
        case DomainScope() | PrefixScope() | IdsScope():
            return registry.owner(scope.domain), scope.domain
        case SubjectScope():
            domain = f"{scope.domain}/{scope.subject}"
            return registry.owner(domain) or registry.owner(scope.domain), domain
        case ProfileScope():
            return None, None
        case _:
            assert_never(scope)


def deletion_row(registry: Registry, deletion: Deletion) -> Row:
    tenant, domain = _scope_place(registry, deletion.scope)
    return {
        "number": deletion.number,
        "kind": "deletion" if deletion.proves else "invalidation",
        "scope_type": deletion.scope.type,
        "scope": deletion.scope.model_dump(mode="json"),
        "tenant": tenant,
        "domain": domain,
        "scope_ids": sorted(scoped_ids(deletion.scope)),
        "requester": deletion.body.requester,
        "reason": deletion.body.reason,
        "deadline_s": getattr(deletion.body, "deadline_s", None),
        "requested_at": moment(deletion.header.written_ms),
        "record_sha256": deletion.record_sha256,
    }


def durable_rows(registry: Registry) -> list[Row]:
    """Every durable store that was ever enrolled or destroyed."""
    named = sorted(registry.durable_owners.keys() | registry.destroyed)
    owners = {name: registry.durable_owners.get(name) for name in named}
    return [
        {
            "durable_id": name,
            "tier": None if enrolled is None else enrolled.tier,
            "owner": None if enrolled is None else enrolled.owner,
            "destroyed": name in registry.destroyed,
        }
        for name, enrolled in owners.items()
    ]


def limit_row(offset: int, limit: LimitSet) -> Row:
    return {
        "tenant": limit.tenant,
        "tier": limit.tier,
        "unit": limit.unit,
        "soft": limit.soft,
        "hard": limit.hard,
        "set_at_offset": offset,
    }


def verdict_row(offset: int, signer: str, verdict: VerdictGiven) -> Row:
    return {
        "offset": offset,
        "request": verdict.request,
        "verdict": verdict.verdict,
        "reasons": [reason.model_dump(mode="json") for reason in verdict.reasons],
        "frontier": [position.model_dump(mode="json") for position in verdict.frontier],
        "bundle_sha256": verdict.bundle_sha256,
        "given_at": moment(verdict.given_ms),
        "signer": signer,
    }


def checkpoint_row(offset: int, signer: str, checkpoint: Checkpoint) -> Row:
    return {
        "offset": offset,
        "positions": [position.model_dump(mode="json") for position in checkpoint.positions],
        "control_hash": checkpoint.control_hash,
        "signer": signer,
    }


def quota_row(offset: int, quota: QuotaState, appended_ms: int) -> Row:
    return {
        "tenant": quota.tenant,
        "tier": quota.tier,
        "unit": quota.unit,
        "used": quota.used,
        "soft": quota.soft,
        "hard": quota.hard,
        "level": quota.level,
        "shares": [share.model_dump(mode="json") for share in quota.shares],
        "term": quota.term,
        "offset": offset,
        "since": moment(appended_ms),
    }
