"""When each block really was in a worker's cache, stamped as the engine mutates, and the questions on that."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

ClockNs = Callable[[], int]
Tell = Callable[[str, Sequence[object], Sequence[int]], None]
"""Is told (operation, arguments, the clock's readings for it), enough to do it again on another log."""
Spans = list[tuple[int, int]]
"""Closed stretches of time in order, as (first, last) instant."""


class ResidencyLog:
    """One tier of a worker rank through all its engine lives; one copy or ten, a block is there or not.

    Stamps strictly grow: where the clock stands still they are one nanosecond apart, so that every state
    between two mutations has an instant. A block of which one copy was removed and another is left is in
    doubt until it is stored again: from the wire alone nobody can know that it is still there, so no answer
    owes it.
    """

    def __init__(self, clock_ns: ClockNs) -> None:
        self.tell: Tell | None = None
        self.forgotten_ns = -1
        self._clock_ns = clock_ns
        self._last_ns = -1
        self._stamps: dict[int, list[int]] = {}
        self._doubts: dict[int, list[int]] = {}
        self._lives: list[tuple[str, int]] = []
        self._published_ns: list[int] = []
        self._made_through_ns: list[int] = []
        self._first_made_ns: dict[tuple[str, int], int] = {}

    @property
    def last_ns(self) -> int:
        """Stamp of the newest mutation; -1 before the first."""
        return self._last_ns

    @property
    def lives(self) -> Sequence[tuple[str, int]]:
        """(engine life, its first instant), oldest first."""
        return self._lives

    def stamp(self) -> int:
        """A new instant, later than all before."""
        now = self._clock_ns()
        self._last_ns = now = now if now > self._last_ns else self._last_ns + 1
        return now

    def begin_life(self, life: str) -> None:
        """A new engine life: whatever was resident is gone from this instant, which every basis must know."""
        now = self._clear()
        self._lives.append((life, now))
        self._published_ns.append(now)
        self._made_through_ns.append(now)
        if self.tell is not None:
            self.tell("life", (life,), (now,))

    def clear(self) -> int:
        """Everything is gone from this instant, which is returned."""
        now = self._clear()
        if self.tell is not None:
            self.tell("clear", (), (now,))
        return now

    def store(self, keys: Sequence[int]) -> int:
        """Each block in turn is resident from its own instant; the first of these is returned.

        A block that is resident already only takes an instant.
        """
        clock_ns, known, doubts = self._clock_ns, self._stamps, self._doubts
        last = self._last_ns
        first = -1
        told: list[int] | None = None if self.tell is None else []
        for key in keys:
            now = clock_ns()
            last = now if now > last else last + 1
            if first < 0:
                first = last
            if told is not None:
                told.append(last)
            stamps = known.get(key)
            if stamps is None:
                known[key] = [last]
            elif not len(stamps) & 1:
                stamps.append(last)
            elif key in doubts and len(doubts[key]) & 1:
                doubts[key].append(last)
        self._last_ns = last
        if self.tell is not None and told is not None:
            self.tell("store", tuple(keys), told)
        return first

    def doubt(self, key: int) -> int:
        """One copy of the block is gone from this instant, another is left."""
        now = self.stamp()
        stamps = self._doubts.setdefault(key, [])
        if not len(stamps) & 1:
            stamps.append(now)
        if self.tell is not None:
            self.tell("doubt", (key,), (now,))
        return now

    def drop(self, key: int) -> int:
        """The block's last copy is gone from this instant; no-op but for the stamp if it wasn't there."""
        now = self.stamp()
        for stamps in (self._stamps.get(key), self._doubts.get(key)):
            if stamps is not None and len(stamps) & 1:
                stamps.append(now)
        if self.tell is not None:
            self.tell("drop", (key,), (now,))
        return now

    def publish(self, life: str, engine_seq: int, first_made_ns: int) -> None:
        """Step `engine_seq` is on the wire from now; its first mutation was made at `first_made_ns`."""
        now = self._clock_ns()
        self._published_ns.append(now)
        self._made_through_ns.append(self._last_ns)
        self._first_made_ns[life, engine_seq] = first_made_ns
        if self.tell is not None:
            self.tell("publish", (life, engine_seq, first_made_ns), (now,))

    def forget_before(self, at_ns: int) -> None:
        """Lets go of what no question on `at_ns` or later needs. Idempotent."""
        self.forgotten_ns = max(self.forgotten_ns, at_ns)
        for table in (self._stamps, self._doubts):
            for key in list(table):
                stamps = table[key]
                gone = bisect_right(stamps, at_ns) & ~1
                if gone == len(stamps):
                    del table[key]
                elif gone:
                    del stamps[:gone]
        gone = max(0, bisect_right(self._published_ns, at_ns) - 1)
        del self._published_ns[:gone], self._made_through_ns[:gone]
        self._first_made_ns = {step: made for step, made in self._first_made_ns.items() if made >= at_ns}

    def dump(self) -> dict[str, Any]:
        """All but the steps' numbers, in JSON's types, for `load`."""
        return {
            "stamps": list(self._stamps.items()),
            "doubts": list(self._doubts.items()),
            "lives": self._lives,
            "published": self._published_ns,
            "through": self._made_through_ns,
            "last": self._last_ns,
            "forgotten": self.forgotten_ns,
        }

    def load(self, dumped: dict[str, Any]) -> None:
        """Becomes what `dump` gave. Raises KeyError, TypeError or ValueError."""
        self._stamps = {key: list(stamps) for key, stamps in dumped["stamps"]}
        self._doubts = {key: list(stamps) for key, stamps in dumped["doubts"]}
        self._lives = [(life, at) for life, at in dumped["lives"]]
        self._published_ns, self._made_through_ns = list(dumped["published"]), list(dumped["through"])
        self._last_ns, self.forgotten_ns = dumped["last"], dumped["forgotten"]

    def published_through_ns(self, at_ns: int) -> int:
        """The newest mutation on the wire at `at_ns`: what `basis: published` answers for."""
        index = bisect_right(self._published_ns, at_ns)
        return min(at_ns, self._made_through_ns[index - 1]) if index else -1

    def first_made_ns(self, life: str, engine_seq: int) -> int | None:
        """When the first mutation of that step was made; None for a step never published."""
        return self._first_made_ns.get((life, engine_seq))

    def changes_of(self, keys: Sequence[int], low_ns: int, high_ns: int) -> list[tuple[int, int, bool]]:
        """(stamp, position in `keys`, whether stored) of these blocks' mutations within [low, high]."""
        found: list[tuple[int, int, bool]] = []
        for at, key in enumerate(keys):
            stamps = self._stamps.get(key, [])
            first = bisect_right(stamps, low_ns - 1)
            last = bisect_right(stamps, high_ns)
            found.extend((stamps[index], at, not index & 1) for index in range(first, last))
        return sorted(found)

    def length_at(self, chain: Sequence[int], at_ns: int) -> int:
        """Leading blocks of `chain` that were all resident at that instant."""
        for index, key in enumerate(chain):
            if not bisect_right(self._stamps.get(key, ()), at_ns) & 1:
                return index
        return len(chain)

    def had_length(self, chain: Sequence[int], length: int, low_ns: int, high_ns: int) -> bool:
        """True if at some instant of [low, high] exactly `length` leading blocks were resident, or were so
        without those in doubt."""
        return bool(when_length([self], chain, length, [(low_ns, high_ns)]))

    def longest_within(self, chain: Sequence[int], low_ns: int, high_ns: int) -> int:
        """The most leading blocks that were resident together at any instant of [low, high]."""
        return longest_in([self], chain, [(low_ns, high_ns)])

    def when_there(self, key: int, spans: Spans) -> Spans:
        """The parts of `spans` in which the block was resident."""
        return _meet(spans, self._stamps.get(key), inside=True)

    def when_missing(self, key: int, spans: Spans) -> Spans:
        """The parts of `spans` in which the block was not resident, or in doubt."""
        missing = _meet(spans, self._stamps.get(key), inside=False)
        doubts = self._doubts.get(key)
        return _join(missing, _meet(spans, doubts, inside=True)) if doubts else missing

    def was_doubted(self, chain: Sequence[int], low_ns: int, high_ns: int) -> bool:
        """Whether any of the blocks was in doubt at some instant of [low, high]."""
        return any(_meet([(low_ns, high_ns)], self._doubts.get(key), inside=True) for key in chain)

    def _clear(self) -> int:
        now = self.stamp()
        for table in (self._stamps, self._doubts):
            for stamps in table.values():
                if len(stamps) & 1:
                    stamps.append(now)
        return now


def when_length(logs: Sequence[ResidencyLog], chain: Sequence[int], length: int, spans: Spans) -> Spans:
    """The parts of `spans` in which exactly `length` leading blocks were each in any of `logs`, or were so
    without those in doubt; empty for a length that the chain doesn't have."""
    if not 0 <= length <= len(chain) or (spans and spans[0][0] > spans[-1][1]):
        return []
    tables = [log._stamps for log in logs]
    for key in chain[:length]:
        for table in tables:
            stamps = table.get(key)
            if stamps and len(stamps) & 1 and stamps[-1] <= spans[0][0]:
                break  # There all the time, as most blocks are.
        else:
            spans = _there(logs, key, spans)
            if not spans:
                return []
    if length < len(chain):
        for log in logs:
            spans = log.when_missing(chain[length], spans)
            if not spans:
                return []
    return spans


def longest_in(logs: Sequence[ResidencyLog], chain: Sequence[int], spans: Spans) -> int:
    """The most leading blocks that were, together, each in any of `logs` at any instant of `spans`."""
    for index, key in enumerate(chain):
        spans = _there(logs, key, spans)
        if not spans:
            return index
    return len(chain)


def _there(logs: Sequence[ResidencyLog], key: int, spans: Spans) -> Spans:
    found = logs[0].when_there(key, spans)
    for log in logs[1:]:
        if found == spans:
            break
        found = _join(found, log.when_there(key, spans))
    return found


def _join(left: Spans, right: Spans) -> Spans:
    """The instants of either, in order and without overlap."""
    if not left or not right:
        return left or right
    out: Spans = []
    for low, high in sorted(left + right):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], high))
        else:
            out.append((low, high))
    return out


def _meet(spans: Spans, stamps: list[int] | None, *, inside: bool) -> Spans:
    """The closed parts of `spans` inside (or outside) the times that `stamps` begin and end in turn."""
    if not spans or not stamps:
        return [] if inside else spans
    if stamps[-1] <= spans[0][0]:
        # Nothing has changed since the first span began: by far the most frequent case.
        return spans if bool(len(stamps) & 1) == inside else []
    out: Spans = []
    for low, high in spans:
        index = bisect_right(stamps, low)
        at = low
        while at <= high:
            until = stamps[index] - 1 if index < len(stamps) else high
            if bool(index & 1) == inside:
                out.append((at, min(until, high)))
            at = until + 1
            index += 1
    return out
