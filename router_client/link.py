"""Durable holders that several streams reach: whose word counts, and who is credited by it.

A durable holder has one owner, the worker that `kv.control` enrols. Of the owner's streams that declare it the
lowest rank's is the owner's stream; every other stream that declares the same durable id can reach the store, and
is credited with what the owner's stream holds there, as long as that stream itself can be answered for. What it
reports of the store itself is folded and shown, and credited to nobody. Without an owner nobody is credited.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from events.fold.registry import Registry
from events.ids import StreamKey
from router_client.stream_view import Link, StreamView


class StoreReason(StrEnum):
    """Why a stream isn't credited with a durable store that it declares."""

    NO_OWNER = "no_owner"
    DESTROYED = "destroyed"
    OWNER_UNKNOWN = "owner_unknown"
    """The enrolled owner has never registered."""
    OWNER_GONE = "owner_gone"
    """Every rank of the owner is fenced, or its engine's end attested."""
    OWNER_UNDECLARED = "owner_undeclared"
    """No current stream of the owner that is read here declares the store."""
    OWNER_OUT_OF_BOUND = "owner_out_of_bound"
    """The owner's stream can't be answered for: stale, silent, in a gap, and so on."""
    NO_GROUPS = "no_groups"
    """The stream hasn't said yet in which groups it reaches the store: none of its engine's events was of it."""
    OTHER_LAYOUT = "other_layout"
    """The owner keeps the bytes in another shape, or doesn't declare the profile."""
    UNVERIFIED = "unverified_identity"
    """The stream's own profile is incomplete, so nobody else's bytes can be its."""


def uncredited(view: StreamView, holder: str, registry: Registry) -> StoreReason | None:
    """Why a durable holder of a stream counts for it in no answer; None if it counts, or isn't durable."""
    declared = view.state.holders[holder]
    if declared.durable_id is None or holder in view.owned:
        return None
    if declared.durable_id in registry.destroyed:
        return StoreReason.DESTROYED
    enrolled = registry.durable_owners.get(declared.durable_id)
    if enrolled is None:
        return StoreReason.NO_OWNER
    link = view.links.get(holder)
    if link is not None:
        if not declared.groups:
            return StoreReason.NO_GROUPS
        return None if link.tables.keys() >= declared.groups.keys() else StoreReason.OTHER_LAYOUT
    if registry.stands(enrolled.owner):
        return StoreReason.OWNER_UNDECLARED
    known = any(worker == enrolled.owner for worker, _ in registry.current)
    return StoreReason.OWNER_GONE if known else StoreReason.OWNER_UNKNOWN


def relink(streams: Mapping[StreamKey, StreamView], registry: Registry) -> None:
    """Makes every stream's durable holders follow the registry and the streams there are. O(streams that declare
    any); a stream is indexed anew only if what it is credited with really changed."""
    durable = [
        view
        for view in streams.values()
        if any(holder.durable_id is not None for holder in view.state.holders.values())
    ]
    owners: dict[str, tuple[StreamView, str]] = {}
    for view in sorted(durable, key=lambda one: one.key):
        for name, holder in view.state.holders.items():
            enrolled = registry.durable_owners.get(holder.durable_id or "")
            if (
                holder.durable_id is not None
                and holder.durable_id not in registry.destroyed
                and enrolled is not None
                and enrolled.owner == view.key.worker
                and registry.current.get((view.key.worker, view.key.rank)) == view.key
                and view.layout is not None
            ):
                owners.setdefault(holder.durable_id, (view, name))
    plan: list[tuple[StreamView, frozenset[str], dict[str, Link]]] = []
    for view in durable:
        owned: set[str] = set()
        links: dict[str, Link] = {}
        for name, holder in view.state.holders.items():
            found = owners.get(holder.durable_id or "")
            if found is None:
                continue
            owner, theirs = found
            if owner is view and theirs == name:
                owned.add(name)
            else:
                links[name] = Link(
                    owner,
                    owner.state,
                    theirs,
                    {
                        number: owner.state.table(theirs, number)
                        for number, group in owner.state.holders[theirs].groups.items()
                        if holder.groups.get(number) == group
                    },
                )
        plan.append((view, frozenset(owned), links))
    for view in streams.values():
        view.lent.clear()
    for view, names, links in plan:
        view.relink(names, links)
        for name, link in links.items():
            for number in link.tables:
                link.owner.lent.setdefault((link.holder, number), []).append((view, (name, number)))
