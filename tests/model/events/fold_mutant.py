"""Faults put into the real fold, registry and view by patching them, each named and with the story that must
catch it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

import events.fold.apply as apply_module
import events.fold.residency as residency_module
import events.fold.snapshot as snapshot_module
import router_client.stream_view as stream_view_module
import router_client.view as view_module
from events.fold.change import Changes, Outcome
from events.fold.registry import Registry
from events.fold.residency import restate
from events.fold.state import CopyAttributes, HolderState, StreamState
from events.ids import CopyState, Inventory, StreamKey, StreamStatus
from events.model.batch import Header
from events.model.part import Cleared
from router_client.index import PrefixIndex

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Mutant:
    """`plot`: the story that catches it; `apply` puts it into the code under test."""

    name: str
    plot: str
    what: str
    apply: Callable[[Patch], None]
    repeats: int = 0
    strangers: int = 0


class Anything(bytes):
    """Equal to every digest."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = bytes.__hash__


def _without_fault(patch: Patch, named: Callable[[str], bool]) -> None:
    real = apply_module._fault

    def fault(state: StreamState, status: StreamStatus, why: str, *, sticky: bool = False) -> None:
        if not named(why):
            real(state, status, why, sticky=sticky)

    patch.setattr(apply_module, "_fault", fault)


def hole_ignored(patch: Patch) -> None:
    _without_fault(patch, lambda why: why.endswith("missing"))


def chain_unchecked(patch: Patch) -> None:
    real = apply_module.apply

    def apply(state: StreamState, batch: Any) -> Changes:
        if batch.header.seq == state.next_seq:
            state.prev = b""
        return real(state, batch)

    patch.setattr(view_module, "apply", apply)


def equivocation_ignored(patch: Patch) -> None:
    _without_fault(patch, lambda why: why == "equivocation")


def checksum_unchecked(patch: Patch) -> None:
    patch.setattr(apply_module, "_compare", lambda *_: None)


def garbage_skipped(patch: Patch) -> None:
    def skip(state: StreamState, seq: int, reason: str) -> Changes:
        if seq == state.next_seq:
            state.next_seq, state.prev = seq + 1, b""
        return Changes(state.key, Outcome.UNDECODABLE, reason)

    patch.setattr(view_module, "apply_undecodable", skip)


def epoch_ignored(patch: Patch) -> None:
    real = Registry._register

    def register(self: Registry, offset: int, body: Any, record: Any) -> str:
        before = self.current.get((body.worker, body.rank))
        why = real(self, offset, body, record)
        if before is not None:
            self.current[body.worker, body.rank] = before
        return why

    patch.setattr(Registry, "_register", register)


def exit_ignored(patch: Patch) -> None:
    patch.setattr(Registry, "ended", lambda *_: False)


def rank_dropped(patch: Patch) -> None:
    patch.setattr(
        Header, "stream", property(lambda self: StreamKey(self.worker, 0, self.epoch.replace("r", "e")))
    )


def clear_of_every_tier(patch: Patch) -> None:
    real = apply_module._clear

    def clear(state: StreamState, changes: Changes, event: Cleared) -> None:
        real(state, changes, event.model_copy(update={"holders": tuple(state.holders)}))

    patch.setattr(apply_module, "_clear", clear)


def clear_of_nothing(patch: Patch) -> None:
    patch.setattr(apply_module, "_clear", lambda *_: None)


def unknown_scope_trusted(patch: Patch) -> None:
    def lose(state: StreamState, changes: Changes, holder: HolderState) -> None:
        holder.inventory, holder.lost = Inventory.PARTIAL, True

    patch.setattr(apply_module, "_lose", lose)


def engine_loss_ignored(patch: Patch) -> None:
    patch.setattr(apply_module, "doubt", lambda *_: None)


def derived_snapshot_trusted(patch: Patch) -> None:
    patch.setattr(snapshot_module, "_keep_doubt", lambda *_: None)


def range_missing(patch: Patch) -> None:
    patch.setattr(apply_module, "complete", lambda *_: True)


def range_kept(patch: Patch) -> None:
    real = residency_module.drop

    def drop(state: StreamState, changes: Changes, where: Any, ids: Any, reason: str) -> None:
        if reason != "snapshot":
            real(state, changes, where, ids, reason)

    patch.setattr(snapshot_module, "drop", drop)


def uncertain_credited(patch: Patch) -> None:
    def keep(state: StreamState, changes: Changes, where: Any, ids: Any, to: CopyState) -> None:
        restate(state, changes, where, ids, CopyState.COMMITTED if to is CopyState.UNCERTAIN else to)

    patch.setattr(apply_module, "restate", keep)
    patch.setattr(snapshot_module, "restate", keep)


