"""Replacing ranges of a stream's inventory, and when all of them together make the stream whole again."""

from __future__ import annotations

from collections.abc import Sequence

from events.chain import MODULUS
from events.fold.change import Changes
from events.fold.residency import drop, put, restate
from events.fold.spread import Spread
from events.fold.state import Copy, CopyAttributes, HolderGroup, SnapshotProgress, StreamState
from events.ids import CopyState
from events.model.batch import DecodedPart
from events.model.part import SnapshotPart, SnapshotRange

SCANNED = 4_096
"""A table of so many copies is looked through for each range: no more ids than a record lists."""


def replace_range(
    state: StreamState, changes: Changes, mark: SnapshotRange, parts: Sequence[DecodedPart]
) -> None:
    """Makes one id range of one holder and group exactly what the record's domain parts list. A run whose
    profile nobody declared can't be kept, and the snapshot doesn't count as complete.

    Differences alone become changes, so a snapshot that confirms what is known writes nothing.
    """
    where = (mark.holder, mark.group)
    listed: dict[bytes, tuple[bytes, CopyAttributes]] = {}
    for part in parts:
        for event in part.events:
            if isinstance(event, SnapshotPart):
                for run in event.runs:
                    if (part.alias, run.profile) not in state.profiles:
                        state.snapshot = None
                        continue
                    attributes = state.intern(
                        CopyAttributes(
                            part.alias,
                            run.profile,
                            run.state,
                            run.lineage,
                            run.admitted_after,
                            run.pinned,
                            run.transfer,
                        )
                    )
                    for block, parent in zip(run.ids, run.parents, strict=True):
                        if mark.low <= block <= mark.high:
                            listed[block] = (parent, attributes)
    table = state.table(*where)
    if state.holders[mark.holder].lost and not (state.snapshot is not None and state.snapshot.inspected):
        _keep_doubt(state, table, listed)
    present = _present(state, where, table, mark)
    changed = [block for block in present if block in listed and table[block] != listed[block]]
    drop(state, changes, where, [block for block in present if block not in listed] + changed, "snapshot")
    _put_runs(state, changes, where, [block for block in listed if block not in table], listed)
    for _, attributes in listed.values():
        if attributes.transfer is not None and attributes.state is CopyState.PENDING:
            state.transfers[attributes.transfer] = where
    if state.snapshot is not None and state.snapshot.snapshot == mark.snapshot:
        bounds = (int.from_bytes(mark.low, "big"), int.from_bytes(mark.high, "big"))
        state.snapshot.ranges.setdefault(where, []).append(bounds)


def _present(
    state: StreamState, where: HolderGroup, table: dict[bytes, Copy], mark: SnapshotRange
) -> list[bytes]:
    """The range's ids that are resident. A snapshot of a large table has as many ranges as the table has thousands of
    copies, so each looks where its own are."""
    if mark.low == bytes(16) and mark.high == b"\xff" * 16:
        return list(table)
    if state.snapshot is None or len(table) <= SCANNED:
        return [block for block in table if mark.low <= block <= mark.high]
    spread = state.snapshot.spreads.get(where)
    if spread is None:
        spread = state.snapshot.spreads[where] = Spread(table)
    return [block for block in spread.between(mark.low, mark.high) if block in table]


def _keep_doubt(
    state: StreamState, table: dict[bytes, Copy], listed: dict[bytes, tuple[bytes, CopyAttributes]]
) -> None:
    """The hook's own books can't make certain again what the engine's lost records left in doubt."""
    for block, (parent, attributes) in listed.items():
        have = table.get(block)
        if (
            have is not None
            and have[1].state is CopyState.UNCERTAIN
            and attributes.state is CopyState.COMMITTED
        ):
            listed[block] = (parent, state.intern(attributes._replace(state=CopyState.UNCERTAIN)))


def _put_runs(
    state: StreamState,
    changes: Changes,
    where: HolderGroup,
    blocks: Sequence[bytes],
    listed: dict[bytes, tuple[bytes, CopyAttributes]],
) -> None:
    runs: dict[CopyAttributes, tuple[list[bytes], list[bytes]]] = {}
    for block in blocks:
        parent, attributes = listed[block]
        ids, parents = runs.setdefault(attributes, ([], []))
        ids.append(block)
        parents.append(parent)
    for attributes, (ids, parents) in runs.items():
        put(state, changes, where, attributes, ids, parents)


def complete(state: StreamState, progress: SnapshotProgress) -> bool:
    """Whether every declared holder and group was replaced over the whole id space, without a hole."""
    for name, holder in state.holders.items():
        for group in holder.groups:
            reached = 0
            for low, high in sorted(progress.ranges.get((name, group), [])):
                if low > reached:
                    return False
                reached = max(reached, high + 1)
            if reached != MODULUS:
                return False
    return True


def doubt(state: StreamState, changes: Changes, holder: str) -> None:
    """Every copy of the holder is uncertain until the pool is inspected or cleared."""
    for where, table in state.copies.items():
        if where[0] != holder:
            continue
        restate(state, changes, where, list(table), CopyState.UNCERTAIN)
