"""What the control plane shows of streams, usage and orders, as plain documents."""

from __future__ import annotations

from typing import Any

from events.fold.quota import counts, durable_ids
from events.fold.registry_state import Deletion, Hold
from events.fold.state import HolderState
from events.ids import StreamKey, Tier, Unit
from indexer.service.trouble import troubles_of
from router_client.limit import MILLISECOND_NS
from router_client.link import uncredited
from router_client.stream_view import StreamView
from router_client.view import LocalView


def worker_document(view: LocalView, key: StreamKey, now_ns: int) -> dict[str, Any]:
    registration = view.registry.registrations[key]
    stream = view.streams.get(key)
    row: dict[str, Any] = {
        "worker": key.worker,
        "dp_rank": key.rank,
        "epoch": key.epoch,
        "epoch_no": registration.epoch_no,
        "endpoint": registration.body.endpoint,
        "model": registration.body.model,
        "partition": registration.body.partition,
        "fenced": view.registry.fenced.get(key),
        "exit_attested": view.registry.ended(key),
        "status": "unopened",
        "troubles": [trouble.value for trouble in troubles_of(view, stream)],
    }
    if stream is None:
        return row
    state = stream.state
    return row | {
        "status": _status(view, stream),
        "fault": state.fault or None,
        "unknown_events": state.unknown_events,
        "next_seq": state.next_seq,
        "announced_seq": stream.announced_seq,
        "copies": stream.copy_count,
        "as_of_ms_ago": {
            basis.value: (now_ns - at) / MILLISECOND_NS for basis, at in stream.as_of_ns.items()
        },
        "pulse_ms_ago": None if stream.pulse_ns is None else (now_ns - stream.pulse_ns) / MILLISECOND_NS,
        "engine": state.engine,
        "engine_life": state.engine_life,
        "load": stream.load.model_dump() if stream.load else None,
        "holders": [_holder(view, stream, holder) for holder in state.holders.values()],
    }


def _holder(view: LocalView, stream: StreamView, holder: HolderState) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": holder.name,
        "tier": holder.tier.value,
        "inventory": holder.inventory.value,
        "orphans": holder.orphans,
        "unassigned": holder.unassigned,
    }
    if holder.durable_id is None:
        return row
    enrolled = view.registry.durable_owners.get(holder.durable_id)
    why = uncredited(stream, holder.name, view.registry)
    return row | {
        "durable_id": holder.durable_id,
        "owner": enrolled.owner if enrolled is not None else None,
        "uncredited": why.value if why is not None else None,
    }


def _status(view: LocalView, stream: StreamView) -> str:
    if stream.compare_control(view.registry):
        return "forked"
    return "divergent" if stream.divergent else stream.state.status.value


def usage_document(view: LocalView, tenant: str) -> dict[str, Any]:
    tiers: dict[Tier, dict[str, int]] = {}
    by_domain: dict[str, dict[str, dict[str, int]]] = {}
    owned = {name for name, domain in view.registry.domains.items() if domain.tenant == tenant}
    for key, stream in view.streams.items():
        aliases = view.keyring.aliases(key.worker, key.rank, stream.state.epoch_no)
        for (alias, tier), held in stream.state.usage.items():
            domain = aliases.get(alias)
            if domain not in owned or domain is None:
                continue
            if not counts(view.registry, key, durable_ids(stream.state, tier)):
                continue
            for sums in (
                tiers.setdefault(tier, {"blocks": 0, "bytes": 0}),
                by_domain.setdefault(domain, {}).setdefault(tier.value, {"blocks": 0, "bytes": 0}),
            ):
                sums["blocks"] += held.blocks
                sums["bytes"] += held.bytes
    limits = [
        {"tier": tier.value, "unit": unit.value, "soft": limit.soft, "hard": limit.hard}
        for (name, tier, unit), limit in sorted(view.registry.limits.items())
        if name == tenant
    ]
    return {
        "tenant": tenant,
        "tiers": {tier.value: sums for tier, sums in sorted(tiers.items())},
        "domains": by_domain,
        "limits": limits,
        "quota_state": [_quota(view, tenant, tier, unit) for tier in Tier for unit in Unit
                        if (tenant, tier, unit) in view.quotas],
        "token": view.token(),
    }  # fmt: skip


def _quota(view: LocalView, tenant: str, tier: Tier, unit: Unit) -> dict[str, Any]:
    state = view.quotas[tenant, tier, unit]
    return {
        "tier": tier.value,
        "unit": unit.value,
        "level": state.level.value,
        "used": state.used,
        "soft": state.soft,
        "hard": state.hard,
    }


def hold_document(hold: Hold) -> dict[str, Any]:
    return {
        "hold": hold.body.hold,
        "number": hold.number,
        "domain": hold.body.domain,
        "tenant": hold.body.tenant,
        "placed_by": hold.header.key_scope or hold.header.signer,
        "since_ms": hold.header.written_ms,
        "reason": hold.body.reason,
    }


def order_document(order: Deletion) -> dict[str, Any]:
    return {
        "request": order.number,
        "kind": order.body.kind,
        "scope": order.scope.model_dump(mode="json"),
        "requester": order.body.requester,
        "reason": order.body.reason,
        "written_ms": order.header.written_ms,
        "record_sha256": order.record_sha256.hex(),
    }
