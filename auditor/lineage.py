"""Which blocks a request covers, descendants included, with «can't be told» kept apart from yes and no."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from events.ids import ROOT_PARENT
from events.model.control import ProfileScope, Scope
from events.scope import is_whole_domain, scoped_profiles


class Covered(StrEnum):
    YES = "yes"
    NO = "no"
    UNDECIDED = "undecided"


@dataclass(slots=True)
class Ancestry:
    """Parents of one domain's blocks, learnt from every stream: an id has one parent, wherever it lies.

    What was answered is kept, so that a chain is walked once and not once for each of its blocks. A contradiction
    takes all answers back; any new parent those that couldn't be given."""

    parents: dict[bytes, bytes] = field(default_factory=dict)
    torn: set[bytes] = field(default_factory=set)
    _told: dict[frozenset[bytes], dict[bytes, Covered]] = field(default_factory=dict, repr=False)
    _open: dict[frozenset[bytes], set[bytes]] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> tuple[dict[bytes, bytes], set[bytes]]:
        return self.parents, self.torn

    def __setstate__(self, state: tuple[dict[bytes, bytes], set[bytes]]) -> None:
        self.parents, self.torn = state
        self._told, self._open = {}, {}

    def learn(self, block: bytes, parent: bytes) -> None:
        """Two parents for one id contradict each other: then nothing below it can be told."""
        known = self.parents.get(block)
        if known is None:
            self.parents[block] = parent
            self._open.clear()
        elif known != parent and block not in self.torn:
            self.torn.add(block)
            self._told.clear()
            self._open.clear()

    def below(self, block: bytes, tops: frozenset[bytes]) -> Covered:
        """Whether `block` is one of `tops` or descends from one."""
        told, undecided = self._told.setdefault(tops, {}), self._open.setdefault(tops, set())
        passed: dict[bytes, None] = {}
        found = Covered.YES
        while block not in tops:
            known = told.get(block)
            if known is not None or block == ROOT_PARENT:
                found = known or Covered.NO
                break
            parent = self.parents.get(block)
            if parent is None or block in self.torn or block in passed or block in undecided:
                undecided.update(passed, (block,))
                return Covered.UNDECIDED
            passed[block] = None
            block = parent
        told.update(dict.fromkeys(passed, found))
        return found


def covers(
    scope: Scope,
    domain: str,
    lineage: Ancestry,
    block: bytes,
    profile: str | None,
    tops: frozenset[bytes],
    unnamed: frozenset[bytes] = frozenset(),
) -> Covered:
    """Whether a block of a `domain` that the scope reaches is in scope; `profile` None: never declared. `tops` are
    the ids that the scope names. What is not in scope and at or below an `unnamed` leaf, one that is the subject's
    too, can't be told."""
    if is_whole_domain(scope, domain):
        return Covered.YES
    if isinstance(scope, ProfileScope):
        if profile is None:
            return Covered.UNDECIDED
        return Covered.YES if profile in scoped_profiles(scope) else Covered.NO
    found = lineage.below(block, tops)
    if found is Covered.NO and unnamed and lineage.below(block, unnamed) is Covered.YES:
        return Covered.UNDECIDED
    return found