def pending_credited(patch: Patch) -> None:
    real = residency_module.put_chain

    def put(state: StreamState, changes: Changes, where: Any, a: CopyAttributes, *rest: Any) -> None:
        real(state, changes, where, a._replace(state=CopyState.COMMITTED), *rest)

    patch.setattr(apply_module, "put_chain", put)


def partial_write_committed(patch: Patch) -> None:
    patch.setattr(apply_module, "transfer_digest", lambda _: Anything())


def orphan_rerooted(patch: Patch) -> None:
    real = PrefixIndex.store

    def store(self: PrefixIndex, bits: int, ids: Sequence[bytes], parents: Sequence[bytes]) -> None:
        settled = [p if self.holds(p) & bits == bits or p in ids else bytes(16) for p in parents]
        real(self, bits, ids, settled)

    patch.setattr(PrefixIndex, "store", store)


def unrooted_scored(patch: Patch) -> None:
    def match(self: PrefixIndex, blocks: Sequence[bytes], live: int) -> dict[int, int]:
        out: dict[int, int] = {}
        for depth, block in enumerate(blocks, 1):
            mask = self.holds(block) & live
            while mask:
                bit = mask & -mask
                out[bit] = depth
                mask ^= bit
        return out

    patch.setattr(PrefixIndex, "match", match)


def eviction_ignored(patch: Patch) -> None:
    patch.setattr(stream_view_module.StreamView, "_evict", lambda *_: None)


def tier_change_copies(patch: Patch) -> None:
    real = residency_module.move

    def move(state: StreamState, changes: Changes, source: Any, target: Any, ids: Sequence[bytes]) -> None:
        kept = dict(state.copies.get(source, {}))
        real(state, changes, source, target, ids)
        for block in ids:
            if block in kept:
                parent, attributes = kept[block]
                residency_module.put(state, changes, source, attributes, [block], [parent])

    patch.setattr(apply_module, "move", move)


def duplicate_rejuvenates(patch: Patch) -> None:
    patch.setattr(residency_module, "older", lambda _, new: new)


def duplicate_applied(patch: Patch) -> None:
    real = apply_module._again

    def again(state: StreamState, batch: Any) -> Changes:
        changes = real(state, batch)
        if changes.outcome is Outcome.DUPLICATE and state.whole:
            apply_module._events(state, changes, batch)
        return changes

    patch.setattr(apply_module, "_again", again)


MUTANTS = (
    Mutant("epoch ignored", "eviction", "a later registration doesn't supersede", epoch_ignored),
    Mutant("attested exit ignored", "eviction", "an ended engine life is still credited", exit_ignored),
    Mutant("hole ignored", "repair", "a jump in seq is applied as if nothing was lost", hole_ignored),
    Mutant("chain unchecked", "twins", "`prev` isn't compared", chain_unchecked, strangers=1),
    Mutant(
        "equivocation ignored",
        "twins",
        "other bytes under the last seq are a repeat",
        equivocation_ignored,
        strangers=1,
    ),
    Mutant("checksum unchecked", "statement", "a statement isn't compared", checksum_unchecked),
    Mutant("garbage skipped", "repair", "an unreadable record counts as read", garbage_skipped, strangers=1),
    Mutant("rank dropped", "ranks", "the stream's key has no rank", rank_dropped),
    Mutant("clear of every tier", "clear", "a clear of one holder empties all", clear_of_every_tier),
    Mutant("clear ignored", "clear", "a clear empties nothing", clear_of_nothing),
    Mutant(
        "unknown scope trusted", "clear", "what a clear may have reached is credited", unknown_scope_trusted
    ),
    Mutant("engine loss ignored", "engine-loss", "copies stay certain", engine_loss_ignored),
    Mutant(
        "derived snapshot trusted", "engine-loss", "the hook's books undo a loss", derived_snapshot_trusted
    ),
    Mutant("missing range accepted", "half-snapshot", "half a snapshot makes whole", range_missing),
    Mutant("range adds only", "repair", "a range removes nothing", range_kept),
    Mutant("uncertain credited", "engine-loss", "doubt is dropped", uncertain_credited),
    Mutant("pending credited", "transfer", "a started transfer counts", pending_credited),
    Mutant("transfer digest unchecked", "transfer", "a partial write is committed", partial_write_committed),
    Mutant("orphan re-rooted", "orphan", "a block without its parent is a root", orphan_rerooted),
    Mutant("unrooted scored", "eviction", "a hole in mid-chain doesn't end the match", unrooted_scored),
    Mutant("eviction ignored by the view", "eviction", "the index only grows", eviction_ignored),
    Mutant("tier change copies", "eviction", "a move leaves the source", tier_change_copies),
    Mutant(
        "duplicate rejuvenates",
        "provenance",
        "a duplicate store raises `admitted_after`",
        duplicate_rejuvenates,
    ),
    Mutant(
        "redelivery applied", "eviction", "a repeated record is folded again", duplicate_applied, repeats=1
    ),
)
