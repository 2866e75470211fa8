"""What is wrong with the fleet's streams, counted: for metrics and the list of workers, never by name."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from events.ids import CANARY_WORKER, Alarm, Inventory, StreamStatus, Tier
from router_client.stream_view import StreamView
from router_client.view import LocalView


class Trouble(StrEnum):
    """What keeps a stream, or a part of what it says, from being gone by."""

    UNOPENED = "unopened"
    """Registered, and nothing read of it yet."""
    GAP = "gap"
    SHED = "shed"
    """Given up at this replica's memory bound."""
    QUARANTINED = "quarantined"
    DIVERGENT = "divergent"
    """Its own pulse contradicts what was read."""
    FORKED = "forked"
    """It obeys another `kv.control` than this replica read."""
    UNKNOWN_EVENTS = "unknown_events"
    """Its hook couldn't read something that the engine said, at any time in this epoch."""
    PARTIAL = "partial"
    """Some holder may hold more than is known, or a store isn't credited: absence isn't claimed."""
    UNPUBLISHED = "unpublished"
    """Its engine serves requests, and none of its events ever came: an alarm, not an idle engine."""
    ORPHANS = "orphans"
    """Some holder has copies without an id."""


@dataclass(frozen=True, slots=True)
class Census:
    """Of all current streams that are neither fenced nor closed. `streams`: how many have each trouble, all
    troubles named. `partial_holders`, `orphans`, `unassigned`: by tier, all tiers named."""

    streams: Counter[Trouble]
    partial_holders: Counter[Tier]
    orphans: Counter[Tier]
    unassigned: Counter[Tier]
    unknown_events: int = 0
    eligible: int = 0


def troubles_of(view: LocalView, stream: StreamView | None) -> tuple[Trouble, ...]:
    """What is wrong with one current stream; None: nothing was read of it."""
    if stream is None:
        return (Trouble.UNOPENED,)
    state = stream.state
    told = {
        Trouble.UNOPENED: state.status is StreamStatus.UNOPENED,
        Trouble.GAP: state.status is StreamStatus.GAP and not stream.shed,
        Trouble.SHED: stream.shed,
        Trouble.QUARANTINED: state.status is StreamStatus.QUARANTINED,
        Trouble.DIVERGENT: stream.divergent,
        Trouble.FORKED: stream.compare_control(view.registry),
        Trouble.UNKNOWN_EVENTS: state.unknown_events > 0,
        Trouble.PARTIAL: stream.partial,
        Trouble.UNPUBLISHED: stream.alarm is Alarm.UNPUBLISHED,
        Trouble.ORPHANS: any(h.orphans or h.unassigned for h in state.holders.values()),
    }
    return tuple(trouble for trouble, there in told.items() if there)


def census(view: LocalView) -> Census:
    """Counts the troubles now. O(streams and their holders)."""
    streams = Counter(dict.fromkeys(Trouble, 0))
    partial, orphans, unassigned = (Counter(dict.fromkeys(Tier, 0)) for _ in range(3))
    unknown = eligible = 0
    for key in view.registry.current.values():
        stream = view.streams.get(key)
        if (
            key.worker == CANARY_WORKER
            or key in view.registry.fenced
            or view.registry.ended(key)
            or (stream is not None and stream.state.status is StreamStatus.CLOSED)
        ):
            continue
        eligible += 1
        streams.update(troubles_of(view, stream))
        if stream is None:
            continue
        unknown += stream.state.unknown_events
        for holder in stream.state.holders.values():
            partial[holder.tier] += holder.inventory is Inventory.PARTIAL
            orphans[holder.tier] += holder.orphans
            unassigned[holder.tier] += holder.unassigned
    return Census(streams, partial, orphans, unassigned, unknown, eligible)
