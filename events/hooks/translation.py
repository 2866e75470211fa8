"""One record's worth of events while it is being made: neighbours are joined, a clear takes back what it voids.

A reader applies part 0 first, then each part's events in order. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from events.ids import EvictReason, InvalidateReason, Lineage
from events.model.part import (
    BlockEvicted,
    BlockInvalidated,
    BlockStored,
    DomainEvent,
    ProfileDeclared,
    StreamEvent,
    UnknownEvents,
)

IDS_PER_EVENT = 8_000


@dataclass(slots=True)
class Translation:
    """What something means in the log: one record's part 0 and domain parts, either may be empty.

    `snapshot_due`: the stream had to restate itself; follow up with a whole snapshot. `epoch_due`: it can't,
    for a group is another than this epoch has declared: don't write this, open another epoch.
    """

    stream_events: list[StreamEvent] = field(default_factory=list)
    parts: dict[str, list[DomainEvent]] = field(default_factory=dict)
    snapshot_due: bool = False
    epoch_due: bool = False

    def __bool__(self) -> bool:
        return bool(self.stream_events or self.parts)


class StoreRun:
    """A `block_stored` in the making."""

    __slots__ = ("admitted_after", "group", "holder", "ids", "lineage", "number", "parent", "session")

    def __init__(
        self,
        holder: str,
        group: int,
        number: int,
        block: bytes,
        parent: bytes | None,
        lineage: Lineage,
        admitted_after: int | None,
        session: str | None,
    ) -> None:
        self.holder = holder
        self.group = group
        self.number = number
        self.ids = [block]
        self.parent = parent
        self.lineage = lineage
        self.admitted_after = admitted_after
        self.session = session

    def events(self) -> list[DomainEvent]:
        runs: list[DomainEvent] = []
        parent = self.parent
        for at in range(0, len(self.ids), IDS_PER_EVENT):
            ids = tuple(self.ids[at : at + IDS_PER_EVENT])
            runs.append(
                BlockStored(
                    holder=self.holder,
                    group=self.group,
                    profile=self.number,
                    ids=ids,
                    parent=parent,
                    lineage=self.lineage,
                    admitted_after=self.admitted_after,
                    session=self.session,
                )
            )
            parent = ids[-1]
        return runs


class EvictRun:
    """A `block_evicted` in the making."""

    __slots__ = ("certain", "group", "holder", "ids", "reason")

    def __init__(self, holder: str, group: int, block: bytes, reason: EvictReason, certain: bool) -> None:
        self.holder = holder
        self.group = group
        self.ids = [block]
        self.reason = reason
        self.certain = certain

    def events(self) -> list[DomainEvent]:
        return [
            BlockEvicted(
                holder=self.holder,
                group=self.group,
                ids=tuple(self.ids[at : at + IDS_PER_EVENT]),
                reason=self.reason,
                certain=self.certain,
            )
            for at in range(0, len(self.ids), IDS_PER_EVENT)
        ]


class Draft:
    """Collects what one batch means; `finish` makes the events."""

    __slots__ = ("_parts", "epoch_due", "restated", "stream_events")

    def __init__(self) -> None:
        self.stream_events: list[StreamEvent] = []
        self.restated = False
        self.epoch_due = False
        self._parts: dict[str, list[StoreRun | EvictRun | ProfileDeclared]] = {}

    def flag(self, kind: str, length: int) -> None:
        """Something of the engine could not be read or placed; `length` in bytes, 0 if nobody knows."""
        self.stream_events.append(UnknownEvents(kind=kind[:200], length=length))

    def declare(self, domain: str, declaration: ProfileDeclared) -> None:
        self._parts.setdefault(domain, []).append(declaration)

    def stored(
        self,
        domain: str,
        holder: str,
        group: int,
        number: int,
        block: bytes,
        parent: bytes | None,
        lineage: Lineage,
        admitted_after: int | None,
        session: str | None,
    ) -> StoreRun:
        """Begins a run; the caller may extend its `ids` as long as nothing else is added to the domain."""
        run = StoreRun(holder, group, number, block, parent, lineage, admitted_after, session)
        self._parts.setdefault(domain, []).append(run)
        return run

    def evicted(
        self, domain: str, holder: str, group: int, block: bytes, reason: EvictReason, certain: bool
    ) -> None:
        runs = self._parts.setdefault(domain, [])
        last = runs[-1] if runs else None
        if (
            type(last) is EvictRun
            and last.certain is certain
            and last.group == group
            and last.holder == holder
            and last.reason is reason
        ):
            last.ids.append(block)
        else:
            runs.append(EvictRun(holder, group, block, reason, certain))

    def take_back(self, holder: str) -> None:
        """The holder was emptied after what was collected: a reader empties it first, so nothing is left of it."""
        for domain, runs in self._parts.items():
            self._parts[domain] = [
                run for run in runs if isinstance(run, ProfileDeclared) or run.holder != holder
            ]

    def doubt_stored(self, holds: Callable[[str, int, bytes], bool]) -> None:
        """Records were lost after what was collected, while a reader doubts what it held before this record:
        what was stored since becomes uncertain too, as far as it is still held."""
        for domain, runs in list(self._parts.items()):
            for run in [run for run in runs if isinstance(run, StoreRun)]:
                for block in run.ids:
                    if holds(run.holder, run.group, block):
                        self.evicted(domain, run.holder, run.group, block, EvictReason.UNKNOWN, False)

    def finish(self) -> Translation:
        parts: dict[str, list[DomainEvent]] = {}
        for domain, runs in self._parts.items():
            events: list[DomainEvent] = []
            for run in runs:
                if isinstance(run, ProfileDeclared):
                    events.append(run)
                else:
                    events.extend(run.events())
            if events:
                parts[domain] = events
        return Translation(self.stream_events, parts, self.restated, self.epoch_due)


def invalidated(
    holder: str, group: int, ids: list[bytes], reason: InvalidateReason, request: int | None
) -> list[DomainEvent]:
    """`block_invalidated` events for these ids."""
    return [
        BlockInvalidated(
            holder=holder,
            group=group,
            ids=tuple(ids[at : at + IDS_PER_EVENT]),
            reason=reason,
            request=request,
        )
        for at in range(0, len(ids), IDS_PER_EVENT)
    ]
