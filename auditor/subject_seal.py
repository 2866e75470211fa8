"""kv.subjects as auditors sealed it, run by run. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from events.model.audit import Segment, SubjectsSealed
from events.topic import SUBJECTS


@dataclass(frozen=True, slots=True)
class SubjectSeal:
    """`value` is the record of kv.audit that says so; `main_size` how many leaves the main log had by then."""

    main_size: int
    segment: Segment
    value: bytes


@dataclass(slots=True)
class SubjectSeals:
    """Each seal goes on where the one before ended; what lies between two was gone when the second was made. One that
    begins no later than all before it takes their place."""

    seals: list[SubjectSeal] = field(default_factory=list)
    _begins: int = 0

    @property
    def reach(self) -> int:
        """The offset behind what is sealed."""
        return self.seals[-1].segment.next if self.seals else 0

    @property
    def main_size(self) -> int:
        """At which size of the main log the newest seal was made; 0: there is none."""
        return self.seals[-1].main_size if self.seals else 0

    def take(self, sealed: SubjectsSealed, value: bytes) -> bool:
        """Whether it counts: of two for one size the first does, and none that ends before what is sealed already."""
        segment = sealed.segment
        if (segment.topic, segment.partition) != (SUBJECTS.name, 0) or segment.next < segment.first:
            return False
        if sealed.main_size <= self.main_size or segment.next < self.reach:
            return False
        if self.seals and self._begins < segment.first < self.reach:
            return False
        if not self.seals or segment.first <= self._begins:
            self._begins = segment.first
        self.seals.append(SubjectSeal(sealed.main_size, segment, value))
        return True

    def up_to(self, main_size: int) -> tuple[SubjectSeal, ...]:
        """Seals that together say what the topic held when the main log had that many leaves, oldest first and none
        over the other's offsets; the last is the newest, though nothing may have come since the one before it."""
        found = [one for one in self.seals if one.main_size <= main_size]
        needed = found[-1:]
        for one in reversed(found[:-1]):
            segment = one.segment
            if segment.first < segment.next <= needed[-1].segment.first:
                needed.append(one)
        return tuple(reversed(needed))

    def segments(self) -> tuple[Segment, ...]:
        """What is sealed by now, for whoever compares."""
        return tuple(one.segment for one in self.up_to(self.main_size))
