"""Bounds what streams that nobody has registered can cost one partition, whatever the log brings.

A stream that is provably nobody's is never folded: unregistered for good, or under a registered name in another
partition than the registration pins. One that may still be registered is folded like any other,
few at a time: beyond the bound the one met first is let go, with its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from events.errors import KvledgerError
from events.fold.registry import Registry
from events.fold.state import StreamState
from events.fold.stranger import foreign, misplaced
from events.ids import StreamKey


@dataclass(frozen=True, slots=True)
class StrangerLimits:
    """For each partition: `max_streams` and `max_entries` (copies, profiles, acks and transfers of all of
    them) held unregistered, `max_noted` foreign names remembered, `max_letters` dead letters for them while
    one process owns the partition."""

    max_streams: int = 256
    max_entries: int = 200_000
    max_noted: int = 1_024
    max_letters: int = 256


@dataclass(slots=True)
class StrangerCounts:
    """Of one process since its start: records of foreign streams that were passed, streams let go at a bound,
    streams forgotten because control has passed the registration they named, or pinned it elsewhere."""

    foreign_records: int = 0
    let_go: int = 0
    forgotten: int = 0


class UnreadControlError(KvledgerError):
    """Whose a record's stream is can be told once `kv.control` is read up to its end; nothing was folded."""

    def __init__(self, stream: StreamKey) -> None:
        super().__init__(f"{stream} is not registered as far as kv.control is read")
        self.stream = stream


@dataclass(slots=True)
class Strangers:
    """The unregistered streams of one partition. `sure`: the registry has been read up to an end that
    kv.control had after the records at hand were received."""

    registry: Registry
    limits: StrangerLimits
    counts: StrangerCounts
    sure: bool = True
    held: dict[StreamKey, int] = field(default_factory=dict)
    """By stream, in the order met, its epoch_no."""
    bury: bool = False
    """Whether the record that wasn't admitted last is to go to the dead letters."""
    _noted: dict[StreamKey, None] = field(default_factory=dict)
    _letters: int = 0

    def adopt(self, states: Iterable[StreamState], partition: int) -> None:
        """Takes over what a store held of the partition."""
        for state in states:
            if state.key not in self.registry.registrations or misplaced(self.registry, state.key, partition):
                self.held[state.key] = state.epoch_no

    def admit(self, stream: StreamKey, epoch_no: int, partition: int) -> bool:
        """Whether a stream met for the first time in the partition is folded. Raises UnreadControlError."""
        if stream in self.registry.registrations:
            if not misplaced(self.registry, stream, partition):
                return True
            self.bury = self._note(stream)
            return False
        if not self.sure:
            raise UnreadControlError(stream)
        if foreign(self.registry, stream, epoch_no):
            self.bury = self._note(stream)
            return False
        self.held[stream] = epoch_no
        return True

    def _note(self, stream: StreamKey) -> bool:
        self.counts.foreign_records += 1
        if stream in self._noted:
            return False
        self._noted[stream] = None
        if len(self._noted) > self.limits.max_noted:
            del self._noted[next(iter(self._noted))]
        self._letters += 1
        return self._letters <= self.limits.max_letters

    def overdue(self, states: Mapping[StreamKey, StreamState], partition: int) -> list[StreamKey]:
        """Takes out, and returns, the streams that must go now: those that control has passed or has pinned to
        another partition, and the first met beyond a bound. Those registered here since are nobody's concern
        here any more."""
        if not self.held:
            return []
        gone: list[StreamKey] = []
        for stream, epoch_no in list(self.held.items()):
            if misplaced(self.registry, stream, partition):
                del self.held[stream]
                self.counts.forgotten += 1
                gone.append(stream)
            elif stream in self.registry.registrations:
                del self.held[stream]
            elif self.sure and foreign(self.registry, stream, epoch_no):
                del self.held[stream]
                self.counts.forgotten += 1
                gone.append(stream)
        sizes = {stream: _entries(states[stream]) for stream in self.held}
        total = sum(sizes.values())
        while len(self.held) > self.limits.max_streams or total > self.limits.max_entries:
            stream = next(iter(self.held))
            del self.held[stream]
            total -= sizes[stream]
            self.counts.let_go += 1
            gone.append(stream)
        return gone


def _entries(state: StreamState) -> int:
    return (
        state.copy_count()
        + len(state.profiles)
        + len(state.standings)
        + len(state.transfers)
        + len(state.holders)
        + len(state.nonces)
        + len(state.interned)
    )
