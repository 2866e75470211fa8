"""Events that are to become one record, and how to cut them in two when they are too large for it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from events.model.part import (
    Ack,
    BlockEvicted,
    BlockInvalidated,
    BlockStored,
    CopyRun,
    DomainEvent,
    SnapshotPart,
    SnapshotRange,
    StreamEvent,
    TierChanged,
)

DomainEvents = tuple[tuple[str, tuple[DomainEvent, ...]], ...]


@dataclass(frozen=True, slots=True)
class Draft:
    """Part 0 and the domains' parts of a record to be."""

    stream_events: tuple[StreamEvent, ...]
    parts: DomainEvents

    @classmethod
    def of(cls, stream_events: Sequence[StreamEvent], parts: Mapping[str, Sequence[DomainEvent]]) -> Draft:
        return cls(
            tuple(stream_events), tuple((name, tuple(events)) for name, events in parts.items() if events)
        )

    def events(self) -> Iterator[StreamEvent | DomainEvent]:
        """All events, the stream's own first."""
        yield from self.stream_events
        for _, events in self.parts:
            yield from events

    @property
    def ids(self) -> int:
        """Ids that its blocks and their parents need, but for a run's first parent: what makes a record large."""
        count = 0
        for _, events in self.parts:
            for event in events:
                match event:
                    case BlockStored() | BlockEvicted() | BlockInvalidated() | TierChanged():
                        count += len(event.ids)
                    case SnapshotPart():
                        count += sum(len(run.ids) + len(run.parents) for run in event.runs)
                    case _:
                        pass
        return count

    @property
    def kind(self) -> str:
        """Type of the first event, for errors."""
        return next((event.type for event in self.events()), "nothing")

    def halves(self) -> tuple[Draft, Draft] | None:
        """Two drafts that mean the same one after the other; None if there is nothing left to cut.

        A marked range is cut as a range: each half marks its own ids, as a record without a domain's part
        says that the domain is empty there.
        """
        mark = next((event for event in self.stream_events if isinstance(event, SnapshotRange)), None)
        if mark is not None:
            return self._range_halves(mark)
        total = len(self.stream_events) + sum(len(events) for _, events in self.parts)
        if total > 1:
            return self._cut(total // 2)
        if not self.parts:
            return None
        domain, events = self.parts[0]
        cut = _event_halves(events[0])
        return None if cut is None else (Draft((), ((domain, cut[:1]),)), Draft((), ((domain, cut[1:]),)))

    def _cut(self, at: int) -> tuple[Draft, Draft]:
        own = len(self.stream_events)
        if at <= own:
            return Draft(self.stream_events[:at], ()), Draft(self.stream_events[at:], self.parts)
        left: list[tuple[str, tuple[DomainEvent, ...]]] = []
        right: list[tuple[str, tuple[DomainEvent, ...]]] = []
        room = at - own
        for domain, events in self.parts:
            if room > 0:
                left.append((domain, events[:room]))
            if len(events) > room:
                right.append((domain, events[max(0, room) :]))
            room -= len(events)
        return Draft(self.stream_events, tuple(left)), Draft((), tuple(right))

    def _range_halves(self, mark: SnapshotRange) -> tuple[Draft, Draft] | None:
        low, high = int.from_bytes(mark.low, "big"), int.from_bytes(mark.high, "big")
        if low == high:
            return None
        middle = ((low + high) // 2).to_bytes(16, "big")
        after = ((low + high) // 2 + 1).to_bytes(16, "big")
        left: list[tuple[str, tuple[DomainEvent, ...]]] = []
        right: list[tuple[str, tuple[DomainEvent, ...]]] = []
        for domain, events in self.parts:
            lower, upper = _part_halves(events, middle)
            left.append((domain, lower))
            right.append((domain, upper))
        upper_mark = mark.model_copy(update={"low": after})
        rest = [event for event in self.stream_events if not isinstance(event, SnapshotRange)]
        before = tuple(event for event in rest if event.type not in ("snapshot_end",))
        behind = tuple(event for event in rest if event.type in ("snapshot_end",))
        return (
            Draft((*before, mark.model_copy(update={"high": middle})), _present(left)),
            Draft((upper_mark, *behind), _present(right)),
        )


def _present(parts: list[tuple[str, tuple[DomainEvent, ...]]]) -> DomainEvents:
    return tuple((domain, events) for domain, events in parts if events)


def _part_halves(
    events: tuple[DomainEvent, ...], middle: bytes
) -> tuple[tuple[DomainEvent, ...], tuple[DomainEvent, ...]]:
    """Copies up to `middle` and above it; whatever else the part says goes first."""
    left: list[DomainEvent] = []
    right: list[DomainEvent] = []
    for event in events:
        if not isinstance(event, SnapshotPart):
            left.append(event)
            continue
        lower = [run for run in (_select(run, middle, upper=False) for run in event.runs) if run is not None]
        upper = [run for run in (_select(run, middle, upper=True) for run in event.runs) if run is not None]
        if lower:
            left.append(SnapshotPart(runs=tuple(lower)))
        if upper:
            right.append(SnapshotPart(runs=tuple(upper)))
    return tuple(left), tuple(right)


def _select(run: CopyRun, middle: bytes, *, upper: bool) -> CopyRun | None:
    chosen = [at for at, block in enumerate(run.ids) if (block > middle) is upper]
    if not chosen:
        return None
    ids = tuple(run.ids[at] for at in chosen)
    return run.model_copy(update={"ids": ids, "parents": tuple(run.parents[at] for at in chosen)})


def _event_halves(event: DomainEvent) -> tuple[DomainEvent, DomainEvent] | None:
    match event:
        case BlockStored() if len(event.ids) > 1:
            at = len(event.ids) // 2
            return (
                event.model_copy(update={"ids": event.ids[:at]}),
                event.model_copy(update={"ids": event.ids[at:], "parent": event.ids[at - 1]}),
            )
        case BlockEvicted() | BlockInvalidated() | TierChanged() if len(event.ids) > 1:
            at = len(event.ids) // 2
            return (
                event.model_copy(update={"ids": event.ids[:at]}),
                event.model_copy(update={"ids": event.ids[at:]}),
            )
        case Ack() if len(event.requests) > 1:
            at = len(event.requests) // 2
            return (
                event.model_copy(update={"requests": event.requests[:at]}),
                event.model_copy(update={"requests": event.requests[at:]}),
            )
        case _:
            return None
