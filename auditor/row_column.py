"""The columns of the index's rows: which an audit doesn't compare and why, and what a stream's fold makes of its own.

What the other topics make of theirs is in `auditor.row_control`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from auditor.row_control import RowOf
from auditor.row_stream import RowStream
from events.identity import profile_digest

Names = Callable[[str, int, int], Mapping[bytes, str]]
"""(worker, rank, epoch_no) -> the domains of the aliases whose keys are known here."""

SHARED = ("profile", "state", "lineage", "admitted_after", "pinned", "transfer")
"""Columns of `copy_attribute` in the order of `RowCopy.shared`."""

NOT_COMPARED: dict[str, dict[str, str]] = {
    "stream": {
        "id": "PostgreSQL's own number",
        "partition": "part of what the row is found by",
        "worker": "part of what the row is found by",
        "rank": "part of what the row is found by",
        "epoch": "part of what the row is found by",
        "fault": "words for people; the status is compared",
        "transfers": "work under way: its copies are compared, as pending",
        "snapshot": "work under way, until the status says how it ended",
        "updated_at": "PostgreSQL's own clock",
    },
    "holder": {"id": "PostgreSQL's own number", "stream_id": "the stream", "name": "the key"},
    "stream_alias": {"stream_id": "the stream", "alias": "the key"},
    "profile": {"stream_id": "the stream", "alias": "the key", "number": "the key"},
    "copy_attribute": {"id": "PostgreSQL's own number", "stream_id": "the stream"},
    "copy": {
        "holder_id": "the key",
        "group_index": "the key",
        "block": "the key",
        "attribute_id": "PostgreSQL's own number: the attributes are compared",
    },
    "tenant_usage": {"stream_id": "the stream", "alias": "the key", "tier": "the key"},
    "deletion_ack": {
        "stream_id": "the stream",
        "alias": "the key",
        "request": "the key",
        "updated_at": "PostgreSQL's own clock",
    },
    "domain": {"name": "the key"},
    "registration": {"epoch_no": "the key"},
    "deletion_request": {"number": "the key"},
    "durable_holder": {"durable_id": "the key"},
    "quota_limit": {"tenant": "the key", "tier": "the key", "unit": "the key"},
    "tenant_quota": {
        "tenant": "the key",
        "tier": "the key",
        "unit": "the key",
        "offset": "of the newest record, which compaction may have taken",
        "since": "the broker's clock when the level changed, which compaction may have taken",
    },
    "quota_change": {
        "offset": "the key",
        "changed_at": "the broker's clock",
    },
    "verdict": {"offset": "the key"},
    "checkpoint": {"offset": "the key"},
}
"""Columns that an audit doesn't compare, and why; a test holds the rest to be compared."""


def stream_columns(rows: RowStream) -> dict[str, Any]:
    """Of the stream's own row."""
    opening = rows.told
    return {
        "epoch_no": rows.epoch_no,
        "next_seq": rows.next_seq,
        "prev": rows.prev,
        "first_prev": rows.first_prev,
        "last_header": rows.prev,
        "status": rows.status.value,
        "sticky": rows.sticky,
        "draining": rows.draining,
        "engine_ended": rows.engine_ended,
        "engine_life": "" if opening is None else opening.engine_life,
        "engine": "" if opening is None else opening.engine,
        "engine_version": "" if opening is None else opening.engine_version,
        "removal": "none" if opening is None else opening.removal.value,
        "admission_known": opening is not None and opening.admission_known,
        "control_offset": rows.installed[0],
        "control_hash": rows.installed[1],
        "duplicates": rows.duplicates,
        "unknown_events": rows.unknown_events,
        "nonces": {alias.hex(): nonce for alias, nonce in rows.nonces.items()},
    }


def holder_rows(rows: RowStream) -> dict[tuple[Any, ...], RowOf]:
    """By name."""
    found: dict[tuple[Any, ...], RowOf] = {}
    for name, view in rows.holders.items():
        told_of = rows.holder_of(name)
        values = {
            "tier": told_of.tier.value,
            "capacity_blocks": told_of.capacity_blocks,
            "durable_id": told_of.durable_id,
            "groups": [[g.index, g.kind.value, g.block_tokens, g.window] for g in told_of.groups],
            "inventory": rows.inventory_of(name),
            "orphans": view.orphans,
            "unassigned": view.unassigned,
        }
        found[(name,)] = RowOf(rows.offset, values)
    return found


def profile_rows(rows: RowStream) -> dict[tuple[Any, ...], RowOf]:
    """By (alias, number)."""
    found: dict[tuple[Any, ...], RowOf] = {}
    for key, declared in rows.declarations.items():
        values = {
            "profile_id": profile_digest(declared.content),
            "content": declared.content.model_dump(mode="json"),
            "layout": declared.layout.model_dump(mode="json"),
            "block_bytes": list(declared.block_bytes),
            "missing": list(declared.content.missing()),
            "retired": key in rows.content.retired,
        }
        found[key] = RowOf(rows.declared_at.get(key, rows.offset), values)
    return found


def answer_rows(rows: RowStream) -> dict[tuple[Any, ...], RowOf]:
    """By (alias, request)."""
    return {
        key: RowOf(
            answer.offset,
            {
                "removed": answer.removed,
                "old_left": answer.old_left,
                "orphans": answer.orphans,
                "unassigned": answer.unassigned,
                "seq": answer.seq,
                "refused": answer.refused,
            },
        )
        for key, answer in rows.answers.items()
    }


def usage_rows(rows: RowStream) -> dict[tuple[Any, ...], RowOf]:
    """By (alias, tier); of nothing there may be a row or none."""
    return {
        key: RowOf(rows.offset, {"blocks": blocks, "bytes": bytes_})
        for key, (blocks, bytes_) in rows.usage().items()
        if blocks or bytes_
    }


def alias_rows(rows: RowStream, names: Names | None) -> dict[tuple[Any, ...], RowOf]:
    """By alias: every one that the stream has spoken under; its domain where the keys are here. The index names it
    once it has the keys itself."""
    seen = {alias for alias, _ in rows.declarations} | {alias for alias, _ in rows.answers}
    known = {} if names is None else names(rows.stream.worker, rows.stream.rank, rows.epoch_no)
    found: dict[tuple[Any, ...], RowOf] = {}
    for alias in seen:
        domain = known.get(alias)
        values = {} if domain is None else {"domain": frozenset({None, domain})}
        found[(alias,)] = RowOf(rows.offset, values)
    return found


def copy_columns(parent: bytes, since: int, shared: tuple[object, ...]) -> dict[str, Any]:
    """Of one copy, with those of its attribute, empty where the index has none."""
    named = dict(zip(SHARED, shared, strict=True)) if shared else dict.fromkeys(SHARED, "unknown")
    return {"parent": parent, "since_offset": since, **named}
