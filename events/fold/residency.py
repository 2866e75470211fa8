"""Putting and ending copies, with usage and checksums kept in step; used by `events.fold.apply` alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from events.chain import Checksum
from events.fold.change import Changes, CopiesDropped, CopiesPut
from events.fold.state import Copy, CopyAttributes, HolderGroup, StreamState, Usage, older
from events.ids import ROOT_PARENT, CopyState

TABLE_FLOOR = 65_536
TABLE_PER_CAPACITY = 4
STREAM_COPIES = 16_777_216
"""A (holder, group) never holds more copies than `TABLE_PER_CAPACITY` times the capacity that its stream has
declared, or `TABLE_FLOOR` if that is more; a stream never more than `STREAM_COPIES`. Constants of the fold: every
store meets a bound at the same record."""


def account(
    state: StreamState,
    changes: Changes,
    where: HolderGroup,
    attributes: CopyAttributes,
    ids: Sequence[bytes],
    sign: int,
) -> None:
    """Adds (`sign` 1) or takes away (-1) copies in usage and, unless they are invalid, in the checksum."""
    holder, group = where
    tier = state.holders[holder].tier
    usage = state.usage.setdefault((attributes.alias, tier), Usage())
    usage.blocks += sign * len(ids)
    profile = state.profiles.get((attributes.alias, attributes.profile))
    usage.bytes += sign * len(ids) * (profile.bytes_of(group) if profile else 0)
    changes.usage.add((attributes.alias, tier))
    if attributes.state is not CopyState.INVALID:
        _sum(state, where, attributes.alias, ids, sign)


def _sum(state: StreamState, where: HolderGroup, alias: bytes, ids: Sequence[bytes], sign: int) -> None:
    checksum = state.checksums.setdefault((alias, *where), Checksum())
    if sign > 0:
        checksum.add(ids)
    else:
        checksum.remove(ids)


def put_chain(
    state: StreamState,
    changes: Changes,
    where: HolderGroup,
    attributes: CopyAttributes,
    ids: Sequence[bytes],
    parent: bytes | None,
) -> None:
    """Stores ids that continue each other from `parent`."""
    before = ROOT_PARENT if parent is None else parent
    put(state, changes, where, attributes, ids, [before, *ids][: len(ids)])


def put(
    state: StreamState,
    changes: Changes,
    where: HolderGroup,
    attributes: CopyAttributes,
    ids: Sequence[bytes],
    parents: Sequence[bytes],
) -> None:
    """Stores copies; one already resident only ever gets more certain and older, never a newer provenance. New
    ones beyond a bound aren't kept, and counted in `changes.overflow`: the caller must quarantine the stream."""
    attributes = state.intern(attributes)
    table = state.table(*where)
    room = _room(state, where[0], table)
    if len(ids) > room:
        kept: set[bytes] = set()
        for block in ids:
            if block not in table and len(kept) < room:
                kept.add(block)
        pairs = [pair for pair in zip(ids, parents, strict=True) if pair[0] in table or pair[0] in kept]
        changes.overflow += len(ids) - len(pairs)
        ids, parents = [block for block, _ in pairs], [parent for _, parent in pairs]
    new_ids: list[bytes] = []
    new_parents: list[bytes] = []
    for block, parent in zip(ids, parents, strict=True):
        have = table.get(block)
        if have is None:
            table[block] = (parent, attributes)
            new_ids.append(block)
            new_parents.append(parent)
        elif have[1] is not attributes:
            _merge(state, changes, where, block, have, attributes)
    changes.block_operations += len(ids)
    if new_ids:
        spread = None if state.snapshot is None else state.snapshot.spreads.get(where)
        if spread is not None:
            spread.add(new_ids)
        account(state, changes, where, attributes, new_ids, 1)
        changes.copies.append(CopiesPut(*where, attributes, tuple(new_ids), tuple(new_parents)))


def _room(state: StreamState, holder: str, table: dict[bytes, Copy]) -> int:
    capacity = state.holders[holder].capacity_blocks
    bound = STREAM_COPIES if capacity is None else max(TABLE_FLOOR, TABLE_PER_CAPACITY * capacity)
    return max(0, min(bound - len(table), STREAM_COPIES - state.copy_count()))


