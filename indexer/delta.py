"""What one batch of one partition changes in a store, collapsed: the last state of each copy, and the spans
of those that ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from events.fold.change import Changes, CopiesPut
from events.fold.state import CopyAttributes, StreamState
from events.ids import StreamKey, Tier

CopyPlace = tuple[str, int]
"""(holder, group) within one stream."""


class LiveCopy(NamedTuple):
    """A copy as the batch left it; `since` is where it began, unless the store already held it."""

    parent: bytes
    attributes: CopyAttributes
    since: int


class EndedCopy(NamedTuple):
    """The first end of a copy in a batch. `put` is what the batch itself had put before, if anything; the
    store knows the rest."""

    to: int
    reason: str
    request: int | None
    put: LiveCopy | None


class PassingCopy(NamedTuple):
    """A copy that began and ended inside the batch, after an earlier end of the same block."""

    block: bytes
    copy: LiveCopy
    to: int
    reason: str
    request: int | None


@dataclass(slots=True)
class CopyDelta:
    """Apply `ended` first, then `live`; `passing` is history only."""

    live: dict[bytes, LiveCopy] = field(default_factory=dict)
    ended: dict[bytes, EndedCopy] = field(default_factory=dict)
    passing: list[PassingCopy] = field(default_factory=list)


@dataclass(slots=True)
class StreamDelta:
    """One stream's changes; `state` is the fold's own object, to be read before the next batch is folded."""

    state: StreamState
    copies: dict[CopyPlace, CopyDelta] = field(default_factory=dict)
    usage: set[tuple[bytes, Tier]] = field(default_factory=set)
    holders: set[str] = field(default_factory=set)
    profiles: set[tuple[bytes, int]] = field(default_factory=set)
    standings: set[tuple[bytes, int]] = field(default_factory=set)

    def add(self, offset: int, changes: Changes) -> None:
        """Adds one record's changes, in the order of the log."""
        self.usage |= changes.usage
        self.holders |= changes.holders
        self.profiles |= changes.profiles
        self.standings |= changes.standings
        for change in changes.copies:
            place = (change.holder, change.group)
            delta = self.copies.get(place)
            if delta is None:
                delta = self.copies[place] = CopyDelta()
            live = delta.live
            if isinstance(change, CopiesPut):
                attributes = change.attributes
                for block, parent in zip(change.ids, change.parents, strict=True):
                    have = live.get(block)
                    live[block] = LiveCopy(parent, attributes, offset if have is None else have.since)
                continue
            for block in change.ids:
                have = live.pop(block, None)
                if block not in delta.ended:
                    delta.ended[block] = EndedCopy(offset, change.reason, change.request, have)
                elif have is not None:
                    delta.passing.append(PassingCopy(block, have, offset, change.reason, change.request))


class DeadLetter(NamedTuple):
    """A record that must go whole to `kv.dead` before the transaction that passes it."""

    offset: int
    reason: str
    key: bytes | None
    value: bytes
    signature: bytes | None


@dataclass(slots=True)
class Delta:
    """One transaction: records [first_offset, next_offset) of one partition."""

    first_offset: int
    next_offset: int
    last_record_sha256: bytes
    appended_ms: int
    streams: dict[StreamKey, StreamDelta] = field(default_factory=dict)
    dead: list[DeadLetter] = field(default_factory=list)
    resyncs: dict[StreamKey, str] = field(default_factory=dict)
    forgotten: list[StreamKey] = field(default_factory=list)
    """Streams of nobody whose rows all go, history included; none of them is in `streams`."""
    block_operations: int = 0

    def of(self, state: StreamState) -> StreamDelta:
        """The delta of one stream, made on first use."""
        delta = self.streams.get(state.key)
        if delta is None:
            delta = self.streams[state.key] = StreamDelta(state)
        return delta

    def forget(self, stream: StreamKey) -> None:
        """Takes the stream out of what is written, and out of the store."""
        self.streams.pop(stream, None)
        self.resyncs.pop(stream, None)
        self.forgotten.append(stream)
