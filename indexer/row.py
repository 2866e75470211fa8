"""Fold states as rows and back, for every store: plain dictionaries named like the columns of
`indexer.tables`, with Python values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from events.chain import Checksum
from events.fold.state import (
    CopyAttributes,
    GroupState,
    HolderState,
    ProfileState,
    SnapshotProgress,
    Standing,
    StreamState,
    Usage,
)
from events.ids import (
    Capability,
    CopyState,
    GroupKind,
    Inventory,
    Lineage,
    ProfileId,
    StreamKey,
    StreamStatus,
    Tier,
)
from events.model.profile import ContentProfile, LayoutProfile

Row = dict[str, Any]
CopyRow = tuple[str, int, bytes, bytes, CopyAttributes]
"""(holder, group, block, parent, attributes)."""

MAX_INTEGER = (1 << 63) - 1
LOST = "lost"
"""In the inventory's column: partial, and only the pool itself, or a clear, can end that."""

SCALARS = (
    "epoch_no",
    "next_seq",
    "prev",
    "first_prev",
    "last_header",
    "status",
    "fault",
    "sticky",
    "draining",
    "engine_ended",
    "engine_life",
    "engine",
    "engine_version",
    "removal",
    "admission_known",
    "control_offset",
    "control_hash",
    "duplicates",
)


def stream_row(state: StreamState, partition: int) -> Row:
    """Everything of a stream that isn't a row of its own."""
    row: Row = {name: getattr(state, name) for name in SCALARS}
    row.update(
        partition=partition,
        worker=state.key.worker,
        rank=state.key.rank,
        epoch=state.key.epoch,
        unknown_events=min(state.unknown_events, MAX_INTEGER),
        nonces={alias.hex(): nonce for alias, nonce in state.nonces.items()},
        transfers={transfer: list(where) for transfer, where in state.transfers.items()},
        snapshot=_snapshot(state.snapshot),
    )
    return row


def _snapshot(progress: SnapshotProgress | None) -> Row | None:
    if progress is None:
        return None
    ranges = [
        [holder, group, [[f"{low:032x}", f"{high:032x}"] for low, high in bounds]]
        for (holder, group), bounds in progress.ranges.items()
    ]
    return {"snapshot": progress.snapshot, "ranges": ranges, "inspected": progress.inspected}


def holder_row(holder: HolderState) -> Row:
    return {
        "name": holder.name,
        "tier": holder.tier,
        "capacity_blocks": holder.capacity_blocks,
        "durable_id": holder.durable_id,
        "groups": [[g.index, g.kind, g.block_tokens, g.window] for g in holder.groups.values()],
        "inventory": LOST if holder.lost else holder.inventory,
        "orphans": holder.orphans,
        "unassigned": holder.unassigned,
    }


def profile_row(profile: ProfileState) -> Row:
    return {
        "alias": profile.alias,
        "number": profile.number,
        "profile_id": profile.id,
        "content": profile.content.model_dump(mode="json"),
        "layout": profile.layout.model_dump(mode="json"),
        "block_bytes": list(profile.block_bytes),
        "missing": list(profile.missing),
        "retired": profile.retired,
    }


def standing_row(alias: bytes, request: int, standing: Standing) -> Row:
    return {
        "alias": alias,
        "request": request,
        "removed": standing.removed,
        "old_left": standing.old_left,
        "orphans": standing.orphans,
        "unassigned": standing.unassigned,
        "seq": standing.seq,
        "refused": standing.refused,
    }


def usage_row(alias: bytes, tier: Tier, usage: Usage) -> Row:
    return {"alias": alias, "tier": tier, "blocks": usage.blocks, "bytes": usage.bytes}


def attribute_row(attributes: CopyAttributes) -> Row:
    return dict(attributes._asdict())


def attributes_of(row: Mapping[str, Any]) -> CopyAttributes:
    return CopyAttributes(
        bytes(row["alias"]),
        row["profile"],
        CopyState(row["state"]),
        Lineage(row["lineage"]),
        row["admitted_after"],
        row["pinned"],
        row["transfer"],
    )


def build_state(
    row: Mapping[str, Any],
    *,
    holders: Iterable[Mapping[str, Any]],
    profiles: Iterable[Mapping[str, Any]],
    standings: Iterable[Mapping[str, Any]],
    usage: Iterable[Mapping[str, Any]],
) -> StreamState:
    """The state without its copies; `add_copies` adds them with their checksums."""
    state = StreamState(StreamKey(row["worker"], row["rank"], row["epoch"]), row["epoch_no"])
    for name in SCALARS:
        setattr(state, name, row[name])
    state.status, state.removal = StreamStatus(row["status"]), Capability(row["removal"])
    state.unknown_events = row["unknown_events"]
    state.nonces = {bytes.fromhex(alias): nonce for alias, nonce in row["nonces"].items()}
    state.transfers = {transfer: (where[0], where[1]) for transfer, where in row["transfers"].items()}
    if row["snapshot"] is not None:
        state.snapshot = SnapshotProgress(
            row["snapshot"]["snapshot"],
            {
                (holder, group): [(int(low, 16), int(high, 16)) for low, high in bounds]
                for holder, group, bounds in row["snapshot"]["ranges"]
            },
            row["snapshot"].get("inspected", False),
        )
    state.holders = {holder["name"]: _holder(holder) for holder in holders}
    for profile in profiles:
        alias = bytes(profile["alias"])
        state.profiles[alias, profile["number"]] = ProfileState(
            alias,
            profile["number"],
            ProfileId(profile["profile_id"]),
            ContentProfile.model_validate(profile["content"]),
            LayoutProfile.model_validate(profile["layout"]),
            tuple(profile["block_bytes"]),
            tuple(profile["missing"]),
            profile["retired"],
        )
    for standing in standings:
        state.standings[bytes(standing["alias"]), standing["request"]] = Standing(
            *(standing[name] for name in ("removed", "old_left", "orphans", "unassigned", "seq", "refused"))
        )
    for used in usage:
        state.usage[bytes(used["alias"]), Tier(used["tier"])] = Usage(used["blocks"], int(used["bytes"]))
    return state


def _holder(row: Mapping[str, Any]) -> HolderState:
    return HolderState(
        row["name"],
        Tier(row["tier"]),
        row["capacity_blocks"],
        row["durable_id"],
        {
            index: GroupState(index, GroupKind(kind), block_tokens, window)
            for index, kind, block_tokens, window in row["groups"]
        },
        Inventory.PARTIAL if row["inventory"] == LOST else Inventory(row["inventory"]),
        row["orphans"],
        row["unassigned"],
        row["inventory"] == LOST,
    )


def add_copies(state: StreamState, copies: Iterable[CopyRow]) -> None:
    """Puts resident copies back, interned, and their checksums; usage has rows of its own."""
    for holder, group, block, parent, attributes in copies:
        interned = state.intern(attributes)
        state.table(holder, group)[block] = (parent, interned)
        if interned.state is CopyState.INVALID:
            continue
        key = (interned.alias, holder, group)
        checksum = state.checksums.get(key)
        if checksum is None:
            checksum = state.checksums[key] = Checksum()
        checksum.count += 1
        checksum.total += int.from_bytes(block, "big")
    for checksum in state.checksums.values():
        checksum.total %= 1 << 128