def _merge(
    state: StreamState, changes: Changes, where: HolderGroup, block: bytes, have: Copy, new: CopyAttributes
) -> None:
    parent, old = have
    if old.alias != new.alias:
        return
    certain = CopyState.COMMITTED if CopyState.COMMITTED in (old.state, new.state) else old.state
    merged = state.intern(
        old._replace(
            state=certain,
            admitted_after=older(old.admitted_after, new.admitted_after),
            pinned=old.pinned or new.pinned,
        )
    )
    if merged is not old:
        if old.state is CopyState.INVALID and merged.state is not CopyState.INVALID:
            _sum(state, where, old.alias, (block,), 1)
        state.table(*where)[block] = (parent, merged)
        changes.copies.append(CopiesPut(*where, merged, (block,), (parent,)))


def drop(
    state: StreamState,
    changes: Changes,
    where: HolderGroup,
    ids: Iterable[bytes],
    reason: str,
    request: int | None = None,
) -> None:
    """Ends copies; ids that aren't resident are no-ops."""
    table = state.copies.get(where)
    if not table:
        return
    gone: list[bytes] = []
    by_attributes: dict[CopyAttributes, list[bytes]] = {}
    for block in ids:
        have = table.pop(block, None)
        if have is not None:
            gone.append(block)
            by_attributes.setdefault(have[1], []).append(block)
    if gone:
        for attributes, blocks in by_attributes.items():
            account(state, changes, where, attributes, blocks, -1)
            if attributes.transfer is not None and attributes.state is CopyState.PENDING:
                _end_transfer(state, where, attributes.transfer)
        changes.block_operations += len(gone)
        changes.copies.append(CopiesDropped(*where, tuple(gone), reason, request))


def _end_transfer(state: StreamState, where: HolderGroup, transfer: str) -> None:
    """A transfer of which nothing is pending any more, expired or removed, is over."""
    if state.transfers.get(transfer) == where and not landing(state, where, transfer):
        del state.transfers[transfer]


def landing(state: StreamState, where: HolderGroup, transfer: str) -> list[bytes]:
    """The copies that are pending under a transfer."""
    return [
        block
        for block, (_, attributes) in state.copies.get(where, {}).items()
        if attributes.transfer == transfer and attributes.state is CopyState.PENDING
    ]


def restate(
    state: StreamState, changes: Changes, where: HolderGroup, ids: Iterable[bytes], copy_state: CopyState
) -> None:
    """Gives resident copies another state, all other attributes kept."""
    table = state.copies.get(where, {})
    runs: dict[CopyAttributes, tuple[list[bytes], list[bytes]]] = {}
    for block in ids:
        have = table.get(block)
        if have is None or have[1].state is copy_state:
            continue
        attributes = state.intern(have[1]._replace(state=copy_state))
        if have[1].state is CopyState.INVALID:
            _sum(state, where, attributes.alias, (block,), 1)
        table[block] = (have[0], attributes)
        blocks, parents = runs.setdefault(attributes, ([], []))
        blocks.append(block)
        parents.append(have[0])
    for attributes, (blocks, parents) in runs.items():
        changes.copies.append(CopiesPut(*where, attributes, tuple(blocks), tuple(parents)))


def move(
    state: StreamState, changes: Changes, source: HolderGroup, target: HolderGroup, ids: Sequence[bytes]
) -> None:
    """Moves resident copies to another holder with their attributes; what isn't at the source is a no-op."""
    table = state.copies.get(source, {})
    runs: dict[CopyAttributes, tuple[list[bytes], list[bytes]]] = {}
    for block in ids:
        have = table.get(block)
        if have is not None:
            blocks, parents = runs.setdefault(have[1], ([], []))
            blocks.append(block)
            parents.append(have[0])
    drop(state, changes, source, ids, "tier_changed")
    for attributes, (blocks, parents) in runs.items():
        put(state, changes, target, attributes, blocks, parents)
